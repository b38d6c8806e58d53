"""What a flow does next follows from its definition and its records alone."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.contract.flow import Flow, FlowStep
from deputize.core.states import State
from deputize.runs.flow_state import WITHHELD, FlowState, StepRecord, StepStatus, evaluate_flow

pytestmark = pytest.mark.requirement("RES-3")
_OPEN, _DONE = StepRecord(state=State.QUEUED), StepRecord(state=State.SUCCEEDED, result={"n": 1})
_FAILED = StepRecord(state=State.FAILED, may_fall_back=True)


def _call(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "tool": "lab.look", **fields}


def _flow(*steps: dict[str, Any], **fields: Any) -> Flow:
    return Flow.model_validate({"steps": steps, **fields})


def _evaluate(flow: Flow, records: dict[str, StepRecord], **more: Any) -> FlowState:
    return evaluate_flow(flow, {"tag": "t"}, records, more.pop("joins", {}), **more)


@st.composite
def _draw_steps(draw: st.DrawFn, depth: int = 3) -> list[dict[str, Any]]:
    """Lists of steps inside each other, whose names are given later."""
    steps: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(("call", "call", "parallel", "steps") if depth else ("call",)))
        if kind == "call":
            count = draw(st.integers(0, 2))
            steps.append(_call("x", **({"fallback": [{"tool": "lab.look"}] * count} if count else {})))
        elif kind == "steps":
            steps.append({"name": "x", "steps": draw(_draw_steps(depth - 1))})
        else:
            joins: tuple[dict[str, Any], ...] = (
                {"join": "all"},
                {"join": "first"},
                {"join": "quorum", "quorum": 0.5},
                {},
            )
            join = draw(st.sampled_from(joins))
            branches = [{"name": "x", "steps": draw(_draw_steps(depth - 1))} for _ in range(draw(st.integers(2, 3)))]
            steps.append({"name": "x", "parallel": branches, **join})
    return steps


def _name(steps: list[dict[str, Any]], numbers: Iterator[int]) -> list[dict[str, Any]]:
    return [
        {
            **each,
            "name": f"s{next(numbers)}",
            **{kind: _name(each[kind], numbers) for kind in ("steps", "parallel") if kind in each},
        }
        for each in steps
    ]


def _list_call_paths(flow: Flow) -> list[str]:
    return [
        step.name if place == 0 else f"{step.name}~{place}" for step in flow.walk() for place in range(len(step.calls))
    ]


def _should_succeed(step: FlowStep, verdicts: dict[str, bool]) -> bool:
    """What a join means, in the plainest words."""
    if step.tool is not None:
        paths = [step.name, *(f"{step.name}~{place}" for place in range(1, len(step.calls)))]
        return any(verdicts[path] for path in paths)
    if step.parallel is None:
        return all(_should_succeed(each, verdicts) for each in step.steps or ())
    successes = sum(_should_succeed(each, verdicts) for each in step.parallel)
    needed = {"first": 1, "quorum": math.ceil(0.5 * len(step.parallel))}.get(step.join or "all", len(step.parallel))
    return successes >= needed


@given(steps=_draw_steps(), data=st.data())
def test_joins_come_out_as_counting_says_whatever_fails_and_in_whichever_order(
    steps: list[dict[str, Any]], data: st.DataObject
) -> None:
    flow = _flow(*_name(steps, itertools.count()))
    verdicts = {path: data.draw(st.booleans(), label=path) for path in _list_call_paths(flow)}
    records: dict[str, StepRecord] = {}
    joins: dict[str, tuple[str, ...]] = {}
    for _ in range(500):
        state = _evaluate(flow, records, joins=joins)
        if state.has_ended:
            break
        joins |= state.joins
        for ready in state.ready:
            assert ready.path not in records
            assert 0 < ready.time_share <= 1
            records[ready.path] = _OPEN
        for path in state.canceled:
            records[path] = StepRecord(state=State.CANCELED)
        open_paths = [path for path, each in records.items() if each.is_open]
        if open_paths and not state.joins and not state.canceled:
            path = data.draw(st.sampled_from(open_paths))
            records[path] = _DONE if verdicts[path] else _FAILED
    assert state.has_ended
    assert (state.failure is None) == all(_should_succeed(each, verdicts) for each in flow.steps)
    assert not any(each.is_open for each in records.values())
    if state.failure is not None:
        assert records[state.failure.path].state is State.FAILED
        assert StepStatus.FAILED in state.statuses.values()


def test_a_decided_join_does_not_change_when_another_step_ends_later() -> None:
    flow = _flow({"name": "any", "join": "first", "parallel": [_call("a"), _call("b")]})
    state = _evaluate(flow, {"a": _OPEN, "b": _DONE})
    assert state.joins == {"any": ("b",)}
    assert not state.canceled
    state = _evaluate(flow, {"a": _OPEN, "b": _DONE}, joins=state.joins)
    assert (state.canceled, state.has_ended) == (("a",), False)
    state = _evaluate(flow, {"a": StepRecord(state=State.SUCCEEDED, result="late"), "b": _DONE}, joins={"any": ("b",)})
    assert (state.has_ended, state.output) == (True, {"n": 1})


def test_a_quorum_that_cannot_be_reached_stops_the_rest() -> None:
    branches = [_call("a"), _call("b"), _call("c")]
    flow = _flow({"name": "most", "join": "quorum", "quorum": 0.6, "parallel": branches})
    state = _evaluate(flow, {"a": _FAILED, "b": _FAILED, "c": _OPEN})
    assert (state.canceled, state.has_ended) == (("c",), False)
    state = _evaluate(flow, {"a": _FAILED, "b": _FAILED, "c": StepRecord(state=State.CANCELED)})
    assert state.has_ended
    assert state.failure is not None
    assert state.failure.path == "a"


def test_each_step_gets_its_share_of_the_time_that_is_left() -> None:
    flow = _flow(_call("a"), {"name": "b", "tool": "lab.slow"}, {"name": "c", "tool": "lab.slow"})
    seconds = {"lab.look": 10.0, "lab.slow": 45.0}
    (first,) = _evaluate(flow, {}, estimate=seconds.__getitem__).ready
    (second,) = _evaluate(flow, {"a": _DONE}, estimate=seconds.__getitem__).ready
    assert (first.time_share, second.time_share) == (0.1, 0.5)


def test_a_loop_that_never_gets_there_fails_with_its_condition() -> None:
    flow = _flow(_call("poll", loop={"until": "/steps/poll/n > 1", "max_rounds": 2}, bind={"tag": "/steps/poll/n"}))
    assert [each.arguments for each in _evaluate(flow, {}).ready] == [{}]
    assert [(each.path, each.arguments) for each in _evaluate(flow, {"poll/1": _DONE}).ready] == [
        ("poll/2", {"tag": 1})
    ]
    failure = _evaluate(flow, {"poll/1": _DONE, "poll/2": _DONE}).failure
    assert failure is not None
    assert failure.reason == "/steps/poll/n > 1 did not hold after 2 rounds"


def test_a_map_over_more_than_it_allows_calls_nothing() -> None:
    flow = _flow(_call("each", map={"over": "/input/tags", "max_items": 1}))
    state = evaluate_flow(flow, {"tags": ["a", "b"]}, {}, {})
    assert state.failure is not None
    assert state.failure.reason == "/input/tags has 2 elements; max_items is 1"
    assert not state.ready


def test_a_result_that_is_stored_by_reference_is_not_passed_on() -> None:
    flow = _flow(_call("a"), _call("b", bind={"tag": "/steps/a/secret"}))
    state = _evaluate(flow, {"a": StepRecord(state=State.SUCCEEDED, result=WITHHELD)})
    assert state.failure is not None
    assert state.failure.reason == "/steps/a/secret is stored by reference, and cannot be passed on"


def test_a_flow_that_stops_calls_nothing_more_and_waits_for_what_runs() -> None:
    flow = _flow({"name": "both", "parallel": [_call("a"), _call("b")]}, _call("c"))
    state = _evaluate(flow, {"a": _DONE, "b": _OPEN}, is_stopping=True)
    assert (state.ready, state.canceled, state.has_ended) == ((), ("b",), False)
    assert _evaluate(flow, {"a": _DONE, "b": StepRecord(state=State.CANCELED)}, is_stopping=True).has_ended
