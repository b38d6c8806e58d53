"""Parse the approval annotations of a rule with `@decision("ask")`.

    @approvers("oncall, leads")   groups in escalation order: the next is asked when the one before does not decide
    @quorum("2")                  how many different people must approve
    @deadline("24h")              minutes, hours or days until the request is denied automatically
    @step_up("hwk")               a value that the approver's token must have in `amr` or `acr`

A misspelt value would ask the wrong people, so every value that is not understood is an error.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deputize.core.decision import ApprovalRequirement

ANNOTATIONS = ("approvers", "quorum", "deadline", "step_up")
MAX_GROUPS = 10
MAX_GROUP_LENGTH = 255
MAX_PEOPLE = 20
MAX_DAYS = 30

_SECONDS = {"m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([1-9][0-9]{0,5})([mhd])", re.ASCII)
_NUMBER = re.compile(r"[1-9][0-9]{0,2}", re.ASCII)
# No space: `acr_values` is a list separated by spaces. The rest is what identity providers use.
_METHOD = re.compile(r"[!#-\[\]-~]{1,128}")
_FIXES = {
    "approvers": 'list the groups in escalation order, as in @approvers("oncall, leads")',
    "quorum": f'write how many people must approve, from 1 to {MAX_PEOPLE}, as in @quorum("2")',
    "deadline": f'write minutes, hours or days, at most {MAX_DAYS}d, as in @deadline("30m"), "24h" or "7d"',
    "step_up": 'write a value that approvers have in amr or acr, as in @step_up("hwk")',
}
Annotations = Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ApprovalTerms:
    """Who must approve, how many, until when and with which sign-in method. Defaults come from the settings."""

    groups: tuple[str, ...] = ()
    quorum: int = 1
    deadline_seconds: int | None = None
    step_up: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "groups": list(self.groups), "quorum": self.quorum, "deadline_seconds": self.deadline_seconds,
            "step_up": self.step_up,
        }  # fmt: skip


def get_approval_terms(requirement: ApprovalRequirement, default_groups: Sequence[str] = ()) -> ApprovalTerms:
    """Return the terms of a requirement. `default_groups` apply if it names no group."""
    return ApprovalTerms(
        groups=requirement.groups or tuple(default_groups),
        quorum=requirement.quorum,
        deadline_seconds=requirement.deadline_seconds,
        step_up=requirement.step_up,
    )


def describe_requirements(
    requirements: Iterable[ApprovalRequirement], default_groups: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Describe each requirement as JSON: the rule, and the terms it sets."""
    return [{"rule": each.rule, **get_approval_terms(each, default_groups).to_json()} for each in requirements]


def parse_approval_terms(annotations: Annotations) -> ApprovalTerms:
    """Parse valid annotations."""
    deadline, quorum = annotations.get("deadline"), annotations.get("quorum")
    return ApprovalTerms(
        groups=tuple(_split_groups(annotations.get("approvers") or "")),
        quorum=int(quorum) if quorum else 1,
        deadline_seconds=_parse_duration(deadline) if deadline else None,
        step_up=annotations.get("step_up") or "",
    )


def find_annotation_errors(annotations: Annotations) -> Iterator[str]:
    """Yield a message for each invalid annotation, with how to write it."""
    names = [name for name in ANNOTATIONS if name in annotations]
    if "decision" not in annotations:
        for name in names:
            yield f'this rule has @{name} but requires no approval: add @decision("ask"), or remove @{name}'
    for name in names:
        error = _CHECKS[name](annotations[name] or "")
        if error:
            yield f"@{name} {error}: {_FIXES[name]}"


def _check_approvers(text: str) -> str:
    groups = _split_groups(text)
    if not text.strip():
        return "names no group"
    if not all(groups):
        return "has an empty name between two commas"
    if len(groups) > MAX_GROUPS:
        return f"lists {len(groups)} groups, more than {MAX_GROUPS}"
    if any(len(group) > MAX_GROUP_LENGTH for group in groups):
        return f"has a group name longer than {MAX_GROUP_LENGTH} characters"
    if any(not group.isprintable() or '"' in group for group in groups):
        return "has a group name with quotes or unprintable characters"
    if len(set(groups)) < len(groups):
        return "names a group twice"
    return ""


def _check_quorum(text: str) -> str:
    is_valid = _NUMBER.fullmatch(text) and int(text) <= MAX_PEOPLE
    return "" if is_valid else f"is not a number from 1 to {MAX_PEOPLE}"


def _check_deadline(text: str) -> str:
    if not _DURATION.fullmatch(text):
        return "is not a duration"
    return "" if _parse_duration(text) <= MAX_DAYS * _SECONDS["d"] else f"is longer than {MAX_DAYS} days"


def _check_step_up(text: str) -> str:
    return "" if _METHOD.fullmatch(text) else "is not a value that a token can have"


_CHECKS = {
    "approvers": _check_approvers,
    "quorum": _check_quorum,
    "deadline": _check_deadline,
    "step_up": _check_step_up,
}


def _split_groups(text: str) -> list[str]:
    return [group.strip() for group in text.split(",")] if text else []


def _parse_duration(text: str) -> int:
    return int(text[:-1]) * _SECONDS[text[-1]]
