"""What no one can know is said to be UNKNOWN, taken over only where that is safe, and settled when the truth comes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from deputize import ToolContext
from deputize.core.errors import ToolFailed, ToolPrecondition, UpstreamUnavailable
from deputize.core.outcome import Outcome
from deputize.core.states import State
from deputize.govern.identity import revocations
from tests.support.gateway_lab import GatewayLab, error_slug, parse_body
from tests.support.scripted_tools import Gate, list_effects, precondition_errors, raise_error, set_behaviour

pytestmark = pytest.mark.requirement("NEW-3")


@asynccontextmanager
async def abandoned_call(
    lab: GatewayLab, dead_lab: GatewayLab, tool: str, tag: str
) -> AsyncIterator[tuple[str, Gate, "asyncio.Task[Outcome]"]]:
    """A call of a gateway that everybody else believes dead; its process goes on as a zombie."""
    gate = Gate()
    set_behaviour(tag, gate)
    running = asyncio.create_task(dead_lab.call(tool, tag, key=tag))
    await gate.began.wait()
    call_id = await lab.find_running_call(tool)
    await lab.expire_lease(dead_lab, call_id)
    try:
        yield call_id, gate, running
    finally:
        gate.open.set()
        await running


async def test_the_sweeper_marks_a_dead_owners_call_and_runs_nothing(lab: GatewayLab, other_lab: GatewayLab) -> None:
    async with abandoned_call(lab, other_lab, "note", "swept") as (call_id, _, _):
        assert await lab.run_sweeper() == 1
        assert await lab.run_sweeper() == 0
        row = await lab.fetch_call(call_id)
        assert (row["state"], row["error"], row["window_ends"]) == ("unknown", "outcome-unknown", None)
        assert await lab.fetch_entry_kinds(call_id) == ["intent", "outcome"]
        assert (await lab.fetch_entries(call_id))[1]["rules"] == ["owner-gone"]
        assert len(list_effects("swept")) == 1


async def test_the_sweeper_leaves_the_living_and_the_young_alone(lab: GatewayLab, other_lab: GatewayLab) -> None:
    gate = Gate()
    set_behaviour("young", gate)
    running = asyncio.create_task(other_lab.call("note", "young", key="young"))
    await gate.began.wait()
    call_id = await lab.find_running_call("note")
    due, lease = "update deputize.calls set deadline_at = now() + $2 where id = $1", other_lab.runtime.lease.boot_id
    await lab.db.execute(due, call_id, timedelta(minutes=-1))
    assert await lab.run_sweeper() == 0
    await lab.db.execute(due, call_id, timedelta(minutes=1))
    await lab.db.execute("update deputize.leases set expires_at = now() - interval '1 hour' where boot = $1", lease)
    assert await lab.run_sweeper() == 0
    gate.open.set()
    assert (await running).state is State.SUCCEEDED


async def test_long_past_its_deadline_a_living_owners_call_is_unknown_too(lab: GatewayLab) -> None:
    gate = Gate()
    set_behaviour("stuck", gate)
    running = asyncio.create_task(lab.call("note", "stuck", key="stuck"))
    await gate.began.wait()
    call_id = await lab.find_running_call("note")
    await lab.db.execute("update deputize.calls set deadline_at = now() - interval '1 hour' where id = $1", call_id)
    assert await lab.run_sweeper() == 1
    assert (await lab.call("note", "stuck", key="stuck")).state is State.UNKNOWN
    gate.open.set()
    assert (await running).state is State.SUCCEEDED
    assert await lab.fetch_state(call_id) == "succeeded"


async def test_a_tool_that_cannot_deduplicate_gets_its_unknown_replayed_and_is_never_run_again(
    lab: GatewayLab, other_lab: GatewayLab
) -> None:
    async with abandoned_call(lab, other_lab, "note", "never-again") as (call_id, _, _):
        await lab.run_sweeper()
        for _ in range(2):
            told = await lab.call("note", "never-again", key="never-again")
            assert (told.state, error_slug(told), told.call_id) == (State.UNKNOWN, "outcome-unknown", call_id)
        assert len(list_effects("never-again")) == 1
        assert await lab.has_claim(call_id)


async def test_before_it_is_swept_a_dead_owners_call_is_in_flight(lab: GatewayLab, other_lab: GatewayLab) -> None:
    async with abandoned_call(lab, other_lab, "note", "unswept"):
        assert error_slug(await lab.call("note", "unswept", key="unswept")) == "in-flight"


@pytest.mark.parametrize("swept", [True, False])
async def test_a_retry_takes_over_where_the_upstream_deduplicates(
    lab: GatewayLab, other_lab: GatewayLab, swept: bool
) -> None:
    tag = f"taken-{swept}"
    async with abandoned_call(lab, other_lab, "put", tag) as (call_id, gate, zombie):
        if swept:
            await lab.run_sweeper()
        set_behaviour(tag, lambda _: {"value": "by the second"})
        outcome = await lab.call("put", tag, key=tag)
        assert (outcome.state, outcome.call_id, outcome.is_replay) == (State.SUCCEEDED, call_id, False)
        first, second = list_effects(tag)
        assert first.key == second.key == call_id
        assert (await lab.fetch_call(call_id))["owner_epoch"] == 2
        assert (await lab.call("put", tag, key=tag)).body == outcome.body
        # The zombie's own end comes too late: the outcome of who took over stands.
        gate.open.set()
        late = await zombie
        assert (late.state, error_slug(late)) == (State.UNKNOWN, "recording-pending")
        assert (await lab.call("put", tag, key=tag)).body == outcome.body


async def test_only_one_of_many_retries_takes_over(lab: GatewayLab, other_lab: GatewayLab) -> None:
    async with abandoned_call(lab, other_lab, "put", "one-heir") as (call_id, _, _):
        await lab.run_sweeper()
        set_behaviour("one-heir", lambda _: {"value": "heir"})
        outcomes = await asyncio.gather(*[lab.call("put", "one-heir", key="one-heir") for _ in range(8)])
        assert len(list_effects("one-heir")) == 2
        assert {outcome.call_id for outcome in outcomes if outcome.state is State.SUCCEEDED} == {call_id}
        assert (await lab.fetch_call(call_id))["owner_epoch"] == 2


async def test_a_zombies_late_outcome_settles_the_unknown(lab: GatewayLab, other_lab: GatewayLab) -> None:
    async with abandoned_call(lab, other_lab, "note", "zombie") as (call_id, gate, running):
        await lab.run_sweeper()
        gate.open.set()
        outcome = await running
        assert outcome.state is State.SUCCEEDED
        assert await lab.fetch_state(call_id) == "succeeded"
        assert (await lab.call("note", "zombie", key="zombie")).body == outcome.body
        assert await lab.fetch_entry_kinds(call_id) == ["intent", "outcome", "outcome"]


@pytest.mark.parametrize(
    "problem", [ToolPrecondition("it is not there"), UpstreamUnavailable("gone"), ConnectionError("lost")]
)
async def test_a_take_over_that_proves_nothing_stays_unknown_and_keeps_its_key(
    lab: GatewayLab, other_lab: GatewayLab, problem: Exception
) -> None:
    tag = f"heir-{type(problem).__name__}"
    async with abandoned_call(lab, other_lab, "put", tag) as (call_id, _, _):
        set_behaviour(tag, raise_error(problem))
        outcome = await lab.call("put", tag, key=tag)
        assert (outcome.state, outcome.call_id) == (State.UNKNOWN, call_id)
        assert await lab.has_claim(call_id)
        assert (await lab.fetch_call(call_id))["nothing_happened"] is False
        set_behaviour(tag, lambda _: {"value": "at last"})
        assert (await lab.call("put", tag, key=tag)).state is State.SUCCEEDED
        assert {effect.key for effect in list_effects(tag)} == {call_id}


@pytest.mark.parametrize("verdict", [ValueError("there is no such thing"), RuntimeError("broken")])
async def test_a_take_over_the_tool_refuses_beforehand_stays_unknown(
    lab: GatewayLab, other_lab: GatewayLab, verdict: Exception
) -> None:
    tag = f"judged-{type(verdict).__name__}"
    async with abandoned_call(lab, other_lab, "checked_put", tag) as (call_id, _, _):
        precondition_errors[tag] = verdict
        outcome = await lab.call("checked_put", tag, key=tag)
        assert (outcome.state, outcome.call_id) == (State.UNKNOWN, call_id)
        assert await lab.has_claim(call_id)


@pytest.mark.requirement("NEW-7")
async def test_a_take_over_refused_at_the_barrier_stays_unknown_and_does_not_act(
    lab: GatewayLab, other_lab: GatewayLab
) -> None:
    by = await lab.make_caller("heir")
    gate = Gate()
    set_behaviour("barred", gate)
    running = asyncio.create_task(other_lab.call("put", "barred", key="barred", by=by))
    await gate.began.wait()
    call_id = await lab.find_running_call("put")
    await lab.expire_lease(other_lab, call_id)
    async with lab.hold_barrier() as admin:
        retry = asyncio.create_task(lab.call("put", "barred", key="barred", by=by))
        await lab.wait_for_blocked_query()
        await revocations.revoke(admin, "dev", "subject", "heir", by="test")
    assert (await retry).state is State.DENIED
    assert await lab.has_claim(call_id)
    assert len(list_effects("barred")) == 1
    gate.open.set()
    await running


@pytest.mark.requirement("INV-12")
async def test_a_lost_answer_is_unknown_and_says_what_to_do(lab: GatewayLab) -> None:
    set_behaviour("lost", raise_error(ConnectionError("reset")))
    outcome = await lab.call("note", "lost", key="lost")
    assert (outcome.state, error_slug(outcome)) == (State.UNKNOWN, "outcome-unknown")
    assert parse_body(outcome)["error"]["details"]["cause"] == "upstream-unavailable"
    assert "by hand" in parse_body(outcome)["error"]["details"]["next"]
    assert len(list_effects("lost")) == 1
    again = await lab.call("note", "lost", key="lost")
    assert (again.body, again.state) == (outcome.body, State.UNKNOWN)
    assert len(list_effects("lost")) == 1


async def test_an_unknown_never_expires(lab: GatewayLab) -> None:
    set_behaviour("forever", raise_error(ConnectionError("reset")))
    outcome = await lab.call("note", "forever", key="forever")
    assert (await lab.fetch_call(outcome.call_id))["window_ends"] is None


async def test_a_process_that_lost_its_lease_makes_no_further_attempt(lab: GatewayLab) -> None:
    """Others may have taken the call over by then."""

    async def lose_lease(_: ToolContext) -> None:
        lab.runtime.lease._valid_until = float("-inf")
        raise ConnectionError("reset")

    set_behaviour("lost-lease", lose_lease)
    try:
        outcome = await lab.call("put", "lost-lease", key="lost-lease")
    finally:
        await lab.runtime.lease.renew()
    assert (error_slug(outcome), len(list_effects("lost-lease"))) == ("outcome-unknown", 1)


@pytest.mark.parametrize(("tool", "state"), [("assign", State.UNKNOWN), ("put", State.FAILED)])
async def test_what_a_lost_attempt_did_is_not_judged_by_the_next_one(lab: GatewayLab, tool: str, state: State) -> None:
    """The first attempt removes a thing and its answer is lost; the second one cannot find it."""
    tag = f"lost-{tool}"

    def answer(context: ToolContext) -> Any:
        raise UpstreamUnavailable("no answer") if context.attempt == 1 else ToolFailed("not found")

    set_behaviour(tag, answer)
    outcome = await lab.call(tool, tag, key=tag)
    assert outcome.state is state
    assert [effect.key for effect in list_effects(tag)] == [outcome.call_id] * 2
