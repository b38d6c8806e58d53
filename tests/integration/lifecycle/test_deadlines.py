"""A call has the smaller of its class's time and its caller's, and what outlives it is told honestly."""

import asyncio
import threading

import pytest

from deputize import ToolContext
from deputize.core.errors import ToolPrecondition
from deputize.core.states import State
from tests.support.gateway_lab import GatewayLab, error_slug, parse_body
from tests.support.scripted_tools import AMPLE_SECONDS, Gate, list_effects, set_behaviour

pytestmark = pytest.mark.requirement("INV-3")


async def _measure_seconds_left(lab: GatewayLab, tool: str, deadline_ms: int | None) -> float:
    given: list[float] = []

    def behave(context: ToolContext) -> dict[str, str]:
        given.append(context.seconds_left)
        return {"value": "ok"}

    set_behaviour("given", behave)
    assert (await lab.call(tool, "given", deadline_ms=deadline_ms)).state is State.SUCCEEDED
    return given[0]


@pytest.mark.parametrize("tool", ["look", "note"])
async def test_the_time_given_is_the_smaller_of_the_class_and_the_callers(lab: GatewayLab, tool: str) -> None:
    assert AMPLE_SECONDS / 2 < await _measure_seconds_left(lab, tool, None) <= AMPLE_SECONDS
    assert AMPLE_SECONDS / 2 < await _measure_seconds_left(lab, tool, 3_600_000) <= AMPLE_SECONDS
    assert 0 < await _measure_seconds_left(lab, tool, 15_000) <= 15


async def test_the_rows_deadline_is_the_tools_and_lies_ahead_of_the_effect(lab: GatewayLab) -> None:
    outcome = await lab.call("note", "row-deadline", key="row-deadline")
    row = await lab.fetch_call(outcome.call_id)
    assert (row["deadline_at"] - row["created_at"]).total_seconds() == AMPLE_SECONDS


async def test_a_read_that_outlives_its_deadline_is_timed_out(lab: GatewayLab) -> None:
    set_behaviour("slow-read", Gate())
    outcome = await lab.call("brief_look", "slow-read")
    assert (outcome.state, error_slug(outcome), outcome.http_status) == (State.TIMED_OUT, "tool-timeout", 504)
    # A later deadline is no use: the tool's own time was over.
    assert "whatever the deadline" in parse_body(outcome)["error"]["advice"]


async def test_the_callers_deadline_ends_a_read_of_a_longer_class(lab: GatewayLab) -> None:
    set_behaviour("impatient", Gate())
    outcome = await lab.call("look", "impatient", deadline_ms=4000)
    assert (outcome.state, error_slug(outcome)) == (State.TIMED_OUT, "tool-timeout")
    assert "later deadline" in parse_body(outcome)["error"]["advice"]


async def test_a_mutation_that_outlives_its_deadline_is_unknown_and_not_run_again(lab: GatewayLab) -> None:
    set_behaviour("slow-write", Gate())
    outcome = await lab.call("brief_note", "slow-write", key="slow-write")
    assert (outcome.state, error_slug(outcome)) == (State.UNKNOWN, "outcome-unknown")
    assert parse_body(outcome)["error"]["details"]["cause"] == "tool-timeout"
    assert (await lab.call("brief_note", "slow-write", key="slow-write")).body == outcome.body
    assert len(list_effects("slow-write")) == 1


class _ThreadTool:
    """A tool that goes on in its thread until told to stop, and then ends as told."""

    def __init__(self, end: object) -> None:
        self.release = threading.Event()
        self._end = end

    def __call__(self, _: ToolContext) -> object:
        self.release.wait(60)
        if isinstance(self._end, BaseException):
            raise self._end
        return self._end


@pytest.mark.requirement("NEW-3")
async def test_a_thread_that_outlives_its_deadline_is_unknown_and_settled_by_its_late_end(lab: GatewayLab) -> None:
    thread = _ThreadTool({"value": "late"})
    set_behaviour("late", thread)
    outcome = await lab.call("thread_note", "late", key="late")
    assert (outcome.state, error_slug(outcome)) == (State.UNKNOWN, "outcome-unknown")
    assert (await lab.call("thread_note", "late", key="late")).state is State.UNKNOWN
    thread.release.set()
    await lab.wait_for_state(outcome.call_id, "succeeded")
    settled = await lab.call("thread_note", "late", key="late")
    assert (settled.state, parse_body(settled)["result"]) == (State.SUCCEEDED, {"value": "late"})
    assert len(list_effects("late")) == 1
    assert await lab.fetch_entry_kinds(outcome.call_id) == ["intent", "outcome", "outcome"]


@pytest.mark.requirement("NEW-3")
@pytest.mark.parametrize(
    ("end", "state", "claimed"),
    [
        (ValueError("no"), "failed", True),
        (ToolPrecondition("not there"), "failed", False),
        (ConnectionError("reset"), "unknown", True),
    ],
    ids=["failed", "nothing-happened", "lost"],
)
async def test_a_late_failure_settles_only_what_it_tells(
    lab: GatewayLab, end: Exception, state: str, claimed: bool
) -> None:
    tag = f"late-{type(end).__name__}"
    thread = _ThreadTool(end)
    set_behaviour(tag, thread)
    outcome = await lab.call("thread_note", tag, key=tag)
    assert outcome.state is State.UNKNOWN
    thread.release.set()
    if state == "unknown":
        await asyncio.sleep(0.3)  # nothing is to happen, so there is nothing to wait for
    await lab.wait_for_state(outcome.call_id, state)
    assert await lab.has_claim(outcome.call_id) is claimed


async def test_time_spent_waiting_for_the_claim_is_the_callers(lab: GatewayLab) -> None:
    async with lab.hold_barrier():
        waiting = asyncio.create_task(lab.call("note", "queued", key="queued", deadline_ms=3000))
        await lab.wait_for_blocked_query()
        await asyncio.wait({waiting}, timeout=3.5)  # the deadline passes; the refusal waits to be recorded
    refused = await waiting
    assert (refused.state, error_slug(refused)) == (State.TIMED_OUT, "deadline-exceeded")
    assert not list_effects("queued")
    await lab.wait_for_state(refused.call_id, "timed_out")
    assert not await lab.has_claim(refused.call_id)
    assert (await lab.call("note", "queued", key="queued")).state is State.SUCCEEDED
