"""Rehearse a restore and a failover on scratch databases of the operator, and report what was lost and for how long.

Above: `deputize drill`. Below: the recovery of `local/recovery.py`, and the gateway of this process. The database of
the settings is only read.
"""

import asyncio
import os
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import asyncpg

from deputize.catalog.importers.python import ATTRIBUTE, tool
from deputize.core.call import CallRequest
from deputize.core.caller import Caller
from deputize.core.clock import Clock, parse_id_time_ms
from deputize.core.config_error import ConfigError
from deputize.core.contract.tools import PythonTool
from deputize.core.errors import Problem, UnsealFailed
from deputize.core.settings import DatabaseSettings, IdentitySettings, KeySettings, PolicySettings, Settings
from deputize.core.settings.database_urls import list_hosts
from deputize.core.states import State
from deputize.govern.identity.dev_issuer import load_dev_issuer, mint_dev_token
from deputize.interfaces.cli.local import database
from deputize.interfaces.cli.local.project_gateway import OpenGateway
from deputize.interfaces.cli.local.recovery import RestoredDatabase, open_store
from deputize.operations.gateway import Gateway
from deputize.store.keys import MasterKey, TenantKeys
from deputize.store.pool import WRITER, Store
from deputize.store.queries import load_statements
from deputize.store.restore_guard.checkpoint_files import CheckpointFiles
from deputize.store.restore_guard.record_files import read_records
from deputize.store.restore_guard.recovery import Recovery, load_state

T = TypeVar("T")
_SQL = load_statements("drill")
_ACTS = ("registry", "policy", "revocation")
_SCOPE: Final = "drill:write"
_CONNECT_SECONDS: Final = 5.0
_POLICY = '@id("drill")\n@reason("a drill")\npermit (principal, action, resource);\n'
# Calls succeed for this long before the promotion, and after it until the drill ends.
_STEADY_SECONDS: Final = 3.0
_MAX_OPEN_CALLS: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantLoss:
    """What a restored copy lacks of one tenant; None for what cannot be known while the live database is away."""

    tenant: str
    newest_entry: str | None
    """When the newest audit entry of the copy was written."""
    entries: int
    lost_entries: int | None
    signed_entries_lost: int | None
    """How many of them a checkpoint outside the database had signed."""
    lost_acts: dict[str, int] | None
    """Registrations, policies and revocations that have to be repeated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreReport:
    """What became of a restored copy."""

    database: str
    live: str
    is_live_compared: bool
    loss: str | None
    tenants: list[TenantLoss]
    lineage: str | None
    """The lineage that recovery began; None if nothing was lost."""
    unknown_calls: int
    void_approvals: int
    keys_opened: int
    key_problem: str | None
    compare_seconds: float
    recover_seconds: float


def drill_restore(settings: Settings, dsn: str) -> RestoreReport:
    """Recover a restored copy as `deputize recover confirm` would, and report what it lacks."""
    database.require_current_schema(dsn)
    return _run(_drill_restore(settings, dsn), dsn)


async def _drill_restore(settings: Settings, dsn: str) -> RestoreReport:
    started_at, live_dsn = time.monotonic(), _require_live_dsn(settings)
    folder = database.locate_lineage(settings)
    records, checkpoints = read_records(folder), CheckpointFiles(folder)
    async with _connect_live(live_dsn) as live:
        await _require_scratch(settings, dsn, live)
        live_rows = None if live is None else await live.fetch(_SQL["describe_tenants"])
        live_lineages = [] if live is None else [row[0] for row in await live.fetch(_SQL["list_lineages"])]
    async with open_store(dsn) as store:
        state = await load_state(store, records, checkpoints)
        if not state.is_known and state.lineage not in live_lineages:
            raise ConfigError(
                f"Nothing was changed: {database.describe_dsn(dsn)} is no copy of the database of deputize.toml, or "
                f"its records in {folder} are missing and it does not answer. Restore a backup of it there."
            )
        async with store.write_transaction() as connection:
            rows = await connection.fetch(_SQL["describe_tenants"])
        tenants = [_compare_tenant(row, live_rows, checkpoints, state.lineage) for row in rows]
        loss = state.loss or _describe_loss(tenants)
        compared_at = time.monotonic()
        recovery: Recovery | None = None
        if loss is not None:
            target = RestoredDatabase(
                settings=settings,
                address=database.describe_dsn(dsn),
                store=store,
                records=records,
                state=replace(state, loss=loss, is_known=True),
                is_development=False,
            )
            recovery = await target.confirm(None, "drill")
        recovered_at = time.monotonic()
        keys_opened, key_problem = await _open_keys(settings, store, [each.tenant for each in tenants])
    return RestoreReport(
        database=database.describe_dsn(dsn),
        live=database.describe_dsn(live_dsn),
        is_live_compared=live_rows is not None,
        loss=loss,
        tenants=tenants,
        lineage=None if recovery is None else recovery.lineage,
        unknown_calls=0 if recovery is None else recovery.unknown_calls,
        void_approvals=0 if recovery is None else recovery.void_approvals,
        keys_opened=keys_opened,
        key_problem=key_problem,
        compare_seconds=round(compared_at - started_at, 3),
        recover_seconds=round(recovered_at - compared_at, 3),
    )


def _compare_tenant(
    row: asyncpg.Record, live_rows: list[asyncpg.Record] | None, checkpoints: CheckpointFiles, lineage: str
) -> TenantLoss:
    signed = checkpoints.get(lineage, row["tenant"])
    live = None if live_rows is None else next((each for each in live_rows if each["tenant"] == row["tenant"]), None)
    newest = None if row["newest"] is None else parse_id_time_ms(row["newest"]) / 1000
    return TenantLoss(
        tenant=row["tenant"],
        newest_entry=None if newest is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(newest)),
        entries=row["entries"],
        lost_entries=None if live is None else max(live["entries"] - row["entries"], 0),
        signed_entries_lost=None if signed is None else max(signed.size - row["entries"], 0),
        lost_acts=None if live is None else {name: max(live[name] - row[name], 0) for name in _ACTS},
    )


def _describe_loss(tenants: list[TenantLoss]) -> str | None:
    """Describe what only the live database knows to be missing."""
    lost = {each.tenant: each.lost_entries for each in tenants if each.lost_entries}
    return f"it lacks audit entries of {', '.join(lost)}" if lost else None


async def _open_keys(settings: Settings, store: Store, tenants: list[str]) -> tuple[int, str | None]:
    """Try the master key on the keys of the copy: without it, a restored database cannot be read."""
    try:
        master = MasterKey.read(settings.keys.master_file)
        accepted_masters = [MasterKey.read(file) for file in settings.keys.accepted_master_files]
    except ConfigError as error:
        return 0, str(error)
    keys = TenantKeys(store, master, Clock(), accepted_masters=accepted_masters)
    for opened, tenant in enumerate(tenants):
        try:
            await keys.load(tenant)
        except UnsealFailed:
            return opened, (
                f"The master key in {settings.keys.master_file} does not open the keys of tenant {tenant}: keep the "
                "master key of the time of the backup, and name it in keys.accepted_master_files."
            )
    return len(tenants), None


@dataclass(kw_only=True, slots=True)
class _Load:
    """Calls of a drill, and what became of each, by idempotency key."""

    acknowledged: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    successes: list[float] = field(default_factory=list)
    """When each call succeeded."""
    effects: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, kw_only=True, slots=True)
class FailoverReport:
    """What became of calls while a standby took over."""

    database: str
    had_synchronous_standby: bool
    was_promoted: bool
    acknowledged: int
    lost: list[str]
    """Ids of acknowledged calls that the new primary does not know."""
    refused: dict[str, int]
    """How many calls were refused, by error."""
    repeated: int
    """How many of the refused were sent again, and succeeded."""
    done_twice: list[str]
    """Idempotency keys whose effect happened more than once."""
    seconds_without_calls: float
    seconds: float


def drill_failover(
    open_gateway: OpenGateway,
    settings: Settings,
    dsn: str,
    *,
    promote: str,
    rate: float,
    limit_seconds: float,
    report_steady: Callable[[], None],
) -> FailoverReport:
    """Make governed calls on an empty scratch cluster while a standby is promoted, and count what became of them."""

    async def drill() -> FailoverReport:
        async with _connect_live(database.get_direct_dsn(settings)) as live:
            await _require_scratch(settings, dsn, live)
        await _require_empty(dsn)
        await asyncio.to_thread(database.upgrade_schema, dsn)
        with tempfile.TemporaryDirectory(prefix="deputize-drill-") as folder:
            load = _Load()
            async with _open_drill_gateway(open_gateway, dsn, Path(folder), load) as (gateway, caller):
                return await _watch_failover(gateway, caller, dsn, load, promote, rate, limit_seconds, report_steady)

    return _run(drill(), dsn)


async def _watch_failover(
    gateway: Gateway,
    caller: Caller,
    dsn: str,
    load: _Load,
    promote: str,
    rate: float,
    limit_seconds: float,
    report_steady: Callable[[], None],
) -> FailoverReport:
    started_at = time.monotonic()
    old_server = await _query(dsn, "identify_server")
    is_synchronous = bool(await _query(dsn, "has_synchronous_standby"))
    was_promoted = False
    await _send_call(gateway, caller, load, "drill-0")
    if not load.acknowledged:
        raise ConfigError(f"No call succeeds on {database.describe_dsn(dsn)} ({load.refused}): see the log above.")
    sender = asyncio.create_task(_send_calls(gateway, caller, load, rate))
    try:
        await asyncio.sleep(_STEADY_SECONDS)
        report_steady()
        if promote:
            await _promote(promote)
        # A new primary answers, and calls succeed on it for a while.
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_seconds):
                while await _query(dsn, "identify_server") in (None, old_server):  # noqa: ASYNC110 -- the server's state
                    await asyncio.sleep(0.1)
                was_promoted, promoted_at = True, time.monotonic()
                while not _is_steady(load, promoted_at):  # noqa: ASYNC110 -- calls succeed in another task
                    await asyncio.sleep(0.1)
    finally:
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)
    gap = max((b - a for a, b in zip(load.successes, load.successes[1:], strict=False)), default=limit_seconds)
    refused = Counter(load.refused.values())
    acknowledged = dict(load.acknowledged)
    for key in tuple(load.refused):
        await _send_call(gateway, caller, load, key)
    kept = {row[0] for row in await _fetch(dsn, "list_succeeded", caller.tenant, list(acknowledged.values()))}
    return FailoverReport(
        database=database.describe_dsn(dsn),
        had_synchronous_standby=is_synchronous,
        was_promoted=was_promoted,
        acknowledged=len(acknowledged),
        lost=[each for each in acknowledged.values() if each not in kept],
        refused=dict(refused),
        repeated=len(load.acknowledged) - len(acknowledged),
        done_twice=[key for key, count in load.effects.items() if count > 1],
        seconds_without_calls=round(gap, 2),
        seconds=round(time.monotonic() - started_at, 2),
    )


def _is_steady(load: _Load, since: float) -> bool:
    """Tell whether calls have succeeded for a while after the promotion."""
    later = [each for each in load.successes if each > since]
    return bool(later) and later[-1] - later[0] >= _STEADY_SECONDS


async def _send_calls(gateway: Gateway, caller: Caller, load: _Load, rate: float) -> None:
    """Send calls at a steady rate; those that cannot begin because too many are open are not sent."""
    tasks: set[asyncio.Task[None]] = set()
    number = 0
    try:
        while True:
            await asyncio.sleep(1 / rate)
            if len(tasks) < _MAX_OPEN_CALLS:
                number += 1
                task = asyncio.create_task(_send_call(gateway, caller, load, f"drill-{number}"))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
    finally:
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send_call(gateway: Gateway, caller: Caller, load: _Load, key: str) -> None:
    request = CallRequest(tool="drill.write", arguments={"key": key}, idempotency_key=key)
    try:
        outcome = await gateway.run_call(caller, request)
    except (Problem, *database.CONNECTION_ERRORS) as error:
        load.refused[key] = error.spec.slug if isinstance(error, Problem) else type(error).__name__
        return
    if outcome.state is State.SUCCEEDED:
        load.acknowledged[key] = outcome.call_id
        load.successes.append(time.monotonic())
    else:
        load.refused[key] = outcome.state.value if outcome.spec is None else outcome.spec.slug


@asynccontextmanager
async def _open_drill_gateway(
    open_gateway: OpenGateway, dsn: str, folder: Path, load: _Load
) -> AsyncIterator[tuple[Gateway, Caller]]:
    """Open a gateway of this process with one tool, whose effects are counted outside the database."""

    @tool(
        effects="write",
        namespace="drill",
        scopes=[_SCOPE],
        resources=["create drill.writes/{key}"],
        idempotency="cannot",
        undo="drill.write",
    )
    async def write(key: str) -> str:
        """Count one effect of a drill."""
        load.effects[key] += 1
        return key

    (folder / "drill.cedar").write_text(_POLICY, encoding="utf-8")
    settings = Settings(
        folder=folder,
        database=DatabaseSettings.model_validate({"url": dsn, "lineage_folder": folder / "lineage"}),
        keys=KeySettings(master_file=folder / "master.key"),
        identity=IdentitySettings(issuers=(load_dev_issuer(folder),)),
        policy=PolicySettings(files=(str(folder / "drill.cedar"),)),
    )
    project_tool: PythonTool = getattr(write, ATTRIBUTE)
    async with open_gateway(settings, tools=(project_tool,), development=True) as gateway:
        token = mint_dev_token(folder, scopes=(_SCOPE,))
        yield gateway, await gateway.authenticate(f"Bearer {token}".encode())


async def _promote(command: str) -> None:
    """Run the operator's own command, as their shell would."""
    process = await asyncio.create_subprocess_shell(command, env=os.environ.copy())
    code = await process.wait()
    if code:
        raise ConfigError(f"--promote failed with exit code {code}: {command}. Run it by hand to see why.")


def _require_live_dsn(settings: Settings) -> str:
    dsn = database.get_direct_dsn(settings) or database.find_local_dsn(settings.folder)
    if dsn is None:
        raise ConfigError(
            "No live database is configured, so a copy of it cannot be told from it: run the drill in the project of "
            "the live gateways, with url under [database] in deputize.toml."
        )
    return dsn


@asynccontextmanager
async def _connect_live(dsn: str | None) -> AsyncIterator[asyncpg.Connection | None]:
    """Open a transaction on the live database that cannot write; None if it does not answer."""
    connection: asyncpg.Connection | None = None
    if dsn is not None:
        with suppress(*database.CONNECTION_ERRORS):
            connection = await asyncpg.connect(dsn, timeout=_CONNECT_SECONDS)
    if connection is None:
        yield None
        return
    try:
        async with connection.transaction(readonly=True, isolation="repeatable_read"):
            await connection.execute(f"set local role {WRITER}")
            yield connection
    finally:
        await connection.close()


async def _require_scratch(settings: Settings, dsn: str, live: asyncpg.Connection | None) -> None:
    """Refuse the live database, by its address, by what runs on it, and by a lock that both would see."""
    address, urls = database.describe_dsn(dsn), settings.database
    configured = [each.get_secret_value() for each in (urls.url, urls.direct_url, urls.migration_url) if each]
    is_live = any(_share_address(dsn, each) for each in configured)
    connection = await asyncpg.connect(dsn, timeout=_CONNECT_SECONDS)
    try:
        async with connection.transaction():
            if live is not None:
                name = secrets.randbits(62)
                await connection.execute(_SQL["lock_shared_name"], name)
                is_live = is_live or not await live.fetchval(_SQL["is_name_free"], name)
            if is_live:
                raise ConfigError(
                    f"Nothing was changed: {address} is the live database of deputize.toml. Name a scratch database, "
                    "which no gateway uses."
                )
            if await connection.fetchval("select to_regclass('deputize.leases') is not null"):
                await connection.execute(f"set local role {WRITER}")
                if await connection.fetchval(_SQL["is_in_use"]):
                    raise ConfigError(
                        f"Nothing was changed: gateways or workers are alive at {address}. A scratch database has "
                        "none; of a fresh copy, wait until the leases that it was copied with have ended."
                    )
    finally:
        await connection.close()


def _share_address(one: str, other: str) -> bool:
    """Tell whether two URLs name the same database at the same host."""
    names = [database.describe_dsn(each).rpartition("/")[2] for each in (one, other)]
    return names[0] == names[1] and bool(set(list_hosts(one)) & set(list_hosts(other)))


async def _require_empty(dsn: str) -> None:
    connection = await asyncpg.connect(dsn, timeout=_CONNECT_SECONDS)
    try:
        if await connection.fetchval("select to_regnamespace('deputize') is not null"):
            raise ConfigError(
                f"Nothing was changed: {database.describe_dsn(dsn)} has a schema deputize, but the drill makes "
                "calls of its own: create an empty database for it, and drop it afterwards."
            )
    finally:
        await connection.close()


async def _query(dsn: str, name: str) -> Any:
    """Ask the server that takes writes now; None while there is none."""
    with suppress(*database.CONNECTION_ERRORS):
        connection = await asyncpg.connect(dsn, timeout=_CONNECT_SECONDS)
        try:
            if not await connection.fetchval("select pg_is_in_recovery()"):
                return await connection.fetchval(_SQL[name], timeout=_CONNECT_SECONDS)
        finally:
            connection.terminate()
    return None


async def _fetch(dsn: str, name: str, *values: Any) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn, timeout=_CONNECT_SECONDS)
    try:
        await connection.execute(f"set role {WRITER}")
        return list(await connection.fetch(_SQL[name], *values))
    finally:
        await connection.close()


def _run(drill: Coroutine[Any, Any, T], dsn: str) -> T:
    try:
        return asyncio.run(drill)
    except Problem as problem:
        raise ConfigError(f"{problem.message[:1].upper()}{problem.message[1:]}. {problem.advice}") from problem
    except database.CONNECTION_ERRORS as error:
        raise database.explain_error(error, dsn) from error
