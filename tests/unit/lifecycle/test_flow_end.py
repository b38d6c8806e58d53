"""The error of a flow says what was done, in bounded size."""

from typing import Any

import pytest

from deputize.core.errors import FlowFailed
from deputize.core.states import State
from deputize.lifecycle.durable.flow_end import name_steps
from deputize.lifecycle.durable.flow_steps import FlowSteps, StepCall
from deputize.runs.flow_state import StepRecord

pytestmark = pytest.mark.requirement("RES-3")


def _steps(*results: Any, **fields: Any) -> FlowSteps:
    records = [StepRecord(state=State.SUCCEEDED, result=each) for each in results]
    return FlowSteps(
        calls={f"s{place}": StepCall(call_id="c", record=each) for place, each in enumerate(records)}, **fields
    )


def test_results_that_are_too_long_are_left_out_and_their_calls_are_named_all_the_same() -> None:
    details = name_steps(FlowFailed("x"), _steps("a" * 40_000, "b" * 40_000, "c")).details
    assert list(details["partial_results"]) == ["s0", "s2"]
    assert [each["step"] for each in details["completed_steps"]] == ["s0", "s1", "s2"]


def test_nothing_happened_only_if_no_call_was_made_or_may_have_been() -> None:
    refused = StepCall(call_id="c", record=StepRecord(state=State.DENIED, may_fall_back=True))
    assert name_steps(FlowFailed("x"), FlowSteps(calls={"a": refused})).nothing_happened
    assert not name_steps(FlowFailed("x"), FlowSteps(plans={"a": "lab.put"})).nothing_happened
    # Of a call whose row was deleted, nobody knows.
    assert not name_steps(FlowFailed("x"), _steps("done")).nothing_happened
