"""A run that was accepted is carried to an end, anyone who dies and whatever is lost, and by one owner at a time."""

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
from deputize.core.errors import InternalError
from deputize.core.settings.runs import RunSettings
from deputize.lifecycle.durable.resume import RunNotReady, claim_run, load_pending_run
from deputize.lifecycle.phases import Authorized, Claim, Executed, Verified
from deputize.lifecycle.recording import audit
from deputize.lifecycle.reply import reply
from deputize.operations.background.worker import Worker
from deputize.store.commit_rows import BeginRunRow
from deputize.store.queries import load_statements
from proofs.kit.postgres_proxy import PgProxy
from tests.support.gateway_internals import get_lifecycle
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, wait_until
from tests.support.scripted_tools import TOOLS, WRITE_OPTIONS, Gate, Tag, list_effects, set_behaviour

pytestmark = [pytest.mark.requirement("NEW-3"), pytest.mark.requirement("INV-4")]

_HANDOUTS = (
    "select status, executor_id from dbos.workflow_status where workflow_uuid like $1 || '%' order by created_at"
)


@asynccontextmanager
async def open_worker_lab(dsn: str, folder: Path, **more: Any) -> AsyncIterator[tuple[GatewayLab, Worker]]:
    runs = RunSettings(poll_seconds=0.05, drain_seconds=more.pop("drain_seconds", 1), **more.pop("runs", {}))
    timing = {"lease_seconds": 60, "sweep_seconds": 0.1, **more.pop("timing", {})}
    async with open_lab(dsn, folder, runs=runs, **timing, **more) as lab, open_worker(lab.gateway) as worker:
        yield lab, worker


async def start_run(lab: GatewayLab, tool_name: str, tag: str, key: str, **request: Any) -> str:
    outcome = await lab.call(tool_name, tag, key=key, mode="async", **request)
    assert outcome.http_status == 202, outcome.body
    return outcome.call_id


async def begin_run(lab: GatewayLab, call_id: str) -> tuple[Authorized, Claim]:
    """As a worker begins it that gets no further."""
    found = await load_pending_run(lab.runtime, "dev", call_id)
    assert found is not None
    taken = await claim_run(lab.runtime, found)
    assert taken is not None
    return taken.authorized, taken.claim


async def expire_lease(lab: GatewayLab, other: GatewayLab) -> None:
    await lab.db.execute(
        "update deputize.leases set expires_at = now() - interval '1 hour' where boot = $1", other.runtime.lease.boot_id
    )


async def test_what_a_dead_process_began_is_gone_on_with_under_the_next_epoch(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_lab(fresh_database, tmp_path) as dead:
        call = await start_run(dead, "put", "dead-put", "k")
        await begin_run(dead, call)
        await expire_lease(dead, dead)
        async with open_worker_lab(fresh_database, tmp_path) as (lab, _):
            await lab.wait_for_state(call, "succeeded")
            assert [effect.key for effect in list_effects("dead-put")] == [call]
            assert (await lab.fetch_call(call))["owner_epoch"] == 2
            kinds = await lab.fetch_entry_kinds(call)
            # A sweep may have called it unknown before the worker went on with it, which is an outcome of its own.
            assert (kinds.count("intent"), kinds[-2:]) == (3, ["intent", "outcome"])


async def test_what_may_have_acted_is_not_repeated_and_a_late_outcome_settles_it(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_lab(fresh_database, tmp_path) as away:
        call = await start_run(away, "note", "dead-note", "k")
        authorized, held = await begin_run(away, call)
        await expire_lease(away, away)
        async with open_worker_lab(fresh_database, tmp_path) as (lab, _):
            await lab.wait_for_state(call, "unknown")
            assert list_effects("dead-note") == []
            # It was only away: what it knows is still the truth, and nobody else held the call since.
            executed = Executed(
                authorized=authorized, claim=held, output={"value": "x"}, problem=None, attempts=1, seconds=0.1
            )
            verified = Verified(executed=executed, problem=None, payload={"value": "x"}, canonical=b"{}")
            assert (await reply(away.runtime, verified)).state == "succeeded"
            assert await lab.fetch_state(call) == "succeeded"


async def test_of_attempts_to_begin_a_run_in_one_commit_exactly_one_owns_it(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_lab(fresh_database, tmp_path) as lab:
        call, clock = await start_run(lab, "put", "begun-twice", "k"), lab.runtime.clock
        rows = [BeginRunRow("dev", call, 0, 5.0, 0.0, clock.new_id(), b"{}", None, ()) for _ in range(3)]
        commits = await asyncio.gather(*map(lab.runtime.queue.put, rows))
        assert sorted(str(each.begin_result) for each in commits) == ["begun", "busy", "busy"]


async def test_an_outcome_from_before_a_takeover_does_not_count(fresh_database: str, tmp_path: Path) -> None:
    gate = Gate({"value": "second"})
    set_behaviour("zombie", gate)
    async with open_lab(fresh_database, tmp_path) as away:
        call = await start_run(away, "put", "zombie", "k")
        authorized, held = await begin_run(away, call)
        await expire_lease(away, away)
        async with open_worker_lab(fresh_database, tmp_path) as (lab, _):
            await gate.began.wait()
            late = await away.runtime.writer.put(audit.build_lost_row(away.runtime, authorized, held))
            assert not late.is_closed
            gate.open.set()
            await lab.wait_for_state(call, "succeeded")


@pytest.mark.nightly
async def test_a_run_that_somebody_alive_has_is_handed_out_again_later(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path) as alive:
        call = await start_run(alive, "put", "alive", "k")
        await begin_run(alive, call)
        async with open_worker_lab(fresh_database, tmp_path) as (lab, _):

            async def is_put_back() -> bool:
                return any(row["status"] == "DELAYED" for row in await lab.db.fetch(_HANDOUTS, call))

            await wait_until(is_put_back)
            assert list_effects("alive") == []
            await expire_lease(lab, alive)
            await lab.wait_for_state(call, "succeeded")
            assert len(list_effects("alive")) == 1


async def test_a_run_handed_out_twice_is_begun_once(fresh_database: str, tmp_path: Path) -> None:
    async with open_worker_lab(fresh_database, tmp_path) as (lab, _):
        gate = Gate()
        set_behaviour("twice", gate)
        call = await start_run(lab, "note", "twice", "k")
        for _ in range(5):
            await lab.db.execute("select deputize.enqueue_run('dev', $1, 5)", call)
        await gate.began.wait()
        await asyncio.sleep(0.3)
        gate.open.set()
        await lab.wait_for_state(call, "succeeded")
        await asyncio.sleep(0.3)
        assert len(list_effects("twice")) == 1
        assert (await lab.fetch_call(call))["owner_epoch"] == 1


@asynccontextmanager
async def open_lab_behind_proxy(dsn: str, folder: Path) -> AsyncIterator[tuple[GatewayLab, PgProxy]]:
    """The proxy has a loop of its own: a worker that starts waits for the database with the whole of this one."""
    loop, opened = asyncio.new_event_loop(), PgProxy(dsn)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        proxy = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop))
        async with open_worker_lab(proxy.dsn, folder) as (lab, _):
            yield lab, proxy
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(proxy.__aexit__(), loop))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


async def wait_for_success(dsn: str, call_id: str) -> asyncpg.Record:
    """Looked at past the proxy, which cuts every connection."""
    db = await asyncpg.connect(dsn)
    try:

        async def is_done() -> bool:
            return bool(await db.fetchval("select state = 'succeeded' from deputize.calls where id = $1", call_id))

        await wait_until(is_done)
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
    async with open_lab_behind_proxy(fresh_database, tmp_path) as (lab, proxy):
        armed = proxy.arm(
            lambda sql: "deputize.queue_runs" in sql, 1, "after_commit_before_ack", proxy.close_connections
        )
        call = await start_run(lab, "note", "unheard", "k")
        assert armed.has_fired
        again = await lab.call("note", "unheard", key="k", mode="async")
        assert again.call_id == call
        assert (await wait_for_success(fresh_database, call))["runs"] == 1
        assert len(list_effects("unheard")) == 1


async def test_a_lost_answer_to_beginning_is_found_out_and_the_run_goes_on(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab_behind_proxy(fresh_database, tmp_path) as (lab, proxy):
        armed = proxy.arm(
            lambda sql: "deputize.begin_runs" in sql, 1, "after_commit_before_ack", proxy.close_connections
        )
        call = await start_run(lab, "note", "unheard-begin", "k")
        row = await wait_for_success(fresh_database, call)
        assert armed.has_fired
        assert (row["owner_epoch"], row["entries"]) == (1, 3)
        assert len(list_effects("unheard-begin")) == 1


async def test_what_the_engine_lost_between_claim_and_start_is_found_astray(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_lab(fresh_database, tmp_path) as submitting:
        call = await start_run(submitting, "note", "astray", "k")
    async with open_worker_lab(fresh_database, tmp_path) as (lab, _):
        # Claimed for this very process, which never heard of it.
        await lab.db.execute(
            "update dbos.workflow_status set status = 'PENDING', executor_id = $2 where workflow_uuid = $1",
            call, lab.runtime.lease.boot_id,
        )  # fmt: skip
        await lab.wait_for_state(call, "succeeded")
        assert len(list_effects("astray")) == 1


async def test_every_run_of_a_dead_worker_is_handed_out_again(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path) as dead:
        calls = [await start_run(dead, "put", f"many-{number}", f"k{number}") for number in range(40)]
        boot = dead.runtime.lease.boot_id
        await dead.db.execute("insert into deputize.workers (boot, release) values ($1, '0')", boot)
        await dead.db.execute("update dbos.workflow_status set status = 'PENDING', executor_id = $1", boot)
        await expire_lease(dead, dead)
        async with open_worker_lab(fresh_database, tmp_path) as (lab, _):
            for call in calls:
                await lab.wait_for_state(call, "succeeded")
            assert await lab.db.fetchval("select count(*) from deputize.workers where boot = $1", boot) == 0


async def test_a_run_that_outlives_too_many_workers_is_given_up(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path) as dead:
        call = await start_run(dead, "put", "poison", "k")
        await begin_run(dead, call)
        await expire_lease(dead, dead)
        await dead.db.execute("update deputize.runs set takeovers = 2 where id = $1", call)
        async with open_worker_lab(fresh_database, tmp_path, runs={"most_takeovers": 2}) as (lab, _):
            await lab.wait_for_state(call, "unknown")
            assert (await lab.fetch_call(call))["error"] == "given-up"
            assert list_effects("poison") == []


async def test_ended_runs_are_forgotten_by_the_engine(fresh_database: str, tmp_path: Path) -> None:
    async with open_worker_lab(fresh_database, tmp_path) as (lab, _):
        for number in range(5):
            await start_run(lab, "note", f"forget-{number}", f"k{number}")

        async def is_empty() -> bool:
            return not await lab.db.fetchval("select count(*) from dbos.workflow_status")

        await wait_until(is_empty)


async def test_a_worker_without_the_tool_leaves_it_to_others_and_in_the_end_says_so(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_lab(fresh_database, tmp_path) as submitting:
        call = await start_run(submitting, "note", "elsewhere", "k")
        without = [each for each in TOOLS if each.contract.name != "note"]
        async with open_worker_lab(fresh_database, tmp_path, tools=without) as (lab, _):

            async def is_put_back() -> bool:
                return bool(await lab.db.fetchval("select unable_since from deputize.runs where id = $1", call))

            await wait_until(is_put_back)
            assert await lab.fetch_state(call) == "queued"
        async with open_worker_lab(fresh_database, tmp_path, tools=without, runs={"unable_seconds": 0}) as (lab, _):
            await lab.wait_for_state(call, "blocked")
            assert (await lab.fetch_call(call))["error"] == "requires-setup"
            assert list_effects("elsewhere") == []


async def test_a_worker_that_may_be_dead_to_others_hands_a_run_back_untouched(
    fresh_database: str, tmp_path: Path
) -> None:
    labs: list[GatewayLab] = []
    lapses = [True, False]

    async def lapse(tag: str) -> None:
        if lapses.pop(0):
            lease = labs[0].runtime.lease
            assert lease._task is not None
            lease._task.cancel()
            lease._valid_until = float("-inf")

    @tool(effects="write", resources=["create lab.notes/{tag}"], idempotency="cannot", validate=lapse, **WRITE_OPTIONS)
    async def lapsing(tag: Tag, context: ToolContext) -> dict[str, Any]:
        """Write a note, from a worker whose lease ends just before."""
        return {"value": str(context.attempt)}

    tools = [*TOOLS, getattr(lapsing, ATTRIBUTE)]
    # After a lapse it waits for half of a lease before it takes anything over.
    async with open_worker_lab(fresh_database, tmp_path, tools=tools, timing={"lease_seconds": 10}) as (lab, _):
        labs.append(lab)
        call = await start_run(lab, "lapsing", "lapse", "k")

        async def is_back() -> bool:
            return bool(await lab.db.fetchval("select untouched_epoch = 1 from deputize.runs where id = $1", call))

        await wait_until(is_back)
        assert await lab.fetch_state(call) == "queued"
        await lab.runtime.lease.start()
        await lab.wait_for_state(call, "succeeded")
        assert ((await lab.fetch_call(call))["owner_epoch"], lapses) == (2, [])


async def test_a_worker_that_stops_leaves_what_does_not_end_to_the_next(fresh_database: str, tmp_path: Path) -> None:
    gate = Gate()
    set_behaviour("drained", gate)
    async with open_worker_lab(fresh_database, tmp_path, drain_seconds=0) as (lab, _):
        call = await start_run(lab, "put", "drained", "k")
        await gate.began.wait()
    gate.open.set()
    async with open_worker_lab(fresh_database, tmp_path) as (lab, _):
        await lab.wait_for_state(call, "succeeded")
        assert (await lab.fetch_call(call))["owner_epoch"] == 2
        assert len(list_effects("drained")) == 2


async def test_a_fault_of_ours_does_not_lose_the_run(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_worker_lab(fresh_database, tmp_path) as (lab, worker):
        faults = [
            RuntimeError("broken"), OSError("away"), RunNotReady("later", seconds=0.01), InternalError("not as it is"),
        ]  # fmt: skip
        real: Callable[..., Awaitable[None]] = get_lifecycle(lab.gateway).resume_run

        async def resume(*positional: Any) -> None:
            if faults:
                raise faults.pop()
            await real(*positional)

        monkeypatch.setattr("deputize.operations.background.worker._FAULT_RETRY_SECONDS", 0.01)
        monkeypatch.setattr(get_lifecycle(lab.gateway), "resume_run", resume)
        call = await start_run(lab, "note", "faults", "k")
        await lab.wait_for_state(call, "succeeded")
        assert worker.is_alive
        assert len(list_effects("faults")) == 1


async def test_a_call_that_cannot_be_queued_is_refused(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path) as lab:
        lab.runtime.queue.outage_reason = "PostgreSQL does not answer (for this test)"
        outcome = await lab.call("note", "nowhere", key="k", mode="async")
        assert (outcome.http_status, error_slug(outcome)) == (503, "unavailable")
        lab.runtime.queue.outage_reason = None
        assert (await lab.call("note", "nowhere", key="k", mode="async")).http_status == 202


async def test_tenants_that_wait_are_counted_by_steps_of_an_index(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path) as lab:
        counted = load_statements("runs")["count_tenants_with_queued_runs"]
        assert await lab.db.fetchval(counted, 20) == 0
        for number in range(3):
            await start_run(lab, "note", f"waits-{number}", f"k{number}")
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
        gone = await start_run(lab, "note", "deleted", "k1")
        broken = await start_run(lab, "note", "tampered", "k2")
        await lab.db.execute("delete from deputize.sealed_payloads where id = $1", gone)
        await lab.db.execute("update deputize.sealed_payloads set ciphertext = 'nonsense' where id = $1", broken)
    async with open_worker_lab(fresh_database, tmp_path) as (lab, _):
        for call in (gone, broken):

            async def has_ended(call: str = call) -> bool:
                return bool((await lab.fetch_call(call))["error"] == "seal-broken")

            await wait_until(has_ended)
        assert list_effects("deleted") == list_effects("tampered") == []


async def test_a_run_that_is_handed_over_while_the_engine_stops_is_waited_for(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    ended: list[str] = []

    async def run(tenant: str, call_id: str) -> bool:
        await asyncio.sleep(0.2)
        ended.append(call_id)
        return True

    async with open_worker_lab(fresh_database, tmp_path, drain_seconds=30) as (_, worker):
        stop_engine = worker._engine.stop

        async def hand_over(*, seconds: float) -> None:
            waits.append(seconds)
            handed_over.append(asyncio.create_task(worker._run_to_end("dev", "late")))
            await stop_engine(seconds=seconds)

        handed_over: list[asyncio.Task[None]] = []
        monkeypatch.setattr(worker, "_try_run", run)
        monkeypatch.setattr(worker._engine, "stop", hand_over)
    assert (waits, ended, worker.remaining_runs) == ([0], ["late"], 0)
