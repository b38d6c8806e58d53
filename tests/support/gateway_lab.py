"""Open a gateway without HTTP, call it as anyone, and look into its database."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import asyncpg
import orjson
import pytest

from deputize.app import open_gateway
from deputize.core.call import CallRequest
from deputize.core.caller import ADMIN_SCOPE, Caller
from deputize.core.clock import Clock
from deputize.core.contract.tools import ProjectTool
from deputize.core.hooks import LoadedHook
from deputize.core.outcome import Outcome
from deputize.core.settings import (
    BuiltinSettings,
    CodeSettings,
    DatabaseSettings,
    KeySettings,
    SandboxSettings,
    Settings,
    TelemetrySettings,
    TimingSettings,
)
from deputize.core.settings.limits import LimitSettings
from deputize.core.settings.runs import RunSettings
from deputize.govern.identity.dev_issuer import mint_dev_token
from deputize.lifecycle import claim
from deputize.lifecycle.authorize import authorize
from deputize.lifecycle.phases import Authorized
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.validate import validate
from deputize.operations.background.sweeper import Sweeper
from deputize.operations.gateway import Gateway
from tests.support.gateway_internals import get_lifecycle, get_runtime
from tests.support.operators import make_operator_identity
from tests.support.policies import open_policy
from tests.support.scripted_tools import TOOLS

SCOPES = ("lab:write",)
# Seconds that no test lasts.
NEVER = 3600.0
CLOSE_BARRIER = "select pg_advisory_xact_lock(deputize.barrier_key($1))"


@dataclass
class GatewayLab:
    """One gateway. Its sweeper sleeps: tests sweep when they mean to."""

    gateway: Gateway
    folder: Path
    dsn: str
    db: asyncpg.Connection
    _callers: dict[Any, Caller] = field(default_factory=dict)

    @cached_property
    def runtime(self) -> Runtime:
        return get_runtime(self.gateway)

    async def make_caller(
        self, user: str = "ana", *, scopes: Iterable[str] = SCOPES, tools: Mapping[str, str] | None = None, **more: Any
    ) -> Caller:
        named = (user, tuple(scopes), tuple((tools or {}).items()), tools is None, tuple(more.items()))
        if named not in self._callers:
            token = mint_dev_token(self.folder, subject=user, scopes=scopes, tools=tools, **more)
            self._callers[named] = await self.gateway.authenticate(f"Bearer {token}".encode())
        return self._callers[named]

    async def make_admin(self, user: str = "root") -> Caller:
        return await self.make_caller(user, scopes=(ADMIN_SCOPE,))

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
        return await self.gateway.run_call(by or await self.make_caller(), asked)

    async def authorize_call(self, tool: str, arguments: dict[str, Any]) -> Authorized:
        """A call where authorization leaves it, for tests of what comes next."""
        caller = await self.make_caller()
        request = CallRequest(tool=f"lab.{tool}", arguments=arguments)
        call = get_lifecycle(self.gateway)._receive(caller, request)
        authority = await self.runtime.authority.load_tenant(caller.tenant)
        return await authorize(self.runtime, validate(call, authority, self.runtime.metrics), authority)

    async def fetch_call(self, call_id: str) -> asyncpg.Record:
        found = await self.db.fetchrow("select * from deputize.calls where id = $1", call_id)
        assert found is not None
        return found

    async def fetch_state(self, call_id: str) -> str:
        return str((await self.fetch_call(call_id))["state"])

    async def wait_for_state(self, call_id: str, state: str) -> None:
        async def has_state() -> bool:
            return await self.fetch_state(call_id) == state

        await wait_until(has_state)

    async def fetch_entries(self, call_id: str) -> list[dict[str, Any]]:
        rows = await self.db.fetch("select entry from deputize.audit_entries where call_id = $1 order by id", call_id)
        return [orjson.loads(row["entry"]) for row in rows]

    async def fetch_entry_kinds(self, call_id: str) -> list[str]:
        return [entry["kind"] for entry in await self.fetch_entries(call_id)]

    async def has_claim(self, call_id: str) -> bool:
        return bool(await self.db.fetchval("select count(*) from deputize.claims where call_id = $1", call_id))

    async def find_running_call(self, tool: str, key: str | None = None) -> str:
        """The newest call of a tool that is still open."""
        found = await self.db.fetchval(
            "select id from deputize.calls where tool = $1 and state = 'running' order by id desc limit 1",
            f"lab.{tool}",
        )
        assert found is not None
        return str(found)

    async def expire_lease(self, other: "GatewayLab", call_id: str) -> None:
        """To everybody else the other gateway is dead, and the call's time is over."""
        await self.db.execute(
            "update deputize.leases set expires_at = now() - interval '1 hour' where boot = $1",
            other.runtime.lease.boot_id,
        )
        await self.db.execute(
            "update deputize.calls set deadline_at = now() - interval '1 hour' where id = $1", call_id
        )

    async def run_sweeper(self) -> int:
        return await Sweeper(self.runtime).mark_abandoned_calls()

    @asynccontextmanager
    async def hold_barrier(self, tenant: str = "dev") -> AsyncIterator[asyncpg.Connection]:
        """A transaction that holds the tenant's barrier; what is done in it counts once the block is left."""
        connection = await asyncpg.connect(self.dsn)
        try:
            async with connection.transaction():
                await connection.execute(CLOSE_BARRIER, tenant)
                yield connection
        finally:
            await connection.close()

    async def wait_for_blocked_query(self, query_like: str = "%deputize.commit_%") -> None:
        """Returns once the writer waits at the barrier."""

        async def is_blocked() -> bool:
            waiting = "select count(*) from pg_stat_activity where datname = current_database()"
            return bool(await self.db.fetchval(f"{waiting} and wait_event_type = 'Lock' and query like $1", query_like))

        await wait_until(is_blocked)


@contextmanager
def watch_joins() -> Iterator[asyncio.Event]:
    """An event that is set once a call has found another one that holds its key."""
    found, resolve_holder = asyncio.Event(), claim._resolve_holder

    async def note_holder(*positional: Any) -> Any:
        found.set()
        return await resolve_holder(*positional)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claim, "_resolve_holder", note_holder)
        yield found


async def wait_until(condition: Callable[[], Awaitable[bool]], seconds: float = 90) -> None:
    """Returns once it holds; for what only shows itself from outside."""
    async with asyncio.timeout(seconds):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)


def lab_settings(dsn: str, folder: Path, **timing: float) -> Settings:
    timing = {"lease_seconds": 300, "margin_seconds": 0, "refresh_seconds": 0.2, **timing}
    # Longer than settings may say, unless it is given: what tests sweep themselves is not swept behind their backs.
    sweep_seconds = timing.pop("sweep_seconds", NEVER)
    return Settings(
        folder=folder,
        database=DatabaseSettings(url=dsn),  # type: ignore[arg-type]  # pydantic makes the secret of it
        identity=make_operator_identity(folder),
        keys=KeySettings(master_file=folder / "master.key"),
        policy=open_policy(folder),
        timing=TimingSettings(**timing).model_copy(update={"sweep_seconds": sweep_seconds}),
        telemetry=TelemetrySettings(),
        # A supervisor of its own; programs run without one where the host of the tests starts no sandbox.
        sandboxes=SandboxSettings(folder=folder / "sandboxes", accept=("weak_limits", "unsandboxed_code")),
        # Tests perform acts faster than people do.
        limits=LimitSettings(admin_acts_per_second=10_000, admin_acts_at_once=10_000),
    )


@asynccontextmanager
async def open_lab(
    dsn: str,
    folder: Path,
    *,
    clock: Clock | None = None,
    hooks: Sequence[LoadedHook] = (),
    tools: Sequence[ProjectTool] = TOOLS,
    runs: RunSettings | None = None,
    code: CodeSettings | None = None,
    sandboxes: SandboxSettings | None = None,
    **timing: float,
) -> AsyncIterator[GatewayLab]:
    settings = lab_settings(dsn, folder, **timing)
    if runs is not None:
        settings = settings.model_copy(update={"runs": runs})
    if sandboxes is not None:
        settings = settings.model_copy(update={"sandboxes": sandboxes})
    if code is not None:
        settings = settings.model_copy(update={"builtin": BuiltinSettings(code=code)})
    db = await asyncpg.connect(dsn)
    try:
        async with open_gateway(settings, tools=tools, hooks=hooks, development=True, clock=clock) as gateway:
            assert not gateway.startup_problems, [problem.details for problem in gateway.startup_problems]
            yield GatewayLab(gateway=gateway, folder=folder, dsn=dsn, db=db)
    finally:
        await db.close()


def parse_body(outcome: Outcome) -> dict[str, Any]:
    read: dict[str, Any] = orjson.loads(outcome.body)
    return read


def error_slug(outcome: Outcome) -> str | None:
    return outcome.spec.slug if outcome.spec else None
