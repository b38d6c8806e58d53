"""Which state may follow which, and the event that announces it."""

import pytest

from deputize.core.states import (
    EVENT_BY_STATE,
    FINAL_STATES,
    TERMINAL_STATES,
    TRANSITIONS,
    State,
    ToolEvent,
)

pytestmark = pytest.mark.requirement("INV-2")

STATES = {
    "planned",
    "selected",
    "schema_parse_failed",
    "arguments_ready",
    "validation_failed",
    "pre_hooks_running",
    "awaiting_approval",
    "approved",
    "denied",
    "queued",
    "running",
    "needs_input",
    "partial_result",
    "post_hooks_running",
    "yielded",
    "succeeded",
    "failed",
    "canceled",
    "timed_out",
    "blocked",
}
EVENTS = {
    "tool.declared",
    "tool.surface.created",
    "tool.surface.updated",
    "tool.deferred.discovered",
    "tool.deferred.loaded",
    "tool.invocation.planned",
    "tool.invocation.selected",
    "tool.invocation.arguments_ready",
    "tool.invocation.validation_failed",
    "tool.hook.pre.started",
    "tool.hook.pre.completed",
    "tool.permission.requested",
    "tool.permission.decided",
    "tool.invocation.queued",
    "tool.invocation.started",
    "tool.invocation.progress",
    "tool.invocation.partial_result",
    "tool.hook.post.started",
    "tool.hook.post.completed",
    "tool.result.persisted",
    "tool.invocation.yielded",
    "tool.invocation.succeeded",
    "tool.invocation.failed",
    "tool.invocation.canceled",
    "tool.invocation.timed_out",
    "tool.result.created",
    "tool.result.redacted",
}
DISPATCHED_STATES = {State.RUNNING, State.PARTIAL_RESULT, State.POST_HOOKS_RUNNING, State.YIELDED, State.NEEDS_INPUT}


def test_the_states_are_the_standards_and_unknown() -> None:
    assert {state.value for state in State} == STATES | {"unknown"}


def test_the_events_are_the_standards_and_unknown() -> None:
    assert {event.value for event in ToolEvent} == EVENTS | {"tool.invocation.unknown"}


def test_the_table_names_every_state_once_and_leads_nowhere_else() -> None:
    assert set(TRANSITIONS) == set(State)
    assert {after for following in TRANSITIONS.values() for after in following} <= set(State)


def test_every_state_is_announced_by_an_event() -> None:
    assert set(EVENT_BY_STATE) == set(State)


def test_every_state_can_be_reached_from_the_first_and_reaches_an_end() -> None:
    reached, edge = {State.PLANNED}, [State.PLANNED]
    while edge:
        fresh = TRANSITIONS[edge.pop()] - reached
        reached |= fresh
        edge += fresh
    assert reached == set(State)
    ends = set(FINAL_STATES)
    while grown := {state for state in set(State) - ends if TRANSITIONS[state] & ends}:
        ends |= grown
    assert ends == set(State)


def test_only_unknown_is_an_end_that_may_still_be_settled() -> None:
    assert frozenset({State.UNKNOWN}) == TERMINAL_STATES - FINAL_STATES
    assert {
        State.SUCCEEDED, State.FAILED, State.CANCELED, State.TIMED_OUT, State.DENIED, State.BLOCKED,
        State.SCHEMA_PARSE_FAILED, State.VALIDATION_FAILED, State.NEEDS_INPUT,
    } == FINAL_STATES  # fmt: skip


def test_only_a_call_that_was_started_can_have_an_unknown_outcome_or_succeed() -> None:
    for end in (State.UNKNOWN, State.SUCCEEDED):
        before = {state for state, following in TRANSITIONS.items() if end in following}
        assert before <= DISPATCHED_STATES | {State.UNKNOWN}
