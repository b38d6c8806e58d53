"""Whatever refuses or ends a call, the states that its entry names are a path that the transitions allow."""

from itertools import pairwise, product
from typing import Any

import pytest

from deputize.core.errors import Problem, list_problem_types
from deputize.core.states import TERMINAL_STATES, TRANSITIONS, IllegalTransition, State
from deputize.evidence.audit_entries import Passage
from deputize.lifecycle.envelope import get_failure_state, get_refusal_state
from deputize.lifecycle.recording.audit import (
    _build_early_refusal,
    _build_end,
    _build_opening,
    _build_read,
    _build_refusal,
    trace_refusal,
    trace_step,
)
from deputize.lifecycle.reply import _get_mutation_state
from tests.support.cases import check_each

pytestmark = pytest.mark.requirement("INV-2")

KINDS = sorted(list_problem_types(), key=lambda kind: kind.spec.number)
FLAGS = (False, True)


def _check(passage: Passage, end: State) -> None:
    assert passage.states[-1] is end
    assert all(after in TRANSITIONS[before] for before, after in pairwise(passage.states))


@check_each("kind", KINDS, label=lambda kind: kind.spec.slug)
def test_every_refusal_has_a_path_however_far_the_call_came(kind: type[Problem]) -> None:
    state = get_refusal_state(kind("x"))
    for flag in FLAGS:
        _check(_build_refusal(flag, state), state)
        if state is not State.UNKNOWN:
            _check(_build_early_refusal(flag, state), state)


@check_each("kind", KINDS, label=lambda kind: kind.spec.slug)
def test_every_end_has_a_path_whatever_ran_before_it(kind: type[Problem]) -> None:
    for nothing_happened, pre, partial, post in product(FLAGS, repeat=4):
        problem = kind("x").replace(nothing_happened=nothing_happened)
        end = _get_mutation_state(problem)
        _check(_build_end(partial, post, end), end)
        failure = get_failure_state(problem)
        _check(_build_read(pre, partial, post, failure), failure)


@pytest.mark.parametrize("state", [State.RUNNING, State.QUEUED, State.AWAITING_APPROVAL])
def test_every_opening_has_a_path(state: State) -> None:
    for pre_hooks in FLAGS:
        _check(_build_opening(pre_hooks, state, False), state)
    assert _build_opening(False, State.QUEUED, True).states[-3:] == (State.RUNNING, State.YIELDED, State.QUEUED)


def test_arguments_that_cannot_be_parsed_end_a_call_that_was_selected() -> None:
    assert _build_early_refusal(True, State.SCHEMA_PARSE_FAILED).states == (
        State.PLANNED, State.SELECTED, State.SCHEMA_PARSE_FAILED,
    )  # fmt: skip


def test_a_refusal_after_another_entry_names_only_the_state_of_the_answer() -> None:
    problem = KINDS[0]("x").replace(is_recorded=True)
    no_call: Any = None
    assert trace_refusal(no_call, problem, State.DENIED).states == (State.DENIED,)


def test_a_step_that_is_not_allowed_cannot_be_recorded() -> None:
    assert trace_step(State.AWAITING_APPROVAL, State.APPROVED, State.QUEUED).states[-1] is State.QUEUED
    for end in TERMINAL_STATES - {State.UNKNOWN}:
        with pytest.raises(IllegalTransition):
            trace_step(end, State.RUNNING)
