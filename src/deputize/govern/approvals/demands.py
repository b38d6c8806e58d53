"""What has to come together before a call goes on: the demands of every rule that asked, and the votes on them.

A ticket begins at level 0 with the first group of each demand. At each further level one more group may decide, and at
the last level all of them; nobody who could decide before loses that. Above: `deciders.py`, and `lifecycle/approvals`,
which keeps all of this in rows.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deputize.core.decision import Demand
from deputize.core.frozen import frozen
from deputize.core.settings import Approvals


@frozen
class Asked:
    """Demands with the settings' defaults filled in. `levels` are the seconds after the question at which each further
    level begins, `seconds` those at which nobody may decide any more.
    """

    demands: tuple[Demand, ...]
    levels: tuple[float, ...]
    seconds: float

    def groups_of(self, place: int, level: int) -> tuple[str, ...]:
        """Who may decide about one demand at this level, the first asked first."""
        chain = self.demands[place].groups
        return chain if level >= len(self.levels) else chain[: max(level, 0) + 1]

    def groups_at(self, level: int) -> frozenset[str]:
        """Who may decide about any of it at this level."""
        return frozenset(group for place in range(len(self.demands)) for group in self.groups_of(place, level))

    def level_after(self, seconds: float) -> int:
        """The level this long after the question."""
        return sum(1 for begins in self.levels if begins <= seconds)


@frozen
class Vote:
    """One person's yes or no, with the places of the demands it counts for. `glass` is a yes in an emergency."""

    voter: str
    approve: bool
    counts: frozenset[int]
    glass: bool = False


def asked_of(demands: Iterable[Demand], settings: Approvals) -> Asked:
    """What people are asked, in an order that is always the same.

    The nearest deadline of all holds, and none lies beyond the settings'. A nearer one draws the steps together, so
    that everybody in a chain is still asked before time is up.
    """
    filled = sorted((_filled(demand, settings) for demand in demands), key=_order)
    if not filled:
        raise ValueError("nobody asked for anything")
    *steps, last = settings.step_seconds
    seconds = min([float(last), *(each.deadline_seconds for each in filled if each.deadline_seconds is not None)])
    longest = max(len(each.groups) for each in filled)
    levels = tuple(step * seconds / last for step in steps[: longest - 1])
    kept = tuple(each for place, each in enumerate(filled) if each not in filled[:place])
    return Asked(demands=kept, levels=levels, seconds=seconds)


def _filled(demand: Demand, settings: Approvals) -> Demand:
    return Demand(
        rule=demand.rule,
        where=demand.where,
        reason=demand.reason,
        groups=tuple(dict.fromkeys(demand.groups or settings.groups)),
        quorum=max(demand.quorum, 1),
        deadline_seconds=demand.deadline_seconds,
        step_up=demand.step_up,
    )


def _order(demand: Demand) -> tuple[Any, ...]:
    said, wants = (demand.rule, demand.where, demand.reason), (demand.groups, demand.quorum, demand.step_up)
    return (*said, *wants, demand.deadline_seconds or 0)


def written(asked: Asked) -> list[dict[str, Any]]:
    """The demands as JSON, in their places."""
    return demands_told(asked.demands)


def demands_told(demands: Iterable[Demand]) -> list[dict[str, Any]]:
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
        for each in demands
    ]


def demand_from(told: Mapping[str, Any]) -> Demand:
    return Demand(**{**told, "groups": tuple(told["groups"])})


def asked_from(told: Iterable[Mapping[str, Any]], *, levels: Sequence[float], seconds: float = 0.0) -> Asked:
    """What `written` wrote, with what the ticket's row knows beside it."""
    return Asked(demands=tuple(demand_from(each) for each in told), levels=tuple(levels), seconds=seconds)


def have(asked: Asked, votes: Iterable[Vote]) -> tuple[int, ...]:
    """How many different people said yes to each demand."""
    people: list[set[str]] = [set() for _ in asked.demands]
    for vote in votes:
        if vote.approve:
            for place in vote.counts:
                if 0 <= place < len(people):
                    people[place].add(person(vote.voter))
    return tuple(len(each) for each in people)


def unmet(asked: Asked, votes: Iterable[Vote]) -> frozenset[int]:
    """The places of the demands that still lack people."""
    counted = have(asked, votes)
    return frozenset(place for place, demand in enumerate(asked.demands) if counted[place] < demand.quorum)


def met(asked: Asked, votes: Iterable[Vote]) -> bool:
    """Whether every demand has its people. No demands are met by nobody: then something was lost on the way."""
    return bool(asked.demands) and not unmet(asked, votes)


def person(name: str) -> str:
    """The same for names that an identity provider or a person would take for the same: nobody votes twice, or on their
    own call, by spelling themselves otherwise.
    """
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
