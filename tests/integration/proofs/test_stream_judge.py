"""The judge of events finds one planted fault of each category, in that category and in no other."""

from collections.abc import Sequence

import pytest

from proofs.stream.judge import LoggedEntry, ReceivedEvent, compute_p99, judge_events
from tests.support.proof_bars import list_exact_bars, list_missed_bars

pytestmark = pytest.mark.nightly

CALLS = 20_000
KINDS = ("intent", "outcome")
ENTRIES = [LoggedEntry(id=f"{n}-{kind}", call_id=str(n), kind=kind) for n in range(CALLS) for kind in KINDS]
EVENTS = [ReceivedEvent(id=each.id, call_id=each.call_id, kind=each.kind) for each in ENTRIES]
STRANGER = ReceivedEvent(id="x", call_id="x", kind="intent")
CASES: list[tuple[Sequence[ReceivedEvent], set[str]]] = [
    (EVENTS, set()),
    ([*EVENTS, EVENTS[0]], set()),
    ([*EVENTS[1:], EVENTS[0]], {"calls_out_of_order"}),
    (EVENTS[1:], {"events_lost"}),
    (EVENTS[:-1], {"events_lost", "calls_without_an_outcome"}),
    ([*EVENTS, STRANGER], {"events_unknown"}),
]


@pytest.mark.parametrize(("events", "missed"), CASES)
def test_a_planted_fault_is_found_in_its_category(events: Sequence[ReceivedEvent], missed: set[str]) -> None:
    assert list_missed_bars("stream", judge_events(ENTRIES, events, CALLS)) == missed


def test_every_exact_bar_has_a_planted_fault() -> None:
    figures = judge_events(ENTRIES, EVENTS, CALLS)
    assert {name for _, missed in CASES for name in missed} == list_exact_bars("stream", among=figures)


def test_too_few_calls_and_a_slow_p99_are_missed() -> None:
    assert list_missed_bars("stream", judge_events(ENTRIES, EVENTS, CALLS - 1)) == {"calls"}
    assert list_missed_bars("stream", {"p99_of_plain": 1.21, "broker_kills": 19}) == {"p99_of_plain", "broker_kills"}


def test_the_p99_is_of_the_slowest_hundredth() -> None:
    assert compute_p99([0.001] * 99 + [1.0]) == pytest.approx(1000)
    assert compute_p99([0.001] * 199 + [1.0]) == pytest.approx(1)
