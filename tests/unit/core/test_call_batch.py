"""Calls of one batch that may change the same thing never run at once, and all of them come to their turn."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.call import CallRequest
from deputize.core.call_batch import MAX_BATCH_SIZE, BatchedCall, CallBatch, CallEffects, find_conflicts
from deputize.core.errors import MalformedRequest
from deputize.core.scopes import scopes_overlap

pytestmark = pytest.mark.requirement("INV-9")

_WRITES = st.frozensets(
    st.tuples(
        st.sampled_from(["users", "orders"]), st.sampled_from(["1", "10", "1/a", "1/a/b", "1 a", "1/*", "1*", "*"])
    ),
    max_size=4,
)
_EFFECTS = st.builds(
    CallEffects,
    is_read=st.booleans(),
    is_concurrency_safe=st.booleans(),
    writes=st.none() | _WRITES,
    idempotency_key=st.none() | st.sampled_from(["a", "b"]),
)


def _may_collide(one: CallEffects, other: CallEffects) -> bool:
    """Both change something, not both at any time, and perhaps the same."""
    if one.is_read or other.is_read or (one.is_concurrency_safe and other.is_concurrency_safe):
        return False
    if one.writes is None or other.writes is None:
        return True
    return any(a[0] == b[0] and scopes_overlap(a[1], b[1]) for a in one.writes for b in other.writes)


def _is_repetition(one: CallEffects, other: CallEffects) -> bool:
    is_same_key = one.idempotency_key is not None and one.idempotency_key == other.idempotency_key
    return is_same_key and not (one.is_read or other.is_read)


@given(st.lists(_EFFECTS, max_size=8), st.data())
def test_in_any_order_of_ends_no_two_that_collide_run_at_once_and_all_end(
    effects: list[CallEffects], data: st.DataObject
) -> None:
    conflicts = find_conflicts(effects)
    for index, each in enumerate(effects):
        assert conflicts[index] == {
            earlier
            for earlier in range(index)
            if _may_collide(effects[earlier], each) or _is_repetition(effects[earlier], each)
        }
    waiting, running, ended = set(range(len(effects))), set[int](), set[int]()
    while len(ended) < len(effects):
        started = {each for each in waiting if conflicts[each] <= ended}
        running, waiting = running | started, waiting - started
        assert running, "every call waits for another"
        assert not any(_may_collide(effects[a], effects[b]) for a, b in combinations(sorted(running), 2))
        end = data.draw(st.sampled_from(sorted(running)))
        running.discard(end)
        ended.add(end)


def test_writes_wait_only_for_earlier_ones_that_may_change_the_same() -> None:
    def change(*scopes: str) -> CallEffects:
        return CallEffects(writes=frozenset(("users", each) for each in scopes))

    read, unknown = CallEffects(is_read=True), CallEffects()
    assert find_conflicts([change("1"), read, change("2"), change("1/name"), change("*")]) == (
        frozenset(), frozenset(), frozenset(), frozenset({0}), frozenset({0, 2, 3}),
    )  # fmt: skip
    assert find_conflicts([change("1"), unknown, read, change("2")]) == (
        frozenset(), frozenset({0}), frozenset(), frozenset({1}),
    )  # fmt: skip
    safe = CallEffects(is_concurrency_safe=True)
    assert find_conflicts([safe, safe, unknown]) == (frozenset(), frozenset(), frozenset({0, 1}))
    repeated = CallEffects(is_concurrency_safe=True, idempotency_key="same")
    assert find_conflicts([repeated, repeated]) == (frozenset(), frozenset({0}))


@pytest.mark.parametrize("depends_on", [{1}, {2}, {-1}])
def test_a_call_depends_only_on_earlier_ones(depends_on: set[int]) -> None:
    request = CallRequest(tool="a.b", arguments={})
    with pytest.raises(MalformedRequest, match=r"calls\[1\].depends_on may name only calls before it"):
        CallBatch(calls=[BatchedCall(request=request), BatchedCall(request=request, depends_on=frozenset(depends_on))])


@pytest.mark.parametrize("size", [0, MAX_BATCH_SIZE + 1])
def test_a_batch_of_calls_has_a_size(size: int) -> None:
    with pytest.raises(MalformedRequest, match="1 to 50 calls"):
        CallBatch(calls=[BatchedCall(request=CallRequest(tool="a.b", arguments={}))] * size)
