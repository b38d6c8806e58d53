"""Every state a call can end in follows, by the drawn transitions, from the one its row was in."""

import pytest

from deputize.core.errors import Permission, Problem, every_problem
from deputize.core.events import FINAL, FOLLOWS, TERMINAL, State
from deputize.lifecycle.reply import state_of_failure, state_of_refusal
from deputize.lifecycle.settle import _state_of_mutation

pytestmark = pytest.mark.requirement("INV-2")

KINDS = sorted(every_problem(), key=lambda kind: kind.face.number)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.face.slug)
@pytest.mark.parametrize("nothing_happened", [True, False])
def test_however_a_claimed_call_ends_its_state_follows_from_running_and_from_unknown(
    kind: type[Problem], nothing_happened: bool
) -> None:
    problem = kind("x")
    problem.nothing_happened = nothing_happened
    state = _state_of_mutation(problem)
    assert state in FOLLOWS[State.RUNNING]
    assert state is State.UNKNOWN or state in FOLLOWS[State.UNKNOWN]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.face.slug)
def test_every_refusal_and_every_failure_is_an_end(kind: type[Problem]) -> None:
    assert state_of_refusal(kind("x")) in TERMINAL
    assert state_of_failure(kind("x")) in FINAL
    assert (state_of_refusal(kind("x")) is State.DENIED) is issubclass(kind, Permission)
