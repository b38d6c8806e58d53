"""The judge of the sandbox_neighbours proof finds each planted fault."""

from dataclasses import replace

import pytest

from proofs.sandbox_neighbours.experiment import Observation, judge
from proofs.sandbox_neighbours.takers import TAKERS
from tests.support.proof_bars import list_exact_bars, list_missed_bars

pytestmark = pytest.mark.nightly


def make_attacks(*hits: str, was_taken: bool = True) -> dict[str, object]:
    return {
        name: {"was_taken": was_taken, "missed": {"outside": [], "sandbox": [name] if name in hits else []}}
        for name in TAKERS
    }


LEFT = {"sandbox": [], "outside": ["changed", "made-new"]}
OWN = Observation(user="root", is_shared=False, attacks=make_attacks(), left=LEFT)
SHARED = Observation(user="root", is_shared=True, attacks=make_attacks(*TAKERS), left=LEFT)


def test_a_good_run_misses_no_bar() -> None:
    verdict = judge([OWN, SHARED])
    assert list_missed_bars("sandbox_neighbours", verdict.figures) == set()
    assert list_exact_bars("sandbox_neighbours", among=verdict.figures.keys()) == {
        "not_taken", "missed_by_others", "files_that_run_as_their_owner",
    }  # fmt: skip
    assert verdict.controls == {"one user for all": True, "without the filter": True}


@pytest.mark.parametrize(
    ("observations", "missed"),
    [
        ([replace(OWN, attacks=make_attacks("watches")), SHARED], {"missed_by_others"}),
        ([replace(OWN, attacks=make_attacks(was_taken=False)), SHARED], {"not_taken"}),
        ([replace(OWN, left={**LEFT, "sandbox": ["changed"]}), SHARED], {"files_that_run_as_their_owner"}),
        ([OWN], {"resources_missed_with_one_user"}),
        ([SHARED], {"users", "resources"}),
    ],
)
def test_each_planted_fault_misses_its_bar(observations: list[Observation], missed: set[str]) -> None:
    assert list_missed_bars("sandbox_neighbours", judge(observations).figures) == missed
