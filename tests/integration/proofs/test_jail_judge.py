"""The judge of the jail proof finds each planted fault."""

from dataclasses import replace

import pytest

from proofs.jail.arena import HARMLESS
from proofs.jail.judge import Attempt, RaceResult, compute_figures
from tests.support.proof_bars import list_exact_bars, list_missed_bars

pytestmark = pytest.mark.nightly

REFUSED = Attempt(
    tool="read", kind="dots", path="../key", outcome="refused", has_secret=False, has_changed_outside=False
)
HONEST = replace(REFUSED, kind=HARMLESS, path="a", outcome="done")
GOOD = [HONEST, *(replace(REFUSED, tool=f"tool {n % 10}", path=f"../{n // 10}") for n in range(4_000))]
RACE = RaceResult(inside=60_000, refused=40_000, secrets=0, changed_outside=False)


def test_a_good_run_misses_no_bar() -> None:
    figures = compute_figures(GOOD, RACE)
    assert list_missed_bars("jail", figures) == set()
    assert list_exact_bars("jail", among=figures.keys()) == {
        "read_outside", "changed_outside", "unexpected_errors", "honest_calls_refused",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("attempts", "race", "missed"),
    [
        ([*GOOD, replace(REFUSED, outcome="done", has_secret=True)], RACE, "read_outside"),
        ([*GOOD, replace(REFUSED, has_changed_outside=True)], RACE, "changed_outside"),
        ([*GOOD, replace(REFUSED, outcome="error")], RACE, "unexpected_errors"),
        ([*GOOD, replace(HONEST, outcome="refused")], RACE, "honest_calls_refused"),
        (GOOD, replace(RACE, secrets=1), "read_outside"),
        (GOOD, replace(RACE, changed_outside=True), "changed_outside"),
        (GOOD, replace(RACE, inside=100_000, refused=0), "raced_refused"),
    ],
)
def test_each_fault_misses_its_bar(attempts: list[Attempt], race: RaceResult, missed: str) -> None:
    assert list_missed_bars("jail", compute_figures(attempts, race)) == {missed}
