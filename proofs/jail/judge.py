"""Judge what was tried against a folder: nothing beside it may be read or changed, and honest calls must succeed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from proofs.jail.arena import HARMLESS
from proofs.kit.report import Figure

Outcome = Literal["done", "refused", "error"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One call of a tool with one path."""

    tool: str
    kind: str
    path: str
    outcome: Outcome
    has_secret: bool
    has_changed_outside: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RaceResult:
    """How raced opens ended: with what is inside, refused, or with the secret."""

    inside: int
    refused: int
    secrets: int
    changed_outside: bool


def compute_figures(attempts: Sequence[Attempt], race: RaceResult) -> dict[str, Figure]:
    """Compute the figures that the bars are about."""
    hostile = [each for each in attempts if each.kind != HARMLESS]
    tools = Counter(each.tool for each in hostile)
    return {
        "hostile_paths": len({each.path for each in hostile}),
        "tools": len(tools),
        "attempts": len(hostile),
        "read_outside": sum(each.has_secret for each in attempts) + race.secrets,
        "changed_outside": sum(each.has_changed_outside for each in attempts) + race.changed_outside,
        "unexpected_errors": sum(each.outcome == "error" for each in attempts),
        "honest_calls_refused": sum(each.kind == HARMLESS and each.outcome != "done" for each in attempts),
        "raced_opens": race.inside + race.refused + race.secrets,
        "raced_inside": race.inside,
        "raced_refused": race.refused,
    }
