"""What became of events, judged from what the audit holds and what the stream has: nothing is started or asked here."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from proofs.kit.report import Figure

# Which kind of entry comes first in a call.
_RANKS = {"intent": 0, "outcome": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedEntry:
    """An audit entry of the database."""

    id: str
    call_id: str | None
    kind: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedEvent:
    """An event of the stream, in the stream's order."""

    id: str
    call_id: str | None
    kind: str


def judge_events(entries: Sequence[LoggedEntry], events: Sequence[ReceivedEvent], calls: int) -> dict[str, Figure]:
    """Compare the stream with the audit, and with the calls that were acknowledged."""
    counts = Counter(event.id for event in events)
    known_ids = {entry.id for entry in entries}
    outcomes = {event.call_id for event in events if event.kind == "outcome"}
    return {
        "calls": calls,
        "events": len(events),
        "events_lost": sum(1 for entry in entries if entry.id not in counts),
        "events_unknown": sum(1 for id in counts if id not in known_ids),
        "events_repeated": sum(counts.values()) - len(counts),
        "calls_out_of_order": count_disorder(events),
        "calls_without_an_outcome": max(calls - len(outcomes), 0),
    }


def count_disorder(events: Sequence[ReceivedEvent]) -> int:
    """Count the calls whose events, at their first occurrence, are not in the order in which they happened."""
    ranks: defaultdict[str, list[int]] = defaultdict(list)
    seen: set[str] = set()
    for event in events:
        if event.call_id is not None and event.kind in _RANKS and event.id not in seen:
            seen.add(event.id)
            ranks[event.call_id].append(_RANKS[event.kind])
    return sum(1 for each in ranks.values() if each != sorted(each))


def compute_p99(durations: Sequence[float]) -> float:
    """Compute the 99th percentile, in milliseconds."""
    return sorted(durations)[min(len(durations) * 99 // 100, len(durations) - 1)] * 1000
