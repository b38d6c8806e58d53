"""Every state a call can end in follows, by the drawn transitions, from the one its row was in."""

from itertools import product

import pytest

from deputize.core.errors import PermissionProblem, Problem, list_problem_types
from deputize.core.states import FINAL_STATES, TERMINAL_STATES, TRANSITIONS, State
from deputize.lifecycle.envelope import get_failure_state, get_refusal_state
from deputize.lifecycle.reply import _get_mutation_state
from tests.support.cases import check_each

pytestmark = pytest.mark.requirement("INV-2")

KINDS = sorted(list_problem_types(), key=lambda kind: kind.spec.number)


@check_each(
    "kind, nothing_happened",
    product(KINDS, (True, False)),
    label=lambda kind, nothing_happened: f"{kind.spec.slug}, {nothing_happened=}",
)
def test_however_a_claimed_call_ends_its_state_follows_from_running_and_from_unknown(
    kind: type[Problem], nothing_happened: bool
) -> None:
    problem = kind("x").replace(nothing_happened=nothing_happened)
    state = _get_mutation_state(problem)
    assert state in TRANSITIONS[State.RUNNING]
    assert state is State.UNKNOWN or state in TRANSITIONS[State.UNKNOWN]


@check_each("kind", KINDS, label=lambda kind: kind.spec.slug)
def test_every_refusal_and_every_failure_is_an_end(kind: type[Problem]) -> None:
    assert get_refusal_state(kind("x")) in TERMINAL_STATES
    assert get_failure_state(kind("x")) in FINAL_STATES
    assert (get_refusal_state(kind("x")) is State.DENIED) is issubclass(kind, PermissionProblem)
