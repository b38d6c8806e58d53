"""A gateway without a door, whoever calls it, and a look into its database."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import asyncpg
import orjson

from deputize.app import open_gateway
from deputize.core.call import CallRequest
from deputize.core.caller import ADMIN_SCOPE, Caller
from deputize.core.clock import Clock
from deputize.core.definition import PythonTool
from deputize.core.hooks import LoadedHook
from deputize.core.outcome import Outcome
from deputize.core.run_settings import Runs
from deputize.core.settings import Database, Identity, Keys, Settings, Telemetry, Timing
from deputize.govern.identity.development import development_issuer, mint
from deputize.lifecycle.authorize import authorize
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.phases import Authorized
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.sweep import Sweeper
from deputize.lifecycle.validate import validate
from tests.integration.lifecycle.tools import TOOLS
from tests.policies import open_policy

SCOPES = ("lab:write",)
CLOSE_BARRIER = "select pg_advisory_xact_lock(deputize.barrier_key($1))"


@dataclass
class Lab:
    """One gateway. Its sweeper sleeps: tests sweep when they mean to."""

    gateway: Gateway
    folder: Path
    dsn: str
    db: asyncpg.Connection
    _callers: dict[Any, Caller] = field(default_factory=dict)

    @cached_property
    def rooms(self) -> Rooms:
        return self.gateway.lifecycle.rooms

    async def caller(
        self, user: str = "ana", *, scopes: Iterable[str] = SCOPES, tools: Mapping[str, str] | None = None, **more: Any
    ) -> Caller:
        named = (user, tuple(scopes), tuple((tools or {}).items()), tools is None, tuple(more.items()))
        if named not in self._callers:
            token = mint(self.folder, subject=user, scopes=scopes, tools=tools, **more)
            self._callers[named] = await self.gateway.caller(f"Bearer {token}".encode())
        return self._callers[named]

    async def admin(self, user: str = "root") -> Caller:
        return await self.caller(user, scopes=(ADMIN_SCOPE,))

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any] | str = "",
        *,
        key: str | None = None,
        by: Caller | None = None,
        **request: Any,
    ) -> Outcome:
        """A text for arguments is the tag."""
        asked = CallRequest(
            tool=f"lab.{tool}",
            arguments={"tag": arguments} if isinstance(arguments, str) else arguments,
            idempotency_key=key,
            **request,
        )
        return await self.gateway.lifecycle.run(by or await self.caller(), asked)

    async def authorized(self, tool: str, arguments: dict[str, Any]) -> Authorized:
        """A call where authorization leaves it, for tests of what comes next."""
        caller = await self.caller()
        request = CallRequest(tool=f"lab.{tool}", arguments=arguments)
        received = self.gateway.lifecycle._receive(caller, request)
        authority = await self.rooms.authority.of(caller.tenant)
        return await authorize(self.rooms, validate(received, authority, self.rooms.metrics), authority)

    async def row(self, call_id: str) -> asyncpg.Record:
        found = await self.db.fetchrow("select * from deputize.calls where id = $1", call_id)
        assert found is not None
        return found

    async def state(self, call_id: str) -> str:
        return str((await self.row(call_id))["state"])

    async def until_state(self, call_id: str, state: str) -> None:
        async def is_so() -> bool:
            return await self.state(call_id) == state

        await until(is_so)

    async def entries(self, call_id: str) -> list[dict[str, Any]]:
        rows = await self.db.fetch("select entry from deputize.audit_entries where call_id = $1 order by id", call_id)
        return [orjson.loads(row["entry"]) for row in rows]

    async def kinds(self, call_id: str) -> list[str]:
        return [entry["kind"] for entry in await self.entries(call_id)]

    async def claimed(self, call_id: str) -> bool:
        return bool(await self.db.fetchval("select count(*) from deputize.claims where call_id = $1", call_id))

    async def running_call(self, tool: str, key: str | None = None) -> str:
        """The newest call of a tool that is still open."""
        found = await self.db.fetchval(
            "select id from deputize.calls where tool = $1 and state = 'running' order by id desc limit 1",
            f"lab.{tool}",
        )
        assert found is not None
        return str(found)

    async def bury(self, other: "Lab", call_id: str) -> None:
        """To everybody else the other gateway is dead, and the call's time is over."""
        await self.db.execute(
            "update deputize.leases set expires_at = now() - interval '1 hour' where boot = $1", other.rooms.lease.boot
        )
        await self.db.execute(
            "update deputize.calls set deadline_at = now() - interval '1 hour' where id = $1", call_id
        )

    async def sweep(self) -> int:
        return await Sweeper(self.rooms).sweep()

    @asynccontextmanager
    async def barrier_closed(self, tenant: str = "dev") -> AsyncIterator[asyncpg.Connection]:
        """A transaction that holds the tenant's barrier; what is done in it counts once the block is left."""
        connection = await asyncpg.connect(self.dsn)
        try:
            async with connection.transaction():
                await connection.execute(CLOSE_BARRIER, tenant)
                yield connection
        finally:
            await connection.close()

    async def until_waiting(self, query_like: str = "%deputize.commit_%") -> None:
        """Returns once the writer waits at the barrier."""

        async def waits() -> bool:
            waiting = "select count(*) from pg_stat_activity where datname = current_database()"
            return bool(await self.db.fetchval(f"{waiting} and wait_event_type = 'Lock' and query like $1", query_like))

        await until(waits)


async def until(holds: Callable[[], Awaitable[bool]], seconds: float = 90) -> None:
    """Returns once it holds; for what only shows itself from outside."""
    async with asyncio.timeout(seconds):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.01)


def lab_settings(dsn: str, folder: Path, **timing: float) -> Settings:
    timing = {"lease_seconds": 300, "sweep_seconds": 60, "margin_seconds": 0, "refresh_seconds": 0.2, **timing}
    return Settings(
        folder=folder,
        database=Database(url=dsn),  # type: ignore[arg-type]  # pydantic makes the secret of it
        identity=Identity(issuers=(development_issuer(folder),)),
        keys=Keys(master_file=folder / "master.key"),
        policy=open_policy(folder),
        timing=Timing(**timing),
        telemetry=Telemetry(),
    )


@asynccontextmanager
async def open_lab(
    dsn: str,
    folder: Path,
    *,
    clock: Clock | None = None,
    hooks: Sequence[LoadedHook] = (),
    tools: Sequence[PythonTool] = TOOLS,
    runs: Runs | None = None,
    **timing: float,
) -> AsyncIterator[Lab]:
    settings = lab_settings(dsn, folder, **timing)
    if runs is not None:
        settings = settings.model_copy(update={"runs": runs})
    db = await asyncpg.connect(dsn)
    try:
        async with open_gateway(settings, tools=tools, hooks=hooks, development=True, clock=clock) as gateway:
            assert not gateway.refused, [problem.details for problem in gateway.refused]
            yield Lab(gateway=gateway, folder=folder, dsn=dsn, db=db)
    finally:
        await db.close()


def body(outcome: Outcome) -> dict[str, Any]:
    read: dict[str, Any] = orjson.loads(outcome.body)
    return read


def slug(outcome: Outcome) -> str | None:
    return outcome.face.slug if outcome.face else None
