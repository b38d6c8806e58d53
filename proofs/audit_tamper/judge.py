"""Whether a log has what was acknowledged, and whether faults were found where they are; nothing is started here."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from proofs.kit.report import Figure

# The history of a call in letters: an intent, an unknown outcome, success.
_LETTERS: Final = {("intent", None): "i", ("outcome", "unknown"): "u", ("outcome", "succeeded"): "s"}
_SENT_ONCE: Final = re.compile("is")
_SENT_AGAIN: Final = re.compile("(iu?)*is")


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultPlace:
    """Where a fault is. An exact one has to be named as it is.

    Else what is named has to meet `first` to `last`, and to be within what the checkpoints around it enclose.
    """

    first: int
    last: int
    enclosed_first: int | None = None
    enclosed_last: int | None = None

    def is_named_by(self, first: int, last: int) -> bool:
        """Tell whether a verdict about entries `first` to `last` points here."""
        if self.enclosed_first is None or self.enclosed_last is None:
            return (first, last) == (self.first, self.last)
        is_within = self.enclosed_first <= first <= last <= self.enclosed_last
        return is_within and first <= self.last and last >= self.first


@dataclass(frozen=True, kw_only=True, slots=True)
class TamperingResult:
    """One change of the database, and what the verifier said: a place, names of entries beside the log, or nothing."""

    kind: str
    expected: FaultPlace | str
    found: tuple[int, int] | None
    unlogged_entries: Sequence[str] = ()

    @property
    def is_detected(self) -> bool:
        """Whether the log was not trusted."""
        return self.found is not None or bool(self.unlogged_entries)

    @property
    def is_at_its_place(self) -> bool:
        """Whether the verdict points at what was changed."""
        if isinstance(self.expected, str):
            return list(self.unlogged_entries) == [self.expected] and self.found is None
        return self.found is not None and self.expected.is_named_by(*self.found)


def judge_tampering(results: Sequence[TamperingResult]) -> dict[str, Figure]:
    """Count changes that went unnoticed, and verdicts that point elsewhere."""
    return {
        "changes": len(results),
        "kinds_of_change": len({each.kind for each in results}),
        "undetected": sum(not each.is_detected for each in results),
        "at_another_place": sum(each.is_detected and not each.is_at_its_place for each in results),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedCallEntry:
    """An entry of a call in the log."""

    call_id: str
    kind: str
    outcome: str | None = None


def judge_entries(attempts: Mapping[str, int], entries: Sequence[LoggedCallEntry]) -> dict[str, Figure]:
    """Compare the log with the calls that were acknowledged, and how often the caller sent each.

    One that was sent once has one intent and one outcome. One that was sent again, because its gateway died, may have
    begun more than once, each time with an intent; it succeeded once, and last.
    """
    histories: defaultdict[str, str] = defaultdict(str)
    for each in entries:
        histories[each.call_id] += _LETTERS.get((each.kind, each.outcome), "x")
    figures: Counter[str] = Counter()
    for call_id, count in attempts.items():
        history = histories[call_id]
        pattern = _SENT_ONCE if count == 1 else _SENT_AGAIN
        figures["calls_with_another_history"] += pattern.fullmatch(history) is None
        figures["entries_lost"] += ("i" not in history) + ("s" not in history)
        figures["entries_repeated"] += max(history.count("s") - 1, 0)
        figures["entries_of_acknowledged_calls"] += len(history)
    return {
        "acknowledged": len(attempts),
        "acknowledged_after_repeats": sum(count > 1 for count in attempts.values()),
        "calls_with_another_history": figures["calls_with_another_history"],
        "entries_lost": figures["entries_lost"],
        "entries_repeated": figures["entries_repeated"],
        "entries_of_acknowledged_calls": figures["entries_of_acknowledged_calls"],
        "entries_of_other_calls": len(entries) - figures["entries_of_acknowledged_calls"],
    }
