"""Compare the pages that came back with the answer that was computed, entry by entry."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from uuid import UUID

from proofs.audit_search.sample_log import ERASED, Drawn
from proofs.kit.report import Figure

Names = tuple[str | None, tuple[str | None, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """Entries of successive pages with the names shown beside them, from before one id down to the last cursor; it is
    None if the last page said that nothing older is left.
    """

    start: UUID
    found: Sequence[tuple[UUID, Names]]
    cursor: UUID | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """How many entries of walks are not as they have to be."""

    missing_entries: int = 0
    unasked_entries: int = 0
    foreign_entries: int = 0
    doubled_entries: int = 0
    misordered_entries: int = 0
    misnamed_entries: int = 0


def judge_walk(
    walk: Walk, expected: Sequence[UUID], drawn: Mapping[UUID, Drawn], may_see: Callable[[Drawn], bool]
) -> Findings:
    """Judge one walk. An entry is foreign if its reader may not see it, whatever they asked."""
    ids = [entry_id for entry_id, _ in walk.found]
    wanted = {each for each in expected if each < walk.start and (walk.cursor is None or each >= walk.cursor)}
    known = [(drawn[entry_id], names) for entry_id, names in walk.found if entry_id in drawn]
    return Findings(
        missing_entries=len(wanted.difference(ids)),
        unasked_entries=sum(each not in wanted for each in ids),
        foreign_entries=len(ids) - len(known) + sum(not may_see(each) for each, _ in known),
        doubled_entries=len(ids) - len(set(ids)),
        misordered_entries=sum(newer < older for newer, older in pairwise(ids)),
        misnamed_entries=sum(names != _name(each) for each, names in known),
    )


def add_findings(findings: Iterable[Findings]) -> dict[str, Figure]:
    """Add up the findings of all walks, as figures."""
    totals = dict.fromkeys(Findings.__dataclass_fields__, 0)
    for each in findings:
        for name in totals:
            totals[name] += getattr(each, name)
    return dict(totals)


def compute_percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that so many of a hundred do not exceed."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


def _name(drawn: Drawn) -> Names:
    return None if drawn.user == ERASED else drawn.user, drawn.agents
