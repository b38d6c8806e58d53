"""A run that was accepted is carried to an end, whoever dies and whatever is lost, and by one owner at a time."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from deputize import ToolContext, tool
from deputize.app import open_worker
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.errors import Internal
from deputize.core.run_settings import Runs
from deputize.lifecycle import record
from deputize.lifecycle.phases import Authorized, Executed, Held, Verified
from deputize.lifecycle.resume import NotNow, take, waiting
from deputize.lifecycle.settle import settle
from deputize.lifecycle.worker import Worker
from deputize.store.queries import load
from proofs.kit.pgproxy import PgProxy
from tests.integration.lifecycle.lab import Lab, open_lab, slug, until
from tests.integration.lifecycle.tools import TOOLS, WRITES, Gate, Tag, effects_of, on

pytestmark = [pytest.mark.requirement("NEW-3"), pytest.mark.requirement("INV-4")]

_HANDOUTS = (
    "select status, executor_id from dbos.workflow_status where workflow_uuid like $1 || '%' order by created_at"
)


@asynccontextmanager
async def working(dsn: str, folder: Path, **more: Any) -> AsyncIterator[tuple[Lab, Worker]]:
    runs = Runs(poll_seconds=0.05, drain_seconds=more.pop("drain_seconds", 1), **more.pop("runs", {}))
    timing = {"lease_seconds": 10, "sweep_seconds": 0.1, **more.pop("timing", {})}
    async with open_lab(dsn, folder, runs=runs, **timing, **more) as lab, open_worker(lab.gateway) as worker:
        yield lab, worker


async def run(lab: Lab, tool_name: str, tag: str, key: str, **request: Any) -> str:
    outcome = await lab.call(tool_name, tag, key=key, mode="async", **request)
    assert outcome.http_status == 202, outcome.body
    return outcome.call_id


async def begun(lab: Lab, call_id: str) -> tuple[Authorized, Held]:
    """As a worker begins it that gets no further."""
    found = await waiting(lab.rooms, "dev", call_id)
    assert found is not None
    taken = await take(lab.rooms, found)
    assert taken is not None
    return taken


async def is_dead(lab: Lab, other: Lab) -> None:
    await lab.db.execute(
        "update deputize.leases set expires_at = now() - interval '1 hour' where boot = $1", other.rooms.lease.boot
    )


async def test_what_a_dead_process_began_is_gone_on_with_under_the_next_epoch(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_lab(fresh_database, tmp_path) as dead:
        call = await run(dead, "put", "dead-put", "k")
        await begun(dead, call)
        await is_dead(dead, dead)
        async with working(fresh_database, tmp_path) as (lab, _):
            await lab.until_state(call, "succeeded")
            assert [effect.key for effect in effects_of("dead-put")] == [call]
            assert (await lab.row(call))["owner_epoch"] == 2
            assert await lab.kinds(call) == ["intent", "intent", "intent", "outcome"]


async def test_what_may_have_acted_is_not_repeated_and_a_late_outcome_settles_it(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_lab(fresh_database, tmp_path) as away:
        call = await run(away, "note", "dead-note", "k")
        authorized, held = await begun(away, call)
        await is_dead(away, away)
        async with working(fresh_database, tmp_path) as (lab, _):
            await lab.until_state(call, "unknown")
            assert effects_of("dead-note") == []
            # It was only away: what it knows is still the truth, and nobody else held the call since.
            executed = Executed(
                authorized=authorized, held=held, output={"value": "x"}, problem=None, attempts=1, seconds=0.1
            )
            verified = Verified(executed=executed, problem=None, payload={"value": "x"}, canonical=b"{}")
            assert (await settle(away.rooms, verified)).state == "succeeded"
            assert await lab.state(call) == "succeeded"


async def test_an_outcome_from_before_a_takeover_does_not_count(fresh_database: str, tmp_path: Path) -> None:
    gate = Gate({"value": "second"})
    on("zombie", gate)
    async with open_lab(fresh_database, tmp_path) as away:
        call = await run(away, "put", "zombie", "k")
        authorized, held = await begun(away, call)
        await is_dead(away, away)
        async with working(fresh_database, tmp_path) as (lab, _):
            await gate.began.wait()
            late = await away.rooms.writer.put(record.lost(away.rooms, authorized, held))
            assert not late.closed
            gate.open.set()
            await lab.until_state(call, "succeeded")


async def test_a_run_that_somebody_alive_has_is_handed_out_again_later(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path) as alive:
        call = await run(alive, "put", "alive", "k")
        await begun(alive, call)
        async with working(fresh_database, tmp_path) as (lab, _):

            async def is_put_back() -> bool:
                return any(row["status"] == "DELAYED" for row in await lab.db.fetch(_HANDOUTS, call))

            await until(is_put_back)
            assert effects_of("alive") == []
            await is_dead(lab, alive)
            await lab.until_state(call, "succeeded")
            assert len(effects_of("alive")) == 1


async def test_a_run_handed_out_twice_is_begun_once(fresh_database: str, tmp_path: Path) -> None:
    async with working(fresh_database, tmp_path) as (lab, _):
        gate = Gate()
        on("twice", gate)
        call = await run(lab, "note", "twice", "k")
        for _ in range(5):
            await lab.db.execute("select deputize.enqueue_run('dev', $1, 5)", call)
        await gate.began.wait()
        await asyncio.sleep(0.3)
        gate.open.set()
        await lab.until_state(call, "succeeded")
        await asyncio.sleep(0.3)
        assert len(effects_of("twice")) == 1
        assert (await lab.row(call))["owner_epoch"] == 1


@asynccontextmanager
async def behind_a_proxy(dsn: str, folder: Path) -> AsyncIterator[tuple[Lab, PgProxy]]:
    """The proxy has a loop of its own: a worker that starts waits for the database with the whole of this one."""
    loop, opened = asyncio.new_event_loop(), PgProxy(dsn)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        proxy = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop))
        async with working(proxy.dsn, folder) as (lab, _):
            yield lab, proxy
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(proxy.__aexit__(), loop))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


async def ends_well(dsn: str, call_id: str) -> asyncpg.Record:
    """Looked at past the proxy, which cuts every connection."""
    db = await asyncpg.connect(dsn)
    try:

        async def is_done() -> bool:
            return bool(await db.fetchval("select state = 'succeeded' from deputize.calls where id = $1", call_id))

        await until(is_done, 20)
        row = await db.fetchrow(
            "select owner_epoch, (select count(*) from deputize.runs) as runs, "
            "(select count(*) from deputize.audit_entries where call_id = $1) as entries "
            "from deputize.calls where id = $1",
            call_id,
        )
        assert row is not None
        return row
    finally:
        await db.close()


async def test_a_lost_answer_to_queueing_leaves_one_run(fresh_database: str, tmp_path: Path) -> None:
    async with behind_a_proxy(fresh_database, tmp_path) as (lab, proxy):
        armed = proxy.arm(lambda sql: "deputize.queue_runs" in sql, 1, "after_commit_before_ack", proxy.cut)
        call = await run(lab, "note", "unheard", "k")
        assert armed.fired
        again = await lab.call("note", "unheard", key="k", mode="async")
        assert again.call_id == call
        assert (await ends_well(fresh_database, call))["runs"] == 1
        assert len(effects_of("unheard")) == 1


async def test_a_lost_answer_to_beginning_is_found_out_and_the_run_goes_on(fresh_database: str, tmp_path: Path) -> None:
    async with behind_a_proxy(fresh_database, tmp_path) as (lab, proxy):
        armed = proxy.arm(lambda sql: "deputize.begin_runs" in sql, 1, "after_commit_before_ack", proxy.cut)
        call = await run(lab, "note", "unheard-begin", "k")
        row = await ends_well(fresh_database, call)
        assert armed.fired
        assert (row["owner_epoch"], row["entries"]) == (1, 3)
        assert len(effects_of("unheard-begin")) == 1


async def test_what_the_engine_lost_between_claim_and_start_is_found_astray(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_lab(fresh_database, tmp_path) as submitting:
        call = await run(submitting, "note", "astray", "k")
    async with working(fresh_database, tmp_path) as (lab, _):
        # Claimed for this very process, which never heard of it.
        await lab.db.execute(
            "update dbos.workflow_status set status = 'PENDING', executor_id = $2 where workflow_uuid = $1",
            call, lab.rooms.lease.boot,
        )  # fmt: skip
        await lab.until_state(call, "succeeded")
        assert len(effects_of("astray")) == 1


async def test_every_run_of_a_dead_worker_is_handed_out_again(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path) as dead:
        calls = [await run(dead, "put", f"many-{number}", f"k{number}") for number in range(40)]
        boot = dead.rooms.lease.boot
        await dead.db.execute("insert into deputize.workers (boot, release) values ($1, '0')", boot)
        await dead.db.execute("update dbos.workflow_status set status = 'PENDING', executor_id = $1", boot)
        await is_dead(dead, dead)
        async with working(fresh_database, tmp_path) as (lab, _):
            for call in calls:
                await lab.until_state(call, "succeeded")
            assert await lab.db.fetchval("select count(*) from deputize.workers where boot = $1", boot) == 0


async def test_a_run_that_outlives_too_many_workers_is_given_up(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path) as dead:
        call = await run(dead, "put", "poison", "k")
        await begun(dead, call)
        await is_dead(dead, dead)
        await dead.db.execute("update deputize.runs set takeovers = 2 where id = $1", call)
        async with working(fresh_database, tmp_path, runs={"most_takeovers": 2}) as (lab, _):
            await lab.until_state(call, "unknown")
            assert (await lab.row(call))["error"] == "given-up"
            assert effects_of("poison") == []


async def test_ended_runs_are_forgotten_by_the_engine(fresh_database: str, tmp_path: Path) -> None:
    async with working(fresh_database, tmp_path) as (lab, _):
        for number in range(5):
            await run(lab, "note", f"forget-{number}", f"k{number}")

        async def is_empty() -> bool:
            return not await lab.db.fetchval("select count(*) from dbos.workflow_status")

        await until(is_empty, 20)


async def test_a_worker_without_the_tool_leaves_it_to_others_and_in_the_end_says_so(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_lab(fresh_database, tmp_path) as submitting:
        call = await run(submitting, "note", "elsewhere", "k")
        without = [each for each in TOOLS if each.contract.name != "note"]
        async with working(fresh_database, tmp_path, tools=without) as (lab, _):

            async def is_put_back() -> bool:
                return bool(await lab.db.fetchval("select unable_since from deputize.runs where id = $1", call))

            await until(is_put_back)
            assert await lab.state(call) == "queued"
        async with working(fresh_database, tmp_path, tools=without, runs={"unable_seconds": 0}) as (lab, _):
            await lab.until_state(call, "blocked")
            assert (await lab.row(call))["error"] == "requires-setup"
            assert effects_of("elsewhere") == []


async def test_a_worker_that_may_be_dead_to_others_hands_a_run_back_untouched(
    fresh_database: str, tmp_path: Path
) -> None:
    labs: list[Lab] = []
    lapses = [True, False]

    async def lapse(tag: str) -> None:
        if lapses.pop(0):
            lease = labs[0].rooms.lease
            assert lease._task is not None
            lease._task.cancel()
            lease._good_until = float("-inf")

    @tool(effects="write", resources=["create lab.notes/{tag}"], idempotency="cannot", validate=lapse, **WRITES)
    async def lapsing(tag: Tag, context: ToolContext) -> dict[str, Any]:
        """Write a note, from a worker whose lease ends just before."""
        return {"value": str(context.attempt)}

    tools = [*TOOLS, getattr(lapsing, ATTRIBUTE)]
    async with working(fresh_database, tmp_path, tools=tools) as (lab, _):
        labs.append(lab)
        call = await run(lab, "lapsing", "lapse", "k")

        async def is_back() -> bool:
            return bool(await lab.db.fetchval("select untouched = 1 from deputize.runs where id = $1", call))

        await until(is_back)
        assert await lab.state(call) == "queued"
        await lab.rooms.lease.start()
        await lab.until_state(call, "succeeded")
        assert ((await lab.row(call))["owner_epoch"], lapses) == (2, [])


async def test_a_worker_that_stops_leaves_what_does_not_end_to_the_next(fresh_database: str, tmp_path: Path) -> None:
    gate = Gate()
    on("drained", gate)
    async with working(fresh_database, tmp_path, drain_seconds=0) as (lab, _):
        call = await run(lab, "put", "drained", "k")
        await gate.began.wait()
    gate.open.set()
    async with working(fresh_database, tmp_path) as (lab, _):
        await lab.until_state(call, "succeeded")
        assert (await lab.row(call))["owner_epoch"] == 2
        assert len(effects_of("drained")) == 2


async def test_a_fault_of_ours_does_not_lose_the_run(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(fresh_database, tmp_path) as (lab, worker):
        faults = [
            RuntimeError("broken"), OSError("away"), NotNow("later", seconds=0.01), Internal("not as it is"),
        ]  # fmt: skip
        real: Callable[..., Awaitable[None]] = lab.gateway.lifecycle.resume

        async def resume(*positional: Any) -> None:
            if faults:
                raise faults.pop()
            await real(*positional)

        monkeypatch.setattr("deputize.lifecycle.worker._BROKEN_SECONDS", 0.01)
        monkeypatch.setattr(lab.gateway.lifecycle, "resume", resume)
        call = await run(lab, "note", "faults", "k")
        await lab.until_state(call, "succeeded")
        assert worker.alive
        assert len(effects_of("faults")) == 1


async def test_whoever_cannot_be_queued_now_is_told_so(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path) as lab:
        lab.rooms.queue.down = "PostgreSQL does not answer (for this test)"
        outcome = await lab.call("note", "nowhere", key="k", mode="async")
        assert (outcome.http_status, slug(outcome)) == (503, "unavailable")
        lab.rooms.queue.down = None
        assert (await lab.call("note", "nowhere", key="k", mode="async")).http_status == 202


async def test_tenants_that_wait_are_counted_by_steps_of_an_index(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path) as lab:
        counted = load("runs")["tenants_that_wait"]
        assert await lab.db.fetchval(counted, 20) == 0
        for number in range(3):
            await run(lab, "note", f"waits-{number}", f"k{number}")
        # Six more tenants with a run like that.
        await lab.db.execute("create temporary table like_it as select * from deputize.calls limit 1")
        for number in range(6):
            await lab.db.execute("update like_it set tenant = $1", f"t{number}")
            await lab.db.execute("insert into deputize.calls select * from like_it")
        assert await lab.db.fetchval(counted, 20) == 7
        assert await lab.db.fetchval(counted, 4) == 4


async def test_a_run_whose_input_was_deleted_or_cannot_be_opened_ends_and_says_so(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_lab(fresh_database, tmp_path) as lab:
        gone = await run(lab, "note", "deleted", "k1")
        broken = await run(lab, "note", "tampered", "k2")
        await lab.db.execute("delete from deputize.sealed where id = $1", gone)
        await lab.db.execute("update deputize.sealed set box = 'nonsense' where id = $1", broken)
    async with working(fresh_database, tmp_path) as (lab, _):
        for call in (gone, broken):

            async def has_ended(call: str = call) -> bool:
                return bool((await lab.row(call))["error"] == "seal-broken")

            await until(has_ended)
        assert effects_of("deleted") == effects_of("tampered") == []
