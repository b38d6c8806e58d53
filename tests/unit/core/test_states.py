"""Which state may follow which, and the event that announces it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.states import (
    EVENT_BY_STATE,
    FINAL_STATES,
    STORED_TRANSITIONS,
    TERMINAL_STATES,
    TRANSITIONS,
    IllegalTransition,
    State,
    ToolEvent,
    require_transition,
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
    # In a restored database, a call that seems to wait may have been started in the time that is lost.
    waiting = {State.AWAITING_APPROVAL, State.APPROVED, State.QUEUED}
    for end, others in ((State.UNKNOWN, waiting), (State.SUCCEEDED, set[State]())):
        before = {state for state, following in TRANSITIONS.items() if end in following}
        assert before <= DISPATCHED_STATES | {State.UNKNOWN} | others


def _list_reachable(before: State) -> set[State]:
    """List the states that follow without another stored state between."""
    reached: set[State] = set()
    edge = set(TRANSITIONS[before])
    while edge:
        state = edge.pop()
        if state not in reached:
            reached.add(state)
            edge |= set() if state in STORED_TRANSITIONS or state in FINAL_STATES else TRANSITIONS[state]
    return reached


def test_stored_transitions_are_transitions_with_what_passes_within_one_commit_left_out() -> None:
    for before, following in STORED_TRANSITIONS.items():
        assert following <= _list_reachable(before), before


def test_what_waits_never_acted_and_what_ended_stays_ended() -> None:
    for waiting in (State.AWAITING_APPROVAL, State.QUEUED):
        assert not STORED_TRANSITIONS[waiting] & {State.SUCCEEDED, State.NEEDS_INPUT}
    assert State.RUNNING not in STORED_TRANSITIONS[State.AWAITING_APPROVAL]
    assert not STORED_TRANSITIONS.keys() & FINAL_STATES


@given(st.lists(st.sampled_from(State), min_size=1, max_size=12))
def test_a_sequence_of_states_is_refused_at_its_first_illegal_step(states: list[State]) -> None:
    current = State.RUNNING
    for following in states:
        is_allowed = following in STORED_TRANSITIONS.get(current, ())
        if not is_allowed:
            with pytest.raises(IllegalTransition, match=f"{current} cannot become {following}"):
                require_transition(current, following)
            return
        current = require_transition(current, following)
    assert current in STORED_TRANSITIONS or current in FINAL_STATES
