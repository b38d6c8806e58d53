"""Measure what each kind of call costs, with growing numbers of tenants and of stored calls.

    python -m proofs.scale.measure [--tenants 1,10] [--rows 10000,100000] [--calls 400]

A gateway in this process makes the calls, without the interface in front; its database is a PostgreSQL of its own.
Calls of before are copies of real ones, with ids and keys of their own. `measurements.json` keeps the figures, and
`python -m docs.generate --write` makes tables and curves of them.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import asyncpg
from pydantic import Field

from deputize.app import open_gateway, open_worker
from deputize.catalog.importers.python import ATTRIBUTE, tool
from deputize.core.call import CallRequest
from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.settings import DatabaseSettings, IdentitySettings, KeySettings, PolicySettings, Settings
from deputize.govern.identity.dev_issuer import load_dev_issuer
from deputize.interfaces.cli.local.operator_identity import complete_caller
from deputize.operations.gateway import Gateway
from deputize.store import migrate
from deputize.store.keys import MasterKey
from deputize.store.local_postgres import LocalPostgres
from proofs.kit.cpu_metrics import read_postgres_cpu_seconds
from proofs.kit.facts import read_commit_facts, read_machine_facts
from proofs.kit.gateway_internals import get_runtime

KINDS = ("read", "write", "refused", "run")
FILE = Path(__file__).parent / "measurements.json"
_LANES = 16
_WARM_UP = 100
_LIST_SAMPLES = 20
_STATISTICS_SECONDS = 11
_FILL_BATCH = 50_000
# A checkpoint in the middle of a measurement would add a copy of every page to the log; the first touch after one does.
_POSTGRES = {"checkpoint_timeout": "1h", "max_wal_size": "16GB", "synchronous_commit": "on"}
_POLICY = '@id("open")\n@reason("a measurement")\npermit (principal, action, resource);\n'
# The rows of one call, in every table that grows with calls. Times are those of the copy.
_COPIED_TABLES = {
    "calls": {"id": "n.id", "claim_key": "sha256(uuid_send(n.id))"},
    "claims": {"call_id": "n.id", "key": "sha256(uuid_send(n.id))"},
    "sealed_payloads": {"id": "n.id"},
    "journal": {"id": "uuidv7()", "call_id": "n.id"},
    "audit_entries": {"id": "uuidv7()", "call_id": "n.id"},
}
_COLUMNS = """
select column_name from information_schema.columns
where table_schema = 'deputize' and table_name = $1 and is_generated = 'NEVER' and is_identity = 'NO'
"""
_ROWS_WRITTEN = """
select coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0) from pg_stat_all_tables
where schemaname in ('deputize', 'dbos')
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one call of a kind takes."""

    kind: str
    gateway_ms: float
    """CPU of the gateway's process, with its background tasks."""
    postgres_ms: float
    """CPU of all processes of the server."""
    wal_bytes: float
    calls_per_second: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """What calls cost with so many tenants and stored calls."""

    tenants: int
    rows: int
    costs: list[Cost]
    list_ms: float
    """Median time of the newest page of a tenant's calls."""
    database_bytes: int
    entry_bytes: float
    """What an audit entry takes on the disk, with its indexes."""
    leaf_bytes: float
    """What it takes in its tenant's log."""


Number = Annotated[int, Field(description="Which thing", examples=[7])]


@tool(effects="read", namespace="scale")
async def look(number: Number) -> dict[str, int]:
    """Look at a thing by its number."""
    return {"number": number}


@tool(
    effects="write",
    namespace="scale",
    scopes=["scale:write"],
    resources=["update scale.things/{number}"],
    idempotency="cannot",
    undo="scale.change",
)
async def change(number: Number) -> dict[str, int]:
    """Change a thing by its number."""
    return {"number": number}


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """A gateway, its callers, and its database."""

    gateway: Gateway
    callers: list[Caller]
    strangers: list[Caller]
    database: asyncpg.Connection
    postmaster: int

    async def measure(self, kind: str, count: int) -> Cost:
        """Make calls of one kind, by turns for each tenant."""
        makers: dict[str, Callable[[int], Awaitable[object]]] = {
            "read": lambda number: self._call(self.callers, number, "scale.look"),
            "write": lambda number: self._call(self.callers, number, "scale.change", key=f"{kind}-{time.time_ns()}"),
            "refused": lambda number: self._call(self.strangers, number, "scale.change", key=f"r-{time.time_ns()}"),
            "run": lambda number: self._call(
                self.callers, number, "scale.change", key=f"{kind}-{time.time_ns()}", mode="async"
            ),
        }
        await self._run(makers[kind], _WARM_UP)
        await self._wait_for_background()
        wal = await self._read_wal()
        cpu, server_cpu, began = time.process_time(), read_postgres_cpu_seconds(self.postmaster), time.monotonic()
        await self._run(makers[kind], count)
        seconds = time.monotonic() - began
        # What follows a call in the background is a part of its cost: the log, and the run itself.
        await self._wait_for_background()
        cpu, server_cpu = time.process_time() - cpu, read_postgres_cpu_seconds(self.postmaster) - server_cpu
        return Cost(
            kind=kind,
            gateway_ms=round(cpu / count * 1000, 3),
            postgres_ms=round(server_cpu / count * 1000, 3),
            wal_bytes=round((await self._read_wal() - wal) / count),
            calls_per_second=round(count / seconds),
        )

    async def count_rows(self, count: int) -> dict[str, float]:
        """Count the rows that a call of each kind writes, changes and deletes, whatever is stored."""
        counts = {}
        for kind in KINDS:
            rows = await self._read_rows()
            await self.measure(kind, count)
            counts[kind] = round((await self._read_rows() - rows) / (count + _WARM_UP), 1)
        return counts

    async def measure_row_bytes(self, table: str) -> float:
        """Measure what a row of a partitioned table, or of a plain one, takes on the disk with its indexes."""
        size: int = await self.database.fetchval(
            "select (coalesce(sum(pg_total_relation_size(inhrelid)), 0) + pg_total_relation_size($1::text::regclass))"
            "::bigint from pg_inherits where inhparent = $1::text::regclass",
            table,
        )
        count: int = await self.database.fetchval(f"select count(*) from {table}")
        return round(size / count)

    async def measure_list(self) -> float:
        """Measure the newest page of a tenant's calls."""
        times = []
        for number in range(_LIST_SAMPLES):
            began = time.monotonic()
            await self.gateway.calls.list_calls(self.callers[number % len(self.callers)], before=None, limit=50)
            times.append((time.monotonic() - began) * 1000)
        return round(statistics.median(times), 2)

    async def fill(self, rows: int) -> None:
        """Copy calls until there are so many, the same number for each tenant."""
        have: int = await self.database.fetchval("select count(*) from deputize.calls")
        per_tenant = max(rows - have, 0) // len(self.callers)
        await self.database.execute("set session_replication_role = replica")
        for caller, begin in itertools.product(self.callers, range(0, per_tenant, _FILL_BATCH)):
            await self._copy_calls(caller.tenant, min(_FILL_BATCH, per_tenant - begin))
        await self.database.execute("reset session_replication_role")
        await self.database.execute("vacuum analyze")
        await self.database.execute("checkpoint")

    async def _copy_calls(self, tenant: str, count: int) -> None:
        model = await self.database.fetchval(
            "select id from deputize.calls where tenant = $1 and state = 'succeeded' order by id limit 1", tenant
        )
        await self.database.execute("drop table if exists new_ids")
        await self.database.execute(
            f"create temp table new_ids as select uuidv7() as id from generate_series(1, {count})"
        )
        for table, changed in _COPIED_TABLES.items():
            columns = [row[0] for row in await self.database.fetch(_COLUMNS, table)]
            values = ", ".join(changed.get(each, f"m.{each}") for each in columns)
            key = "id" if table in ("calls", "sealed_payloads") else "call_id"
            await self.database.execute(
                f"insert into deputize.{table} ({', '.join(columns)}) select {values} "
                f"from new_ids n cross join (select * from deputize.{table} where tenant = $1 and {key} = $2) m",
                tenant,
                model,
            )

    async def _run(self, make: Callable[[int], Awaitable[object]], count: int) -> None:
        numbers = iter(range(count))

        async def run_lane() -> None:
            for number in numbers:
                await make(number)

        await asyncio.gather(*(run_lane() for _ in range(_LANES)))

    async def _call(self, callers: Sequence[Caller], number: int, name: str, **fields: Any) -> None:
        key = fields.pop("key", None)
        request = CallRequest(
            tool=name, arguments={"number": number}, idempotency_key=key and f"{key}-{number}", **fields
        )
        outcome = await self.gateway.run_call(callers[number % len(callers)], request)
        if outcome.spec is not None and callers is self.callers:
            raise RuntimeError(f"{name} failed: {outcome.body[:300]!r}")

    async def _wait_for_background(self) -> None:
        open_work = (
            "select exists (select from deputize.log_queue) "
            "or exists (select from deputize.calls where state in ('queued', 'running'))"
        )
        async with asyncio.timeout(300):
            while await self.database.fetchval(open_work):  # noqa: ASYNC110 -- rows of another process
                await asyncio.sleep(0.05)

    async def _read_rows(self) -> int:
        # A session reports what it wrote when it was idle for ten seconds.
        await asyncio.sleep(_STATISTICS_SECONDS)
        await self.database.execute("select pg_stat_clear_snapshot()")
        return int(await self.database.fetchval(_ROWS_WRITTEN))

    async def _read_wal(self) -> int:
        return int(await self.database.fetchval("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))


@contextlib.asynccontextmanager
async def open_bench(postgres: LocalPostgres, dsn: str, folder: Path, tenants: int) -> AsyncIterator[Bench]:
    names = [f"t{number}" for number in range(tenants)]
    issuer = load_dev_issuer(folder)
    (folder / "open.cedar").write_text(_POLICY)
    settings = Settings(
        folder=folder,
        database=DatabaseSettings.model_validate({"url": dsn, "lineage_folder": folder / "lineage"}),
        identity=IdentitySettings().model_copy(
            update={
                "issuers": tuple(
                    issuer.model_copy(
                        update={
                            "issuer": f"https://{name}.example",
                            "tenant": name,
                            "tenant_claim": None,
                            "development": False,
                        }
                    )
                    for name in names
                )
            }
        ),
        keys=KeySettings(master_file=folder / "master.key"),
        policy=PolicySettings(files=(str(folder / "open.cedar"),)),
    )
    clock = Clock()
    MasterKey.read_or_create(folder / "master.key", clock)
    tools = tuple(getattr(each, ATTRIBUTE) for each in (look, change))
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(open_gateway(settings, tools=tools, development=False))
        if gateway.startup_problems:
            raise RuntimeError([each.details for each in gateway.startup_problems])
        store = get_runtime(gateway).store
        for name, each in itertools.product(names, tools):
            await gateway.commands.register_tool(await complete_caller(store, clock, name, None), each.contract)
        await stack.enter_async_context(open_worker(gateway))
        database = await asyncpg.connect(dsn)
        stack.push_async_callback(database.close)

        def make_caller(name: str, *scopes: str) -> Caller:
            return Caller(
                tenant=name, user="ann", scopes=frozenset(scopes), issuer=f"https://{name}.example",
                token_id=clock.new_id(), expires_at=clock.epoch_ms() // 1000 + 86_400, pseudonyms=("p-ann",),
            )  # fmt: skip

        yield Bench(
            gateway=gateway,
            callers=[make_caller(name, "scale:write") for name in names],
            strangers=[make_caller(name) for name in names],
            database=database,
            postmaster=postgres.pid,
        )


async def _measure_growth(tenants: int, sizes: Sequence[int], count: int) -> dict[str, Any]:
    points: list[Point] = []
    version, rows_written = "", {}
    with tempfile.TemporaryDirectory(prefix="scale-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        with LocalPostgres(folder / "db", settings=_POSTGRES) as postgres:
            await migrate.upgrade_async(postgres.dsn)
            version = postgres.run_sql("show server_version")
            (folder / "gateway").mkdir()
            async with open_bench(postgres, postgres.dsn, folder / "gateway", tenants) as bench:
                # One write of each tenant is what the others are copied from.
                await bench.measure("write", max(tenants, 10))
                rows_written = await bench.count_rows(count)
                for rows in sizes:
                    await bench.fill(rows)
                    size: int = await bench.database.fetchval("select pg_database_size(current_database())")
                    costs = [await bench.measure(kind, count) for kind in KINDS]
                    point = Point(
                        tenants=tenants,
                        rows=rows,
                        costs=costs,
                        list_ms=await bench.measure_list(),
                        database_bytes=size,
                        entry_bytes=await bench.measure_row_bytes("deputize.audit_entries"),
                        leaf_bytes=await bench.measure_row_bytes("deputize.log_leaves"),
                    )
                    print(json.dumps(asdict(point)), flush=True)
                    points.append(point)
    return {"points": points, "postgres": version, "rows_written": rows_written}


def main() -> int:
    """Measure, and keep the figures."""
    parser = argparse.ArgumentParser(prog="python -m proofs.scale.measure", description=main.__doc__)
    parser.add_argument("--tenants", default="1,10")
    parser.add_argument("--rows", default="10000,100000")
    parser.add_argument("--calls", type=int, default=400, help="calls of each kind at each point")
    arguments = parser.parse_args()
    tenants, rows = ([int(each) for each in text.split(",")] for text in (arguments.tenants, arguments.rows))
    commit, load, growths = read_commit_facts(), [os.getloadavg()[0]], []
    for number in tenants:
        growths.append(asyncio.run(_measure_growth(number, rows, arguments.calls)))
        load.append(os.getloadavg()[0])
    document = {
        "measured_at": datetime.now(UTC).date().isoformat(),
        "calls": arguments.calls,
        **commit,
        **read_machine_facts(growths[0]["postgres"]),
        "load": [round(min(load), 1), round(max(load), 1)],
        "rows_written": growths[0]["rows_written"],
        "points": [asdict(point) for growth in growths for point in growth["points"]],
    }
    FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
