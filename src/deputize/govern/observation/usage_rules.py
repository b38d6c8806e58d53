"""Find calls that are unusual for their caller: other tools, systems, users, hours and days, and bursts."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from deputize.govern.observation.observed_call import ObservedCall, find_share
from deputize.govern.observation.oddities import MAX_RARE, MIN_CALLS, OddCalls, OddityKind, group_calls

# An actor whose habits are known: rare things among fewer calls than this are not unusual.
_MIN_ACTOR_CALLS: Final = 100
_MINUTE_MS: Final = 60_000
_MIN_BURST: Final = 20
_BURST_FACTOR: Final = 4
_MIN_USUAL_DAY: Final = 15
_UNKNOWN_TOOL_ERROR: Final = "E3101"
_CHANGED_TOOL_ERROR: Final = "E3109"


def find_unusual_usage(calls: Sequence[ObservedCall], odd_calls: OddCalls) -> None:
    """Apply the rules about who calls what and when."""
    for call in calls:
        if call.error == _UNKNOWN_TOOL_ERROR:
            odd_calls.add(call, OddityKind.UNKNOWN_TOOL, "there is no such tool")
        elif call.error == _CHANGED_TOOL_ERROR:
            odd_calls.add(call, OddityKind.CHANGED_TOOL, "the server had changed this tool after it was accepted")
    for actor, own_calls in group_calls(calls, lambda call: call.actor).items():
        if len(own_calls) <= MAX_RARE and len(calls) >= _MIN_ACTOR_CALLS:
            for call in own_calls:
                odd_calls.add(call, OddityKind.RARE_CALLER, f"{actor} made {len(own_calls)} calls in the whole period")
        elif len(own_calls) >= _MIN_ACTOR_CALLS:
            _find_rare_uses(own_calls, odd_calls)
            _find_unusual_times(own_calls, odd_calls)
        if len(own_calls) >= MIN_CALLS:
            _find_bursts(own_calls, odd_calls)


def _find_rare_uses(calls: Sequence[ObservedCall], odd_calls: OddCalls) -> None:
    total = len(calls)
    rules: tuple[tuple[OddityKind, Callable[[ObservedCall], object], str], ...] = (
        (OddityKind.RARE_TOOL, lambda call: call.tool, "used this tool"),
        (OddityKind.RARE_SYSTEM, lambda call: call.system, "used this system"),
        (OddityKind.RARE_PAIRING, lambda call: call.user, "acted for this user"),
        (OddityKind.UNUSUAL_CHAIN, lambda call: len(call.agents), "was called through so many agents"),
    )
    for kind, key, what in rules:
        counts = Counter(key(call) for call in calls)
        for call in calls:
            if counts[key(call)] <= MAX_RARE:
                odd_calls.add(call, kind, f"{call.actor} {what} {counts[key(call)]} times in {total} calls")
    changes = [call for call in calls if not call.is_read]
    if len(changes) <= MAX_RARE:
        for call in changes:
            odd_calls.add(call, OddityKind.RARE_CHANGE, f"{call.actor} otherwise only reads, in {total} calls")


def _find_unusual_times(calls: Sequence[ObservedCall], odd_calls: OddCalls) -> None:
    """Find the hours in which an actor is hardly ever active, with those before and after, and such days."""
    by_hour = Counter(call.hour for call in calls)
    # A burst in the night is unusual for its hour too, so days count and not calls.
    days_by_hour = Counter(hour for hour, _ in {(call.hour, call.day) for call in calls})
    by_day = Counter(call.day for call in calls)
    usual_day = find_share(sorted(by_day.values()), 0.5)
    for call in calls:
        near = [(call.hour + shift) % 24 for shift in (-1, 0, 1)]
        if max(days_by_hour[hour] for hour in near) <= 1 and sum(by_hour[hour] for hour in near) * 20 < len(calls):
            reason = (
                f"{call.actor} made {sum(by_hour[hour] for hour in near)} of {len(calls)} calls near {call.hour}:00"
            )
            odd_calls.add(call, OddityKind.UNUSUAL_HOUR, f"{reason} UTC")
        if by_day[call.day] <= MAX_RARE and usual_day >= _MIN_USUAL_DAY:
            reason = f"{call.actor} made {by_day[call.day]} calls on this day, usually {usual_day}"
            odd_calls.add(call, OddityKind.UNUSUAL_DAY, reason)


def _find_bursts(calls: Sequence[ObservedCall], odd_calls: OddCalls) -> None:
    """Find windows of a minute with many more calls than the actor's busy minutes have."""
    counts = sorted(Counter(call.at_ms // _MINUTE_MS for call in calls).values())
    limit = max(_MIN_BURST, _BURST_FACTOR * find_share(counts, 0.9))
    first = 0
    for index, call in enumerate(calls):
        while calls[first].at_ms <= call.at_ms - _MINUTE_MS:
            first += 1
        if index - first + 1 > limit:
            # Earlier calls of the window belong to it, too.
            reason = f"{call.actor} made more than {limit} calls within a minute"
            for each in calls[first : index + 1] if index - first == limit else (call,):
                odd_calls.add(each, OddityKind.BURST, reason)
