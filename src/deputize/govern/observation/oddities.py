"""Name what is unusual about recorded calls, each by a simple rule that says why.

The rules compare a call with the other calls of the period: those of the same agent, or of the same tool. They need at
least `MIN_CALLS` calls to compare with, and take time linear in the calls. Nothing is learned from outside.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from deputize.core.value_types import frozen
from deputize.govern.observation.observed_call import ObservedCall

# With fewer calls to compare with, nothing is usual yet.
MIN_CALLS: Final = 30
# What happens this often in a period, among many calls, is no habit.
MAX_RARE: Final = 2


class OddityKind(StrEnum):
    """What can be unusual; the value is the name in reports."""

    RARE_TOOL = "rare-tool"
    RARE_SYSTEM = "rare-system"
    RARE_CALLER = "rare-caller"
    RARE_PAIRING = "rare-pairing"
    UNUSUAL_CHAIN = "unusual-chain"
    RARE_CHANGE = "rare-change"
    UNUSUAL_HOUR = "unusual-hour"
    UNUSUAL_DAY = "unusual-day"
    BURST = "burst"
    NUMBER_OUT_OF_RANGE = "number-out-of-range"
    RARE_VALUE = "rare-value"
    RARE_DOMAIN = "rare-domain"
    RARE_HOST = "rare-host"
    RARE_FOLDER = "rare-folder"
    RARE_ARGUMENT = "rare-argument"
    LONG_TEXT = "long-text"
    MANY_ITEMS = "many-items"
    SENSITIVE_PATH = "sensitive-path"
    SECRET_IN_ARGUMENT = "secret-in-argument"
    INJECTION_SUSPICION = "injection-suspicion"
    CHANGE_AFTER_SECRET = "change-after-secret"
    REPEATED_FAILURES = "repeated-failures"
    REFUSED_RETRIES = "refused-retries"
    REPEATED_CHANGE = "repeated-change"
    ENUMERATION = "enumeration"
    UNKNOWN_TOOL = "unknown-tool"
    CHANGED_TOOL = "changed-tool"
    LARGE_RESULT = "large-result"
    EXPENSIVE = "expensive"


@frozen
class Oddity:
    """Why one call is unusual, as a clause for people."""

    kind: OddityKind
    reason: str


class OddCalls:
    """The unusual calls that rules found, each with its reasons."""

    def __init__(self) -> None:
        self.by_call: dict[str, list[Oddity]] = {}

    def add(self, call: ObservedCall, kind: OddityKind, reason: str) -> None:
        """Add a reason, once for each kind."""
        oddities = self.by_call.setdefault(call.call_id, [])
        if all(each.kind is not kind for each in oddities):
            oddities.append(Oddity(kind=kind, reason=reason))

    def is_odd(self, call: ObservedCall) -> bool:
        return call.call_id in self.by_call

    def to_json(self, calls: Iterable[ObservedCall]) -> list[dict[str, Any]]:
        """List the unusual calls in the order of time."""
        return [
            {
                "call_id": call.call_id,
                "at_ms": call.at_ms,
                "user": call.user,
                "agents": list(call.agents),
                "tool": call.tool,
                "oddities": [{"kind": each.kind.value, "reason": each.reason} for each in self.by_call[call.call_id]],
            }
            for call in calls
            if call.call_id in self.by_call
        ]


def group_calls(calls: Iterable[ObservedCall], key: Any) -> Mapping[Any, Sequence[ObservedCall]]:
    """Group calls by what a function reads from each."""
    groups: dict[Any, list[ObservedCall]] = defaultdict(list)
    for call in calls:
        groups[key(call)].append(call)
    return groups
