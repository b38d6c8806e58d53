"""What nobody can know is said to be UNKNOWN, taken over only where that is safe, and settled when the truth comes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from deputize.core.errors import ToolPrecondition, UpstreamUnavailable
from deputize.core.events import State
from deputize.core.outcome import Outcome
from deputize.govern.identity import revocations
from tests.integration.lifecycle.lab import Lab, body, slug
from tests.integration.lifecycle.tools import Gate, effects_of, on, raising, verdicts

pytestmark = pytest.mark.requirement("NEW-3")


@asynccontextmanager
async def abandoned(
    lab: Lab, dying: Lab, tool: str, tag: str
) -> AsyncIterator[tuple[str, Gate, "asyncio.Task[Outcome]"]]:
    """A call of a gateway that everybody else believes dead; its process goes on as a zombie."""
    gate = Gate()
    on(tag, gate)
    running = asyncio.create_task(dying.call(tool, tag, key=tag))
    await gate.began.wait()
    call_id = await lab.running_call(tool)
    await lab.bury(dying, call_id)
    try:
        yield call_id, gate, running
    finally:
        gate.open.set()
        await running


async def test_the_sweeper_marks_a_dead_owners_call_and_runs_nothing(lab: Lab, other_lab: Lab) -> None:
    async with abandoned(lab, other_lab, "note", "swept") as (call_id, _, _):
        assert await lab.sweep() == 1
        assert await lab.sweep() == 0
        row = await lab.row(call_id)
        assert (row["state"], row["error"], row["window_ends"]) == ("unknown", "outcome-unknown", None)
        assert await lab.kinds(call_id) == ["intent", "outcome"]
        assert (await lab.entries(call_id))[1]["rules"] == ["owner-gone"]
        assert len(effects_of("swept")) == 1


async def test_the_sweeper_leaves_the_living_and_the_young_alone(lab: Lab, other_lab: Lab) -> None:
    gate = Gate()
    on("young", gate)
    running = asyncio.create_task(other_lab.call("note", "young", key="young"))
    await gate.began.wait()
    call_id = await lab.running_call("note")
    due, lease = "update deputize.calls set deadline_at = now() + $2 where id = $1", other_lab.rooms.lease.boot
    await lab.db.execute(due, call_id, timedelta(minutes=-1))
    assert await lab.sweep() == 0
    await lab.db.execute(due, call_id, timedelta(minutes=1))
    await lab.db.execute("update deputize.leases set expires_at = now() - interval '1 hour' where boot = $1", lease)
    assert await lab.sweep() == 0
    gate.open.set()
    assert (await running).state is State.SUCCEEDED


async def test_long_past_its_deadline_a_living_owners_call_is_unknown_too(lab: Lab) -> None:
    gate = Gate()
    on("stuck", gate)
    running = asyncio.create_task(lab.call("note", "stuck", key="stuck"))
    await gate.began.wait()
    call_id = await lab.running_call("note")
    await lab.db.execute("update deputize.calls set deadline_at = now() - interval '1 hour' where id = $1", call_id)
    assert await lab.sweep() == 1
    assert (await lab.call("note", "stuck", key="stuck")).state is State.UNKNOWN
    gate.open.set()
    assert (await running).state is State.SUCCEEDED
    assert await lab.state(call_id) == "succeeded"


async def test_a_tool_that_cannot_deduplicate_gets_its_unknown_replayed_and_is_never_run_again(
    lab: Lab, other_lab: Lab
) -> None:
    async with abandoned(lab, other_lab, "note", "never-again") as (call_id, _, _):
        await lab.sweep()
        for _ in range(2):
            told = await lab.call("note", "never-again", key="never-again")
            assert (told.state, slug(told), told.call_id) == (State.UNKNOWN, "outcome-unknown", call_id)
        assert len(effects_of("never-again")) == 1
        assert await lab.claimed(call_id)


async def test_before_it_is_swept_a_dead_owners_call_is_in_flight(lab: Lab, other_lab: Lab) -> None:
    async with abandoned(lab, other_lab, "note", "unswept"):
        assert slug(await lab.call("note", "unswept", key="unswept")) == "in-flight"


@pytest.mark.parametrize("swept", [True, False])
async def test_a_retry_takes_over_where_the_upstream_deduplicates(lab: Lab, other_lab: Lab, swept: bool) -> None:
    tag = f"taken-{swept}"
    async with abandoned(lab, other_lab, "put", tag) as (call_id, gate, zombie):
        if swept:
            await lab.sweep()
        on(tag, lambda _: {"value": "by the second"})
        outcome = await lab.call("put", tag, key=tag)
        assert (outcome.state, outcome.call_id, outcome.replayed) == (State.SUCCEEDED, call_id, False)
        first, second = effects_of(tag)
        assert first.key == second.key == call_id
        assert (await lab.row(call_id))["owner_epoch"] == 2
        assert (await lab.call("put", tag, key=tag)).body == outcome.body
        # The zombie's own end comes too late: the outcome of who took over stands.
        gate.open.set()
        late = await zombie
        assert (late.state, slug(late)) == (State.UNKNOWN, "recording-pending")
        assert (await lab.call("put", tag, key=tag)).body == outcome.body


async def test_only_one_of_many_retries_takes_over(lab: Lab, other_lab: Lab) -> None:
    async with abandoned(lab, other_lab, "put", "one-heir") as (call_id, _, _):
        await lab.sweep()
        on("one-heir", lambda _: {"value": "heir"})
        outcomes = await asyncio.gather(*[lab.call("put", "one-heir", key="one-heir") for _ in range(8)])
        assert len(effects_of("one-heir")) == 2
        assert {outcome.call_id for outcome in outcomes if outcome.state is State.SUCCEEDED} == {call_id}
        assert (await lab.row(call_id))["owner_epoch"] == 2


async def test_a_zombies_late_outcome_settles_the_unknown(lab: Lab, other_lab: Lab) -> None:
    async with abandoned(lab, other_lab, "note", "zombie") as (call_id, gate, running):
        await lab.sweep()
        gate.open.set()
        outcome = await running
        assert outcome.state is State.SUCCEEDED
        assert await lab.state(call_id) == "succeeded"
        assert (await lab.call("note", "zombie", key="zombie")).body == outcome.body
        assert await lab.kinds(call_id) == ["intent", "outcome", "outcome"]


@pytest.mark.parametrize(
    "problem", [ToolPrecondition("it is not there"), UpstreamUnavailable("gone"), ConnectionError("lost")]
)
async def test_a_take_over_that_proves_nothing_stays_unknown_and_keeps_its_key(
    lab: Lab, other_lab: Lab, problem: Exception
) -> None:
    tag = f"heir-{type(problem).__name__}"
    async with abandoned(lab, other_lab, "put", tag) as (call_id, _, _):
        on(tag, raising(problem))
        outcome = await lab.call("put", tag, key=tag)
        assert (outcome.state, outcome.call_id) == (State.UNKNOWN, call_id)
        assert await lab.claimed(call_id)
        assert (await lab.row(call_id))["nothing_happened"] is False
        on(tag, lambda _: {"value": "at last"})
        assert (await lab.call("put", tag, key=tag)).state is State.SUCCEEDED
        assert {effect.key for effect in effects_of(tag)} == {call_id}


@pytest.mark.parametrize("verdict", [ValueError("there is no such thing"), RuntimeError("broken")])
async def test_a_take_over_the_tool_refuses_beforehand_stays_unknown(
    lab: Lab, other_lab: Lab, verdict: Exception
) -> None:
    tag = f"judged-{type(verdict).__name__}"
    async with abandoned(lab, other_lab, "checked_put", tag) as (call_id, _, _):
        verdicts[tag] = verdict
        outcome = await lab.call("checked_put", tag, key=tag)
        assert (outcome.state, outcome.call_id) == (State.UNKNOWN, call_id)
        assert await lab.claimed(call_id)


@pytest.mark.requirement("NEW-7")
async def test_a_take_over_refused_at_the_barrier_stays_unknown_and_does_not_act(lab: Lab, other_lab: Lab) -> None:
    by = await lab.caller("heir")
    gate = Gate()
    on("barred", gate)
    running = asyncio.create_task(other_lab.call("put", "barred", key="barred", by=by))
    await gate.began.wait()
    call_id = await lab.running_call("put")
    await lab.bury(other_lab, call_id)
    async with lab.barrier_closed() as admin:
        retry = asyncio.create_task(lab.call("put", "barred", key="barred", by=by))
        await lab.until_waiting()
        await revocations.revoke(admin, "dev", "subject", "heir", by="test")
    assert (await retry).state is State.DENIED
    assert await lab.claimed(call_id)
    assert len(effects_of("barred")) == 1
    gate.open.set()
    await running


@pytest.mark.requirement("INV-12")
async def test_a_lost_answer_is_unknown_and_says_what_to_do(lab: Lab) -> None:
    on("lost", raising(ConnectionError("reset")))
    outcome = await lab.call("note", "lost", key="lost")
    assert (outcome.state, slug(outcome)) == (State.UNKNOWN, "outcome-unknown")
    assert body(outcome)["error"]["details"]["cause"] == "upstream-unavailable"
    assert "by hand" in body(outcome)["error"]["details"]["next"]
    assert len(effects_of("lost")) == 1
    again = await lab.call("note", "lost", key="lost")
    assert (again.body, again.state) == (outcome.body, State.UNKNOWN)
    assert len(effects_of("lost")) == 1


async def test_an_unknown_never_expires(lab: Lab) -> None:
    on("forever", raising(ConnectionError("reset")))
    outcome = await lab.call("note", "forever", key="forever")
    assert (await lab.row(outcome.call_id))["window_ends"] is None
