"""Define several calls of one request, and find which of them must wait for which.

Reads run beside everything. A write waits for each earlier write that may change the same thing; one of which it is not
known what it changes waits for all of them, and later writes wait for it. A call waits only for earlier ones, so there
is always one that can go on.
"""

from collections.abc import Sequence
from typing import Final, Literal

from deputize.core.call import CallRequest
from deputize.core.errors import MalformedRequest
from deputize.core.scopes import scopes_overlap
from deputize.core.value_types import frozen

MAX_BATCH_SIZE: Final = 50
# What happens to the other calls when one fails: nothing; none begins any more, and those that can be interrupted are;
# or those that depend on it do not begin.
FailurePolicy = Literal["ignore", "cancel_siblings", "cancel_dependent"]


@frozen
class BatchedCall:
    """One call of a batch, and the positions of the earlier ones that it depends on."""

    request: CallRequest
    depends_on: frozenset[int] = frozenset()


@frozen
class CallBatch:
    """Several calls of one caller, answered in their order."""

    calls: Sequence[BatchedCall]
    on_failure: FailurePolicy = "cancel_dependent"

    def __post_init__(self) -> None:
        if not 0 < len(self.calls) <= MAX_BATCH_SIZE:
            raise MalformedRequest(f"a batch holds 1 to {MAX_BATCH_SIZE} calls", details={"field": "calls"})
        for index, each in enumerate(self.calls):
            if not each.depends_on <= frozenset(range(index)):
                raise MalformedRequest(
                    f"calls[{index}].depends_on may name only calls before it, by their positions from 0",
                    details={"field": f"calls[{index}].depends_on"},
                )


@frozen
class CallEffects:
    """What a call may change, as far as that is known before it runs."""

    is_read: bool = False
    is_concurrency_safe: bool = False
    # The (resource, scope) of everything that it may change; None if that is not known.
    writes: frozenset[tuple[str, str]] | None = None
    idempotency_key: str | None = None


def find_conflicts(effects: Sequence[CallEffects]) -> tuple[frozenset[int], ...]:
    """Find the earlier calls that each call must wait for, because both may change the same thing."""
    overlaps = _find_overlaps(effects)
    return tuple(
        frozenset(
            earlier for earlier in range(index) if _is_conflict(effects[earlier], each, (earlier, index) in overlaps)
        )
        for index, each in enumerate(effects)
    )


def _is_conflict(a: CallEffects, b: CallEffects, is_overlap: bool) -> bool:
    if a.is_read or b.is_read:
        return False
    if a.idempotency_key is not None and a.idempotency_key == b.idempotency_key:
        # The second is a repetition, which gets the outcome of the first.
        return True
    if a.is_concurrency_safe and b.is_concurrency_safe:
        return False
    return a.writes is None or b.writes is None or is_overlap


def _find_overlaps(effects: Sequence[CallEffects]) -> set[tuple[int, int]]:
    """Find the pairs of calls with overlapping scopes, without comparing each scope with each other one.

    Of two scopes that overlap, one begins with the other's text before its `*`. So in the order of these prefixes, what
    a scope can overlap is what came last and is a prefix of it.
    """
    writes = sorted(
        (resource, scope.partition("*")[0], scope, index)
        for index, each in enumerate(effects)
        for resource, scope in each.writes or ()
    )
    overlaps: set[tuple[int, int]] = set()
    last_writes: list[tuple[str, str, str, int]] = []
    for resource, prefix, scope, index in writes:
        while last_writes and not (last_writes[-1][0] == resource and prefix.startswith(last_writes[-1][1])):
            last_writes.pop()
        for _, _, other_scope, other in last_writes:
            pair = (other, index) if other < index else (index, other)
            if pair not in overlaps and scopes_overlap(scope, other_scope):
                overlaps.add(pair)
        last_writes.append((resource, prefix, scope, index))
    return overlaps
