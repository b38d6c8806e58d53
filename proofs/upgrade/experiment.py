"""An upgrade from the release before, a migration that fails, and a rollback, all behind HAProxy and under load.

Gateways and workers are exchanged one after another, as the page about upgrades says, while calls come in, runs are
open and people are asked. What was acknowledged has to succeed once, whichever release began it and whichever ended it.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version

import asyncpg

from deputize.core.clock import Clock
from deputize.store.local_postgres import LocalPostgres
from proofs.approvals.identities import Identities
from proofs.kit.balancer import DRAIN_SECONDS, SETTLE_SECONDS, start_balancer
from proofs.kit.child_process import ChildProcess, CommandResult
from proofs.kit.gateway import GatewayHandle, start_gateway, start_worker
from proofs.kit.gateway_login import create_gateway_login
from proofs.kit.helper_servers import LedgerHandle, start_ledger
from proofs.kit.previous_release import MIGRATE_SCRIPT, PREVIOUS_VERSION, extract_previous_release
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox
from proofs.kit.worker_pool import Database
from proofs.kit.write_load import Load, run_load
from proofs.upgrade.judge import UpgradeFacts, judge_upgrade
from proofs.upgrade.open_work import POLICIES, SETTINGS, OpenWork

NAME = "upgrade"
PROMISE = "An upgrade, a migration that fails and a rollback, under load, fail no call, lose none and repeat none."

_CALLS_PER_SECOND = 60
_CALLERS = 12
_APPROVALS_OF_A_STEP = 4
_ARE_ALIVE = "select array_agg(distinct release) = array[$1] from deputize.leases where expires_at > now()"
_ALL_ENDED = """
select not exists (
    select from deputize.calls
    where id = any($1::uuid[]) and state in ('queued', 'running', 'awaiting_approval')
)
"""
_STATES = "select id, state from deputize.calls where id = any($1::uuid[])"
_COUNT_OPEN = "select count(*) from deputize.calls where id = any($1::uuid[]) and state in ('queued', 'running')"
# The balancer tries three times more to reach a gateway that is gone, a second apart.
_RETRY_SECONDS = 5


@dataclass(kw_only=True, slots=True)
class Testbed:
    sandbox: Sandbox
    postgres: LocalPostgres
    database: Database
    ledger: LedgerHandle
    people: Identities
    gateways: tuple[GatewayHandle, GatewayHandle]
    worker: ChildProcess
    previous_env: dict[str, str]
    url: str

    async def migrate(self) -> CommandResult:
        """Run `deputize migrate` of this release."""
        env = {"DEPUTIZE_DATABASE__MIGRATION_URL": self.postgres.dsn}
        command = [sys.executable, "-m", "deputize", "migrate"]
        return await self.sandbox.run_command(command, cwd=self.gateways[0].folder, env=env)

    async def exchange_processes(self, *, previous: bool) -> None:
        """Replace gateways, then the worker, by those of this release or of the one before."""
        for gateway in self.gateways:
            if previous:
                gateway.env |= self.previous_env
            else:
                gateway.env = {name: value for name, value in gateway.env.items() if name not in self.previous_env}
            await gateway.restart()
            await asyncio.sleep(SETTLE_SECONDS)
        stopped, self.worker = self.worker, await start_worker(self.gateways[0])
        await stopped.stop()
        release = PREVIOUS_VERSION if previous else version("deputize")
        await self.database.wait_until(_ARE_ALIVE, release, seconds=60)


async def prove(sandbox: Sandbox) -> Verdict:
    testbed = await _start_testbed(sandbox)
    figures = await _exchange_releases(testbed, sandbox.pick_size(quick=1, full=5))
    killed = await _kill_without_drain(testbed)
    return Verdict(
        figures=figures,
        controls={"a gateway killed without a drain": bool(killed.failures)},
        notes=[
            f"The releases are {PREVIOUS_VERSION} and {version('deputize')}. The migration that fails waits for a lock "
            "on the calls, as behind a long report or a dump; calls wait with it.",
        ],
    )


async def _start_testbed(sandbox: Sandbox) -> Testbed:
    """Start the release before, on its own schema."""
    previous_env = extract_previous_release(sandbox.folder)
    postgres, ledger, people = await sandbox.start_postgres(), await start_ledger(sandbox), Identities()
    migration = await sandbox.run_command([sys.executable, "-c", MIGRATE_SCRIPT, postgres.dsn], env=previous_env)
    if migration.code:
        raise RuntimeError(f"{PREVIOUS_VERSION} did not migrate: {migration.stderr[-500:]}")
    await create_gateway_login(postgres.dsn)
    # Preparing a gateway migrates only where there is no key.
    key = sandbox.folder / "master.key"
    key.touch(mode=0o600)
    key.write_bytes(Clock().random_bytes(32))
    keys = sandbox.folder / "people.jwks.json"
    keys.write_text(people.people_issuer.render_jwks())
    env = {"PROOF_LEDGER": ledger.url, "DEPUTIZE_SERVER__DRAIN_SECONDS": str(DRAIN_SECONDS), **previous_env}
    first, second = [
        await start_gateway(
            sandbox, postgres.dsn, people.program_issuer, name=name, tools="effects.py", env=env, policies=POLICIES,
            settings=SETTINGS + people.render_settings(str(keys)),
        )
        for name in ("a", "b")
    ]  # fmt: skip
    database = Database(postgres.dsn)
    sandbox.add_cleanup(database.close)
    return Testbed(
        sandbox=sandbox, postgres=postgres, database=database, ledger=ledger, people=people, gateways=(first, second),
        worker=await start_worker(first), previous_env=previous_env, url=await start_balancer(sandbox, (first, second)),
    )  # fmt: skip


async def _exchange_releases(testbed: Testbed, rounds: int) -> dict[str, int | float | str]:
    """Fail to migrate, migrate, then upgrade and go back so many times; judge all that was begun meanwhile."""

    async def upgrade() -> None:
        await testbed.exchange_processes(previous=False)

    async def go_back() -> None:
        await testbed.exchange_processes(previous=True)

    steps: list[tuple[str, Callable[[], Awaitable[None]]]] = [
        ("failing migration", lambda: _fail_to_migrate(testbed)),
        ("migration", lambda: _migrate(testbed)),
        *[("upgrade", upgrade), ("rollback", go_back)] * rounds,
    ]
    work = OpenWork(url=testbed.url, people=testbed.people)
    await work.request_approvals("throughout", _APPROVALS_OF_A_STEP)
    open_counts = []
    token = testbed.people.issue_caller_token("writer")
    began = time.monotonic()
    async with (
        run_load([testbed.url], token, name="calls", callers=_CALLERS, per_second=_CALLS_PER_SECOND) as load,
        work.begin_runs(),
    ):
        await asyncio.sleep(SETTLE_SECONDS)
        for number, (name, step) in enumerate(steps):
            await work.request_approvals(f"before-{number}", _APPROVALS_OF_A_STEP)
            open_runs = await testbed.database.fetch_value(_COUNT_OPEN, list(work.runs.values()))
            assert isinstance(open_runs, int)
            open_counts.append((open_runs, len(work.undecided)))
            failures, step_began = load.failures.total() + work.failures.total(), time.monotonic()
            await step()
            failures = load.failures.total() + work.failures.total() - failures
            testbed.sandbox.log(f"{name}: {time.monotonic() - step_began:.1f} s, {failures} failed")
            await work.approve([each for each in work.undecided if each.startswith("before-")])
            await asyncio.sleep(SETTLE_SECONDS)
        seconds = time.monotonic() - began
    await work.approve(list(work.undecided))
    ids = [*load.call_ids, *work.runs.values(), *work.approvals.values()]
    await testbed.database.wait_until(_ALL_ENDED, ids, seconds=120)
    states = {str(row["id"]): str(row["state"]) for row in await testbed.database.fetch(_STATES, ids)}
    facts = UpgradeFacts(
        load=load, seconds=seconds, runs=work.runs, approvals=work.approvals, other_failures=work.failures,
        states=states, open_counts=open_counts,
    )  # fmt: skip
    testbed.sandbox.log(f"failed calls {dict(load.failures)}, other failures {dict(work.failures)}")
    return judge_upgrade(facts, await testbed.ledger.list_effects())


async def _fail_to_migrate(testbed: Testbed) -> None:
    """Migrate while a transaction reads the calls: the migration gives up after some seconds, and calls go on."""
    reader: asyncpg.Connection = await asyncpg.connect(testbed.postgres.dsn)
    try:
        async with reader.transaction():
            await reader.execute("lock table deputize.calls in access share mode")
            result = await testbed.migrate()
    finally:
        await reader.close()
    if not result.code:
        raise RuntimeError("the migration that should fail did not")
    testbed.sandbox.log(f"deputize migrate: {(result.stdout + result.stderr).strip().splitlines()[-1][:200]}")


async def _migrate(testbed: Testbed) -> None:
    result = await testbed.migrate()
    if result.code:
        raise RuntimeError(f"not migrated: {result.stdout[-500:]} {result.stderr[-500:]}")


async def _kill_without_drain(testbed: Testbed) -> Load:
    """Kill a gateway under the same load: calls that it was at, or that the balancer still sends there, fail."""
    token = testbed.people.issue_caller_token("writer")
    async with run_load([testbed.url], token, name="killed", callers=_CALLERS) as load:
        await asyncio.sleep(SETTLE_SECONDS)
        testbed.gateways[0].child.kill()
        await asyncio.sleep(_RETRY_SECONDS)
    testbed.sandbox.log(f"killed without a drain: {load.count} calls, {dict(load.failures) or 'none'} failed")
    return load
