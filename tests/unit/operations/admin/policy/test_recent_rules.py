"""Rules of the newest entries: what is known stays known, in the period and up to the bound."""

import pytest

from deputize.core.clock import make_first_id
from deputize.operations.admin.policy import explain
from deputize.operations.admin.policy.explain import RecentRules

_START_MS = 1_800_000_000_000


def _name(number: int) -> str:
    return make_first_id(_START_MS + number * 1000)


def test_a_look_adds_what_is_new_and_counts_each_call_once() -> None:
    recent = RecentRules({_name(9): ("b", ["open"]), _name(1): ("a", ["open"])}, _name(0))
    # Of call b, the later entry was committed before the earlier one.
    recent = recent.add({_name(9): ("b", ["open"]), _name(8): ("b", ["open", "asks"]), _name(10): ("c", [])})
    assert recent.first == _name(0)
    assert recent.add({_name(9): ("b", ["open"])}) is recent
    counts, calls = recent.count_calls(_name(0))
    assert (dict(counts), calls) == ({"open": 2, "asks": 1}, 3)
    counts, calls = recent.count_calls(_name(8))
    assert (dict(counts), calls) == ({"open": 1, "asks": 1}, 2)


def test_the_next_look_goes_back_a_little_but_not_behind_what_is_known() -> None:
    assert RecentRules({}, _name(3)).next_look == _name(3)
    assert RecentRules({_name(9): ("a", [])}, _name(3)).next_look == _name(4)
    assert RecentRules({_name(5): ("a", [])}, _name(3)).next_look == _name(3)


def test_of_more_entries_than_are_kept_the_newest_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "_MAX_USAGE_ENTRIES", 2)
    recent = RecentRules({_name(2): ("b", ["open"]), _name(1): ("a", ["open"])}, _name(0)).add({_name(3): ("c", [])})
    assert recent.first == _name(2)
    counts, calls = recent.count_calls(_name(0))
    assert (dict(counts), calls) == ({"open": 1}, 2)
