"""The judge of `sagas` finds each fault that is planted into what it is given."""

from typing import Any

import pytest

from proofs.kit.ledger import Effect
from proofs.sagas.experiment import list_scenarios
from proofs.sagas.judge import Change, Judgement, Scenario, judge_changes

pytestmark = pytest.mark.requirement("RES-4")

FAILED = Scenario(failing_step=3, stuck_step=1)
LEFT = {
    "state": "incomplete",
    "left": [{"step": "s1", "reason": "compensation_failed"}],
    "compensated": [{"step": "s2"}],
}


def _judge(effects: str = "+1 +2 -2", **fields: Any) -> Judgement:
    """`+1` makes the first thing, `-1` takes it away."""
    acts = [
        Effect(sequence=place, key=str(place), tool="make" if each[0] == "+" else "unmake", call=f"c-s{each[1]}")
        for place, each in enumerate(effects.split())
    ]
    facts: dict[str, Any] = {"scenario": FAILED, "state": "failed", "compensation": LEFT, "tasks": [LEFT]}
    return judge_changes([Change(label="c", **{**facts, **fields})], acts)


def test_what_is_as_it_should_be_is_not_found_fault_with() -> None:
    judgement = _judge()
    assert (judgement.list_sentences(), judgement.ends["flagged"]) == ([], 1)
    whole = _judge("+1 +2 +3 +4 +5 +6", scenario=Scenario(), state="succeeded", compensation=None, tasks=())
    assert (whole.list_sentences(), whole.ends["completed"]) == ([], 1)


def test_a_worker_that_dies_in_the_step_that_fails_leaves_a_doubt() -> None:
    left = [{"step": step, "reason": "uncertain"} for step in ("s3", "s2", "s1")]
    facts = {"compensation": {**LEFT, "left": left, "compensated": []}, "tasks": [{"left": left}]}
    assert not _judge("+1 +2", is_struck=True, **facts).list_sentences()
    assert _judge("+1 +2", **facts).unexpected_ends


@pytest.mark.parametrize(
    ("field", "effects", "facts"),
    [
        ("silent_partials", "+1 +2", {}),
        ("silent_partials", "+1", {"compensation": None, "tasks": ()}),
        ("silent_partials", "+1", {"scenario": Scenario(), "state": "succeeded", "compensation": None, "tasks": ()}),
        ("wrong_remainders", "+1 -1 +2 -2", {}),
        ("wrong_remainders", "+1 +2", {}),
        ("repeated_effects", "+1 +2 -2 -2", {}),
        ("repeated_effects", "+1 +1 +2 -2", {}),
        ("wrong_tasks", "+1 +2 -2", {"tasks": ()}),
        ("wrong_tasks", "+1 +2 -2", {"tasks": [{"left": []}]}),
        ("open_changes", "+1 +2 -2", {"state": "queued"}),
        ("unexpected_ends", "+1 +2 -2", {"scenario": Scenario(failing_step=3)}),
        ("unexpected_ends", "+1 +2 +3 +4 +5 +6", {"state": "succeeded", "compensation": None, "tasks": ()}),
    ],
)
def test_a_planted_fault_is_found(field: str, effects: str, facts: dict[str, Any]) -> None:
    assert getattr(_judge(effects, **facts), field)


def test_every_step_fails_and_every_compensation_does() -> None:
    scenarios = list_scenarios()
    assert len(set(scenarios)) == len(scenarios) == 43
