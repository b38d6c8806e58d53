"""What a rule that asks wants of humans, as its annotations say it: who, how many, until when, and signed in how.

    @approvers("oncall, leads")   groups, the first asked first, the next when nobody answers
    @quorum("2")                  so many different people
    @deadline("24h")              minutes, hours or days until the answer is no
    @step_up("hwk")               what an approver's token must say in `amr` or `acr`

Whoever misspells one of them would ask the wrong people, so every value that is not understood is a mistake.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deputize.core.decision import Demand

ANNOTATIONS = ("approvers", "quorum", "deadline", "step_up")
MOST_GROUPS = 10
LONGEST_GROUP = 255
MOST_PEOPLE = 20
MOST_DAYS = 30

_SECONDS = {"m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([1-9][0-9]{0,5})([mhd])", re.ASCII)
_NUMBER = re.compile(r"[1-9][0-9]{0,2}", re.ASCII)
# A space would be two values to who reads a token's `acr_values`; the rest is what identity providers use.
_METHOD = re.compile(r"[!#-\[\]-~]{1,128}")
_FIXES = {
    "approvers": 'write the groups to ask, the first asked first, as in @approvers("oncall, leads")',
    "quorum": f'write how many people must agree, from 1 to {MOST_PEOPLE}, as in @quorum("2")',
    "deadline": f'write minutes, hours or days, at most {MOST_DAYS}d, as in @deadline("30m"), "24h" or "7d"',
    "step_up": 'write what the approver\'s token must have in amr or acr, as in @step_up("hwk")',
}
Marks = Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wants:
    """The defaults leave it to the settings: their groups, one person, their deadline, any fresh sign-in."""

    groups: tuple[str, ...] = ()
    quorum: int = 1
    deadline_seconds: int | None = None
    step_up: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "groups": list(self.groups), "quorum": self.quorum, "deadline_seconds": self.deadline_seconds,
            "step_up": self.step_up,
        }  # fmt: skip


def wanted_by(demand: Demand, usual: Sequence[str] = ()) -> Wants:
    """What a demand wants; `usual` are the groups of the settings, for one that names none."""
    return Wants(
        groups=demand.groups or tuple(usual), quorum=demand.quorum, deadline_seconds=demand.deadline_seconds,
        step_up=demand.step_up,
    )  # fmt: skip


def told(demands: Iterable[Demand], usual: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Which rule wants whom."""
    return [{"rule": each.rule, **wanted_by(each, usual).to_json()} for each in demands]


def wants_of(marks: Marks) -> Wants:
    """What annotations without mistakes say."""
    deadline, quorum = marks.get("deadline"), marks.get("quorum")
    return Wants(
        groups=tuple(_groups(marks.get("approvers") or "")),
        quorum=int(quorum) if quorum else 1,
        deadline_seconds=_seconds(deadline) if deadline else None,
        step_up=marks.get("step_up") or "",
    )


def mistakes(marks: Marks) -> Iterator[str]:
    """What is wrong, in words that follow the rule's place, each with how to write it."""
    given = [name for name in ANNOTATIONS if name in marks]
    if "decision" not in marks:
        for name in given:
            yield f'carries @{name} and asks nobody: add @decision("ask"), or leave @{name} out'
    for name in given:
        wrong = _CHECKS[name](marks[name] or "")
        if wrong:
            yield f"has a @{name} {wrong}: {_FIXES[name]}"


def _approvers(text: str) -> str:
    groups = _groups(text)
    if not text.strip():
        return "that names no group"
    if not all(groups):
        return "with nothing between two commas"
    if len(groups) > MOST_GROUPS:
        return f"of {len(groups)} groups, where at most {MOST_GROUPS} may follow each other"
    if any(len(group) > LONGEST_GROUP for group in groups):
        return f"with a group of more than {LONGEST_GROUP} characters"
    if any(not group.isprintable() or '"' in group for group in groups):
        return "with a group that cannot be printed as it is"
    if len(set(groups)) < len(groups):
        return "that names a group twice"
    return ""


def _quorum(text: str) -> str:
    fits = _NUMBER.fullmatch(text) and int(text) <= MOST_PEOPLE
    return "" if fits else "that is no such number"


def _deadline(text: str) -> str:
    if not _DURATION.fullmatch(text):
        return "that is no such time"
    return "" if _seconds(text) <= MOST_DAYS * _SECONDS["d"] else "that is too far away"


def _step_up(text: str) -> str:
    return "" if _METHOD.fullmatch(text) else "that no token can have"


_CHECKS = {"approvers": _approvers, "quorum": _quorum, "deadline": _deadline, "step_up": _step_up}


def _groups(text: str) -> list[str]:
    return [group.strip() for group in text.split(",")] if text else []


def _seconds(text: str) -> int:
    return int(text[:-1]) * _SECONDS[text[-1]]
