"""Plan an approval: combine the requirements of all rules that need one, and count the votes on them.

An approval request starts at escalation level 0 with the first group of each requirement. Each further level adds the
next group, and the last level adds all that remain. A group that may decide keeps that right at later levels.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deputize.core.decision import ApprovalRequirement
from deputize.core.settings import ApprovalSettings
from deputize.core.value_types import frozen


@frozen
class ApprovalPlan:
    """Requirements with the defaults of the settings applied.

    `levels` are the seconds after the request at which each further escalation level starts; after `seconds` the
    request expires.
    """

    requirements: tuple[ApprovalRequirement, ...]
    levels: tuple[float, ...]
    seconds: float

    def get_requirement_groups(self, index: int, level: int) -> tuple[str, ...]:
        """Return the groups that may decide on one requirement at this level, in escalation order."""
        chain = self.requirements[index].groups
        return chain if level >= len(self.levels) else chain[: max(level, 0) + 1]

    def get_groups(self, level: int) -> frozenset[str]:
        """Return the groups that may decide on any requirement at this level."""
        return frozenset(
            group for index in range(len(self.requirements)) for group in self.get_requirement_groups(index, level)
        )


@frozen
class Vote:
    """One person's decision, with the indexes of the requirements it counts for."""

    voter: str
    approve: bool
    requirement_indexes: frozenset[int]
    is_break_glass: bool = False


def build_approval_plan(requirements: Iterable[ApprovalRequirement], settings: ApprovalSettings) -> ApprovalPlan:
    """Build the plan for all requirements, in a stable order.

    The earliest deadline applies to all of them, and none is later than the settings allow. With an earlier deadline
    the escalation steps shrink in proportion, so that every group in a chain is still reached in time.
    """
    full_requirements = sorted(
        (_apply_defaults(requirement, settings) for requirement in requirements), key=_make_sort_key
    )
    if not full_requirements:
        raise ValueError("an approval plan needs at least one requirement")
    *steps, last = settings.step_seconds
    seconds = min(
        [float(last), *(each.deadline_seconds for each in full_requirements if each.deadline_seconds is not None)]
    )
    longest_chain = max(len(each.groups) for each in full_requirements)
    levels = tuple(step * seconds / last for step in steps[: longest_chain - 1])
    unique_requirements = tuple(
        each for index, each in enumerate(full_requirements) if each not in full_requirements[:index]
    )
    return ApprovalPlan(requirements=unique_requirements, levels=levels, seconds=seconds)


def _apply_defaults(requirement: ApprovalRequirement, settings: ApprovalSettings) -> ApprovalRequirement:
    return ApprovalRequirement(
        rule=requirement.rule,
        where=requirement.where,
        reason=requirement.reason,
        groups=tuple(dict.fromkeys(requirement.groups or settings.groups)),
        quorum=max(requirement.quorum, 1),
        deadline_seconds=requirement.deadline_seconds,
        step_up=requirement.step_up,
    )


def _make_sort_key(requirement: ApprovalRequirement) -> tuple[Any, ...]:
    origin, terms = (
        (requirement.rule, requirement.where, requirement.reason),
        (requirement.groups, requirement.quorum, requirement.step_up),
    )
    return (*origin, *terms, requirement.deadline_seconds or 0)


def serialize_plan(plan: ApprovalPlan, *, step_count: int = 1) -> list[dict[str, Any]]:
    """Serialize the requirements of a plan, in order.

    With the number of steps where there are several: a release that cannot show them does not know the field, and fails
    before anybody decides.
    """
    steps = {} if step_count == 1 else {"steps": step_count}
    return [each | steps for each in serialize_requirements(plan.requirements)]


def serialize_requirements(requirements: Iterable[ApprovalRequirement]) -> list[dict[str, Any]]:
    return [
        {
            "rule": each.rule,
            "where": each.where,
            "reason": each.reason,
            "groups": list(each.groups),
            "quorum": each.quorum,
            "deadline_seconds": each.deadline_seconds,
            "step_up": each.step_up,
        }
        for each in requirements
    ]


def parse_requirement(data: Mapping[str, Any]) -> ApprovalRequirement:
    fields = {name: value for name, value in data.items() if name != "steps"}
    return ApprovalRequirement(**{**fields, "groups": tuple(data["groups"])})


def parse_plan(data: Iterable[Mapping[str, Any]], *, levels: Sequence[float], seconds: float = 0.0) -> ApprovalPlan:
    """Parse what `serialize_plan` wrote, with the escalation levels from the approval request's row."""
    return ApprovalPlan(
        requirements=tuple(parse_requirement(each) for each in data), levels=tuple(levels), seconds=seconds
    )


def count_approvals(plan: ApprovalPlan, votes: Iterable[Vote]) -> tuple[int, ...]:
    """Count the different people who approved each requirement."""
    people: list[set[str]] = [set() for _ in plan.requirements]
    for vote in votes:
        if vote.approve:
            for index in vote.requirement_indexes:
                if 0 <= index < len(people):
                    people[index].add(normalize_person(vote.voter))
    return tuple(len(each) for each in people)


def find_unmet_requirements(plan: ApprovalPlan, votes: Iterable[Vote]) -> frozenset[int]:
    """Return the indexes of the requirements that need more approvals."""
    counts = count_approvals(plan, votes)
    return frozenset(index for index, requirement in enumerate(plan.requirements) if counts[index] < requirement.quorum)


def is_plan_met(plan: ApprovalPlan, votes: Iterable[Vote]) -> bool:
    """Tell whether every requirement has enough approvals. A plan without requirements is damaged, and never met."""
    return bool(plan.requirements) and not find_unmet_requirements(plan, votes)


def normalize_person(name: str) -> str:
    """Normalize a person's name, so that another spelling gives no second vote and no vote on one's own call."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
