"""Windows against brute force: never more than the limit in any window, and hardly ever less than it allows."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.clock import Clock
from deputize.store.counters import in_process
from deputize.store.counters.in_process import InProcessCounters
from deputize.store.counters.port import WINDOW_PARTS, CountersUnavailable, Slot, TakeResult, WeightCorrection, Window

pytestmark = pytest.mark.requirement("GOV-8")

SECONDS = 2.0
steps = st.lists(
    st.tuples(st.floats(0, 1.5), st.integers(0, 5), st.booleans()),
    min_size=1,
    max_size=80,
)


@given(steps, st.integers(1, 12))
def test_no_window_ever_holds_more_than_its_limit(steps: list[tuple[float, int, bool]], limit: int) -> None:
    now = 50.0
    counters = InProcessCounters(Clock(monotonic=lambda: now))
    kept: list[tuple[float, int]] = []
    for passed, weight, give_back in steps:
        now += passed
        taken = counters.take([Window(key="w", limit=limit, seconds=SECONDS, weight=weight)])
        inside = sum(each for at, each in kept if at > now - SECONDS)
        roughly = sum(each for at, each in kept if at > now - SECONDS - 2 * SECONDS / WINDOW_PARTS)
        fits = max(weight, 1)
        if taken.refused_index is None:
            assert inside + fits <= limit
            kept.append((now, weight))
        else:
            assert roughly + fits > limit
            assert taken.usage <= roughly
        if give_back and kept and taken.refused_index is None:
            counters.apply_updates([WeightCorrection(key="w", seconds=SECONDS, weight=-weight, at=taken.at)])
            kept.pop()


@given(st.lists(st.floats(0.0001, 0.05), min_size=50, max_size=200), st.integers(1, 20))
def test_waiting_as_told_is_waiting_long_enough_and_not_too_long(passed: list[float], limit: int) -> None:
    now = 10.0
    counters = InProcessCounters(Clock(monotonic=lambda: now))
    window = Window(key="w", limit=limit, seconds=SECONDS)
    for each in passed:
        now += each
        taken = counters.take([window])
        if taken.refused_index is not None:
            now += taken.retry_after_ms / 1000
            assert taken.retry_after_ms <= SECONDS * 1000 + 2 * SECONDS
            assert counters.take([window]).refused_index is None


def test_under_a_burst_that_never_ends_the_limit_is_what_gets_through() -> None:
    now = 0.0
    counters = InProcessCounters(Clock(monotonic=lambda: now))
    admitted = 0
    for number in range(20_000):
        now = number / 1000
        admitted += counters.take([Window(key="w", limit=100, seconds=1.0)]).refused_index is None
    assert 0.995 <= admitted / 2000 <= 1.0


def test_windows_nobody_is_in_are_forgotten_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    counters = InProcessCounters(Clock(monotonic=lambda: now))
    for number in range(5000):
        now += 0.01
        counters.take([Window(key=str(number), limit=1, seconds=1.0)])
    assert len(counters._windows) < 2000
    monkeypatch.setattr(in_process, "_MAX_KEYS", 2000)
    windows = [Window(key=f"more-{number}", limit=1, seconds=1.0) for number in range(5000)]
    with pytest.raises(CountersUnavailable):
        _ = [counters.take([window]) for window in windows]


def test_where_there_is_no_room_nothing_is_taken_and_nobody_looks_for_room_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, looked = 0.0, 0
    counters = InProcessCounters(Clock(monotonic=lambda: now))
    monkeypatch.setattr(in_process, "_MAX_KEYS", 2000)
    for number in range(2000):
        counters.take([Window(key=f"w-{number}", limit=1, seconds=3600.0)])

    class CountingDict(dict[str, Any]):
        def items(self) -> Any:
            nonlocal looked
            looked += 1
            return super().items()

    monkeypatch.setattr(counters, "_windows", CountingDict(counters._windows))
    slot = Slot(key="s", limit=1, seconds=60.0, holder="h")
    for number in range(50):
        with pytest.raises(CountersUnavailable):
            counters.take([slot, Window(key=f"more-{number}", limit=1, seconds=3600.0)])
    assert looked == 1
    assert counters.take([slot]).refused_index is None
    assert counters.take([Window(key="w-1", limit=2, seconds=3600.0)]).refused_index is None
    now = 4000.0
    assert counters.take([Window(key="more-1", limit=1, seconds=3600.0)]).refused_index is None


def test_it_answers_at_once() -> None:
    assert isinstance(InProcessCounters(Clock()).take([Window(key="w", limit=1, seconds=1.0)]), TakeResult)
