"""A call has the smaller of its class's time and its caller's, and what outlives it is told honestly."""

import asyncio
import threading

import pytest

from deputize import ToolContext
from deputize.core.errors import ToolPrecondition
from deputize.core.events import State
from tests.integration.lifecycle.lab import Lab, body, slug
from tests.integration.lifecycle.tools import Gate, effects_of, on

pytestmark = pytest.mark.requirement("INV-3")


async def _seconds_given(lab: Lab, tool: str, deadline_ms: int | None) -> float:
    given: list[float] = []

    def behave(context: ToolContext) -> dict[str, str]:
        given.append(context.seconds_left)
        return {"value": "ok"}

    on("given", behave)
    assert (await lab.call(tool, "given", deadline_ms=deadline_ms)).state is State.SUCCEEDED
    return given[0]


@pytest.mark.parametrize("tool", ["look", "note"])
async def test_the_time_given_is_the_smaller_of_the_class_and_the_callers(lab: Lab, tool: str) -> None:
    assert 2 < await _seconds_given(lab, tool, None) <= 5
    assert 2 < await _seconds_given(lab, tool, 3_600_000) <= 5
    assert 0 < await _seconds_given(lab, tool, 1500) <= 1.5


async def test_the_rows_deadline_is_the_tools_and_lies_ahead_of_the_effect(lab: Lab) -> None:
    outcome = await lab.call("note", "row-deadline", key="row-deadline")
    row = await lab.row(outcome.call_id)
    assert (row["deadline_at"] - row["created_at"]).total_seconds() == 5


async def test_a_read_that_outlives_its_deadline_is_timed_out(lab: Lab) -> None:
    on("slow-read", Gate())
    outcome = await lab.call("brief_look", "slow-read")
    assert (outcome.state, slug(outcome), outcome.http_status) == (State.TIMED_OUT, "tool-timeout", 504)


async def test_the_callers_deadline_ends_a_read_of_a_longer_class(lab: Lab) -> None:
    on("impatient", Gate())
    outcome = await lab.call("look", "impatient", deadline_ms=100)
    assert (outcome.state, slug(outcome)) == (State.TIMED_OUT, "tool-timeout")


async def test_a_mutation_that_outlives_its_deadline_is_unknown_and_not_run_again(lab: Lab) -> None:
    on("slow-write", Gate())
    outcome = await lab.call("brief_note", "slow-write", key="slow-write")
    assert (outcome.state, slug(outcome)) == (State.UNKNOWN, "outcome-unknown")
    assert body(outcome)["error"]["details"]["cause"] == "tool-timeout"
    assert (await lab.call("brief_note", "slow-write", key="slow-write")).body == outcome.body
    assert len(effects_of("slow-write")) == 1


class _InThread:
    """A tool that goes on in its thread until told to stop, and then ends as told."""

    def __init__(self, end: object) -> None:
        self.release = threading.Event()
        self._end = end

    def __call__(self, _: ToolContext) -> object:
        self.release.wait(20)
        if isinstance(self._end, BaseException):
            raise self._end
        return self._end


@pytest.mark.requirement("NEW-3")
async def test_a_thread_that_outlives_its_deadline_is_unknown_and_settled_by_its_late_end(lab: Lab) -> None:
    thread = _InThread({"value": "late"})
    on("late", thread)
    outcome = await lab.call("thread_note", "late", key="late")
    assert (outcome.state, slug(outcome)) == (State.UNKNOWN, "outcome-unknown")
    assert (await lab.call("thread_note", "late", key="late")).state is State.UNKNOWN
    thread.release.set()
    await lab.until_state(outcome.call_id, "succeeded")
    settled = await lab.call("thread_note", "late", key="late")
    assert (settled.state, body(settled)["result"]) == (State.SUCCEEDED, {"value": "late"})
    assert len(effects_of("late")) == 1
    assert await lab.kinds(outcome.call_id) == ["intent", "outcome", "outcome"]


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
async def test_a_late_failure_settles_only_what_it_tells(lab: Lab, end: Exception, state: str, claimed: bool) -> None:
    tag = f"late-{type(end).__name__}"
    thread = _InThread(end)
    on(tag, thread)
    outcome = await lab.call("thread_note", tag, key=tag)
    assert outcome.state is State.UNKNOWN
    thread.release.set()
    if state == "unknown":
        await asyncio.sleep(0.3)  # nothing is to happen, so there is nothing to wait for
    await lab.until_state(outcome.call_id, state)
    assert await lab.claimed(outcome.call_id) is claimed


async def test_time_spent_waiting_for_the_claim_is_the_callers(lab: Lab) -> None:
    async with lab.barrier_closed():
        waiting = asyncio.create_task(lab.call("note", "queued", key="queued", deadline_ms=100))
        await asyncio.wait({waiting}, timeout=0.3)
    refused = await waiting
    assert (refused.state, slug(refused)) == (State.TIMED_OUT, "deadline-exceeded")
    assert not effects_of("queued")
    await lab.until_state(refused.call_id, "timed_out")
    assert not await lab.claimed(refused.call_id)
    assert (await lab.call("note", "queued", key="queued")).state is State.SUCCEEDED
