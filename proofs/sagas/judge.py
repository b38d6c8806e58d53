"""What must hold of changes that failed, by what the ledger says is still there and what their outcomes say is left."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proofs.kit.ledger import Effect

STEPS = 6
# Whether these are still there is not known to the gateway, and it says so.
_DOUBTS = frozenset({"uncertain", "undo_uncertain"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """Which step fails, and of which one the compensation does; 0 for none."""

    failing_step: int = 0
    failure: str = "refuses"
    stuck_step: int = 0
    obstacle: str = "locked"

    def count_calls(self) -> int:
        """Count the calls of steps that are made."""
        return self.failing_step or STEPS

    def count_compensations(self) -> int:
        """Count the calls that take something back, with the one that fails."""
        if not self.failing_step or self.failure == "doubtful":
            return 0
        return self.failing_step - max(self.stuck_step, 1)

    def build_arguments(self, label: str) -> dict[str, object]:
        return {
            f"s{number}": {
                "label": f"{label}-s{number}",
                "fails": self.failure if number == self.failing_step else "no",
                "stuck": self.obstacle if number == self.stuck_step else "no",
            }
            for number in range(1, STEPS + 1)
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A flow after the storm: its scenario, its state, its outcome and the open tasks about it."""

    label: str
    scenario: Scenario
    state: str
    is_struck: bool = False
    compensation: Mapping[str, Any] | None = None
    tasks: Sequence[Mapping[str, Any]] = ()


@dataclass(kw_only=True, slots=True)
class Judgement:
    ends: Counter[str] = field(default_factory=Counter)
    open_changes: list[str] = field(default_factory=list)
    silent_partials: list[str] = field(default_factory=list)
    wrong_remainders: list[str] = field(default_factory=list)
    repeated_effects: list[str] = field(default_factory=list)
    wrong_tasks: list[str] = field(default_factory=list)
    unexpected_ends: list[str] = field(default_factory=list)

    def list_sentences(self) -> list[str]:
        return [
            *self.open_changes, *self.silent_partials, *self.wrong_remainders, *self.repeated_effects,
            *self.wrong_tasks, *self.unexpected_ends,
        ]  # fmt: skip


def judge_changes(changes: Sequence[Change], effects: Sequence[Effect]) -> Judgement:
    """Judge changes; the ledger is what happened."""
    counts = Counter((each.tool, each.call) for each in effects)
    judgement = Judgement()
    for change in changes:
        _judge_change(judgement, change, counts)
    return judgement


def _judge_change(judgement: Judgement, change: Change, counts: Mapping[tuple[str, str], int]) -> None:
    things = {f"s{number}": f"{change.label}-s{number}" for number in range(1, STEPS + 1)}
    for thing in things.values():
        for act in ("make", "unmake"):
            if counts.get((act, thing), 0) > 1:
                judgement.repeated_effects.append(f"{thing}: {counts[act, thing]} times {act}")
    standing = {
        step for step, thing in things.items() if counts.get(("make", thing), 0) > counts.get(("unmake", thing), 0)
    }
    if change.state in ("queued", "running", "awaiting_approval"):
        judgement.open_changes.append(f"{change.label} is {change.state}")
        return
    if change.state == "succeeded":
        judgement.ends["completed"] += 1
        if len(standing) < STEPS:
            judgement.silent_partials.append(f"{change.label} succeeded, and only {sorted(standing)} are there")
        if change.scenario.failing_step:
            judgement.unexpected_ends.append(f"{change.label} succeeded, and {change.scenario} should not")
        return
    compensation = change.compensation or {"state": "kept", "left": [], "compensated": []}
    left = {each["step"]: each["reason"] for each in compensation["left"]}
    judgement.ends["flagged" if left else "compensated"] += 1
    if silent := standing - left.keys():
        judgement.silent_partials.append(f"{change.label}: {sorted(silent)} are there, and not named")
    if wrong := {step for step in left if step not in standing and left[step] not in _DOUBTS}:
        judgement.wrong_remainders.append(f"{change.label}: {sorted(wrong)} are named, and not there")
    if wrong := standing & {each["step"] for each in compensation["compensated"]}:
        judgement.wrong_remainders.append(f"{change.label}: {sorted(wrong)} are there, and said to be taken back")
    if [each["left"] for each in change.tasks] != ([compensation["left"]] if left else []):
        judgement.wrong_tasks.append(f"{change.label}: {len(change.tasks)} tasks, and {len(left)} steps left")
    _judge_end(judgement, change, left)


def _judge_end(judgement: Judgement, change: Change, left: Mapping[str, str]) -> None:
    """Judge whether the change stopped where its scenario says, and no sooner."""
    scenario = change.scenario
    first = scenario.failing_step if scenario.failure == "doubtful" else scenario.stuck_step
    if change.is_struck and left.get(f"s{scenario.failing_step}") == "uncertain":
        # Its worker died in the step that fails: that the next one could not act proves nothing about the first.
        first = scenario.failing_step
    expected = {f"s{number}" for number in range(1, first + 1)}
    if change.compensation is not None and (not scenario.failing_step or left.keys() != expected):
        judgement.unexpected_ends.append(f"{change.label}: {sorted(left)} are left, and {scenario} says otherwise")
