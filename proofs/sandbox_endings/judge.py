"""Judge how calls ended by what each program did to itself, or the proof to it; and what is left of sandboxes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from proofs.kit.report import Figure
from proofs.sandbox_endings.programs import SUCCEEDED, Way

COMMAND, INTERPRETER = "namespaces", "interpreter"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How the call of one program ended, and how long the program then ran on."""

    backend: str
    way: Way
    state: str
    number: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    ran_on_seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        if self.way.number is None:
            return self.state == SUCCEEDED
        has_details = all(self.details.get(name) == value for name, value in self.way.detail.items())
        return self.state != SUCCEEDED and self.number == self.way.number and has_details

    def __str__(self) -> str:
        details = {name: value for name, value in self.details.items() if name in ("ended_by", "exit_code", "limit")}
        said = " ".join(map(str, filter(None, (self.number, details))))
        return f"{self.backend}, {self.way.name}: {self.state} {said}, not {self.way.number or SUCCEEDED}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """What the host holds of sandboxes that have ended."""

    processes: int = 0
    control_groups: int = 0
    mounts: int = 0
    namespaces: int = 0
    folders: int = 0
    descriptors: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Churn:
    """What became of many sandboxes while their supervisor was killed again and again.

    `lost` are those that said they were ended from outside, or were not started: no kill explains more than `at_once`.
    `untrue` said that they had succeeded without having done what they were started for, or were not ended as ordered.
    """

    sandboxes: int
    kills: int
    lost: int
    untrue: tuple[str, ...]
    at_once: int
    left: Left

    @property
    def unexplained(self) -> int:
        return max(0, self.lost - self.kills * self.at_once)


def compute_figures(ended: Sequence[Ended], left: Left, churn: Churn) -> dict[str, Figure]:
    """Compute the figures that the bars are about."""
    lefts = (left, churn.left)
    return {
        "calls": len(ended),
        "ways_of_namespaces": _count_ways(ended, COMMAND),
        "ways_of_interpreter": _count_ways(ended, INTERPRETER),
        "misnamed": sum(not each.is_right for each in ended),
        "canceled_command_ran_on_seconds": _find_longest(ended, COMMAND),
        "canceled_program_ran_on_seconds": _find_longest(ended, INTERPRETER),
        "sandboxes": churn.sandboxes,
        "supervisors_killed": churn.kills,
        "untrue_endings": len(churn.untrue),
        "unexplained_endings": churn.unexplained,
        "processes_left": sum(each.processes for each in lefts),
        "control_groups_left": sum(each.control_groups for each in lefts),
        "mounts_left": sum(each.mounts for each in lefts),
        "namespaces_left": sum(each.namespaces for each in lefts),
        "folders_left": sum(each.folders for each in lefts),
        "descriptors_left": sum(each.descriptors for each in lefts),
    }


def _count_ways(ended: Iterable[Ended], backend: str) -> int:
    return len({each.way.name for each in ended if each.backend == backend})


def _find_longest(ended: Iterable[Ended], backend: str) -> float:
    return round(max((each.ran_on_seconds for each in ended if each.backend == backend), default=0.0), 2)
