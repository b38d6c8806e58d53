"""Find calls that are unusual after those before them: failures and refusals in a row, repeats, and what follows
a secret."""

from collections.abc import Callable, Sequence
from typing import Final

from deputize.govern.observation.observed_call import ObservedCall, find_share
from deputize.govern.observation.oddities import OddCalls, OddityKind, group_calls

_TEN_MINUTES_MS: Final = 600_000
_FIVE_MINUTES_MS: Final = 300_000
_MINUTE_MS: Final = 60_000
_MIN_FAILURES: Final = 5
_MIN_REFUSALS: Final = 3
_MIN_REPEATS: Final = 5
_MIN_ENUMERATED: Final = 25
_ENUMERATION_FACTOR: Final = 4
_SECRET_KINDS: Final = frozenset({OddityKind.SENSITIVE_PATH, OddityKind.SECRET_IN_ARGUMENT})


def find_unusual_sequences(calls: Sequence[ObservedCall], odd_calls: OddCalls) -> None:
    """Apply the rules about what follows what. The rules about single calls come first."""
    for own_calls in group_calls(calls, lambda call: (call.actor, call.tool)).values():
        _find_rows(
            own_calls,
            lambda call: call.has_failed,
            _MIN_FAILURES,
            lambda call, count: odd_calls.add(
                call, OddityKind.REPEATED_FAILURES, f"{count} calls in a row failed within ten minutes"
            ),
        )
        _find_rows(
            own_calls,
            lambda call: call.is_refused,
            _MIN_REFUSALS,
            lambda call, count: odd_calls.add(
                call, OddityKind.REFUSED_RETRIES, f"{count} calls in a row were refused within ten minutes"
            ),
        )
        _find_enumeration(own_calls, odd_calls)
    _find_repeated_changes(calls, odd_calls)
    for own_calls in group_calls(calls, lambda call: call.actor).values():
        _find_changes_after_secrets(own_calls, odd_calls)


def _find_rows(
    calls: Sequence[ObservedCall],
    is_bad: Callable[[ObservedCall], bool],
    minimum: int,
    report: Callable[[ObservedCall, int], None],
) -> None:
    """Report every call of a row of bad ones, each at most ten minutes after the one before."""
    row: list[ObservedCall] = []

    def end_row() -> None:
        if len(row) >= minimum:
            for each in row:
                report(each, len(row))
        row.clear()

    for call in calls:
        if row and (not is_bad(call) or call.at_ms - row[-1].at_ms > _TEN_MINUTES_MS):
            end_row()
        if is_bad(call):
            row.append(call)
    end_row()


def _find_repeated_changes(calls: Sequence[ObservedCall], odd_calls: OddCalls) -> None:
    """Find equal changes that are repeated within a minute."""
    changes = (call for call in calls if not call.is_read and call.facts)
    groups = group_calls(changes, lambda call: (call.actor, call.tool, tuple(sorted(call.facts.items()))))
    for equal_calls in groups.values():
        for index in range(_MIN_REPEATS - 1, len(equal_calls)):
            repeats = equal_calls[index - _MIN_REPEATS + 1 : index + 1]
            if repeats[-1].at_ms - repeats[0].at_ms <= _MINUTE_MS:
                for each in repeats:
                    reason = f"the same change {_MIN_REPEATS} times within a minute"
                    odd_calls.add(each, OddityKind.REPEATED_CHANGE, reason)


def _find_enumeration(calls: Sequence[ObservedCall], odd_calls: OddCalls) -> None:
    """Find five minutes in which one tool was called with many more different values than usual."""
    buckets = group_calls(calls, lambda call: call.at_ms // _FIVE_MINUTES_MS)
    names = {name for call in calls for name in call.facts}
    for name in names:
        distinct = {bucket: len({call.facts.get(name) for call in own}) for bucket, own in buckets.items()}
        limit = max(_MIN_ENUMERATED, _ENUMERATION_FACTOR * find_share(sorted(distinct.values()), 0.9))
        for bucket, count in distinct.items():
            if count > limit or (count >= _MIN_ENUMERATED and len(buckets) == 1):
                for call in buckets[bucket]:
                    reason = f"{count} different values of {name} within five minutes"
                    odd_calls.add(call, OddityKind.ENUMERATION, reason)


def _find_changes_after_secrets(calls: Sequence[ObservedCall], odd_calls: OddCalls) -> None:
    """Find the first change in another system soon after a secret was read or sent."""
    secret_call: ObservedCall | None = None
    for call in calls:
        if secret_call is not None and call.at_ms - secret_call.at_ms > _FIVE_MINUTES_MS:
            secret_call = None
        if secret_call is not None and not call.is_read and call.system != secret_call.system:
            reason = f"{call.actor} changed {call.system} soon after a secret in a call of {secret_call.tool}"
            odd_calls.add(call, OddityKind.CHANGE_AFTER_SECRET, reason)
            secret_call = None
        if any(each.kind in _SECRET_KINDS for each in odd_calls.by_call.get(call.call_id, ())):
            secret_call = call
