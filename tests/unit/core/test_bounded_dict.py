"""What is kept is bounded by what it weighs, anyone who chooses how large it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.bounded_dict import BoundedDict

pytestmark = pytest.mark.requirement("GOV-2")


def test_the_oldest_make_room_for_the_newest_by_weight() -> None:
    kept: BoundedDict[str, int] = BoundedDict(10)
    for number in range(10):
        kept.put(f"light {number}", number)
    assert kept.put("heavy", 99, weight=7) == 99
    assert [number for number in range(10) if kept.get(f"light {number}") is not None] == [7, 8, 9]
    assert kept.get("heavy") == 99


def test_what_alone_is_too_much_is_not_kept_and_takes_nobody_with_it() -> None:
    kept: BoundedDict[str, int] = BoundedDict(10)
    kept.put("light", 1)
    assert kept.put("huge", 2, weight=11) == 2
    assert (kept.get("light"), kept.get("huge")) == (1, None)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 12)), max_size=60))
def test_together_they_never_weigh_more_than_they_may(entries: list[tuple[int, int]]) -> None:
    kept: BoundedDict[int, int] = BoundedDict(10)
    for key, weight in entries:
        kept.put(key, weight, weight=weight)
        assert sum(value for each in range(6) if (value := kept.get(each)) is not None) <= 10
