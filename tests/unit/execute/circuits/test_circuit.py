"""When a circuit opens, tries its service again and closes, whatever happens and in whatever order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.contract.reliability import CircuitBreaker
from deputize.execute.circuits.circuit import MAX_FAILURES, MAX_LATE_TRIALS, MAX_WINDOW_SECONDS, Circuit, CircuitState

pytestmark = pytest.mark.requirement("RES-1")

RULES = CircuitBreaker()
CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN


def fail(circuit: Circuit, *times: float, rules: CircuitBreaker = RULES) -> Circuit:
    for at in times:
        circuit = circuit.add_failure(rules, "E3502", at=at, now=at)
    return circuit


def try_again(circuit: Circuit, trial_id: str, now: float) -> Circuit:
    granted = circuit.grant_trial(trial_id, now=now, seconds=30)
    assert granted is not None
    return granted


def end(circuit: Circuit, trial_id: str, has_succeeded: bool | None, now: float = 100.0) -> Circuit:
    return circuit.end_trial(trial_id, has_succeeded=has_succeeded, reason="E3503", now=now)


def test_five_failures_in_a_minute_open_it() -> None:
    assert fail(Circuit(), 1, 2, 3, 4).state is CLOSED
    opened = fail(Circuit(), 1, 2, 3, 4, 60.9)
    assert (opened.state, opened.changed_at, opened.retry_at, opened.epoch) == (OPEN, 60.9, 120.9, 1)
    assert opened.reason == "E3502"


def test_failures_outside_the_window_do_not_add_up() -> None:
    assert fail(Circuit(), 1, 2, 3, 4, 61).state is CLOSED
    rules = CircuitBreaker(window_seconds=100, failure_threshold=5)
    assert fail(fail(Circuit(), 1, 2, 3, 4), 61, rules=rules).state is OPEN


def test_the_order_in_which_failures_are_told_does_not_matter() -> None:
    assert fail(Circuit(), 50, 3, 40, 2, 30).state is OPEN
    assert fail(Circuit(), 70, 3, 40, 2, 30).state is CLOSED


def test_the_contract_whose_call_opens_it_decides_how_it_closes() -> None:
    strict = CircuitBreaker(failure_threshold=2, timeout_seconds=5, success_threshold=1, half_open_max_calls=1)
    opened = fail(fail(Circuit(), 1), 2, rules=strict)
    assert (opened.state, opened.rules) == (OPEN, strict)
    assert end(try_again(opened, "a", 7.0), "a", True).state is CLOSED


def test_no_call_passes_before_its_time() -> None:
    opened = fail(Circuit(), 1, 2, 3, 4, 5)
    assert opened.grant_trial("a", now=64.9, seconds=30) is None
    half_open = try_again(opened, "a", 65.0)
    assert (half_open.state, half_open.epoch) == (HALF_OPEN, 2)


def test_trials_grow_from_a_tenth_with_each_success() -> None:
    circuit = fail(Circuit(), 1, 2, 3, 4, 5)
    for limit, successes in ((1, 0), (4, 1), (7, 2)):
        for number in range(limit):
            circuit = try_again(circuit, f"{successes}-{number}", 70.0)
        assert circuit.grant_trial("one more", now=70.0, seconds=30) is None
        for number in range(1, limit):
            circuit = end(circuit, f"{successes}-{number}", None)
        circuit = end(circuit, f"{successes}-0", True)
    assert (circuit.state, circuit.epoch) == (CLOSED, 3)


def test_one_failed_trial_opens_it_again_and_the_others_no_longer_count() -> None:
    circuit = end(try_again(fail(Circuit(), 1, 2, 3, 4, 5), "a", 70.0), "a", True)
    circuit = try_again(try_again(circuit, "b", 71.0), "c", 71.0)
    opened = end(circuit, "b", False, now=72.0)
    assert (opened.state, opened.retry_at, opened.reason) == (OPEN, 132.0, "E3503")
    assert end(opened, "c", True) == opened
    again = try_again(opened, "d", 132.0)
    assert again.successes == 0
    assert end(again, "c", True) == again


def test_a_trial_that_never_ends_gives_its_place_back() -> None:
    circuit = try_again(fail(Circuit(), 1, 2, 3, 4, 5), "lost", 70.0)
    assert circuit.grant_trial("next", now=99.9, seconds=30) is None
    circuit = try_again(circuit, "next", 100.0)
    late_failure = circuit.end_trial("lost", has_succeeded=False, reason="E3503", now=101.0)
    assert (late_failure.state, list(late_failure.trials), late_failure.successes) == (HALF_OPEN, ["next"], 0)


def test_a_service_whose_calls_take_longer_than_a_trials_place_recovers() -> None:
    circuit = fail(Circuit(), 1, 2, 3, 4, 5)
    for number in range(40):
        circuit = try_again(circuit, f"trial {number}", 70.0 + 40 * number)
    assert len(circuit.trials) == MAX_LATE_TRIALS + 1
    assert circuit.grant_trial("one too many", now=70.0 + 40 * 39, seconds=30) is None
    for number in (37, 38, 39):
        assert circuit.state is HALF_OPEN
        circuit = circuit.end_trial(f"trial {number}", has_succeeded=True, reason="", now=1700.0)
    assert circuit.state is CLOSED


def test_what_failed_before_it_closed_does_not_open_it_again() -> None:
    circuit = fail(Circuit(), 1, 2, 3, 4, 5)
    for trial_id in ("a", "b", "c"):
        circuit = end(try_again(circuit, trial_id, 90.0), trial_id, True, now=100.0)
    assert circuit.state is CLOSED
    assert fail(circuit, 96, 97, 98, 99, 100) == circuit


def test_times_can_be_told_by_another_clock() -> None:
    opened = fail(Circuit(), 1, 2, 3, 4, 5)
    half_open = try_again(opened, "a", 70.0)
    for circuit in (opened, half_open, fail(Circuit(), 1, 2)):
        shifted = circuit.shift_times(1000.0)
        assert shifted.shift_times(-1000.0) == circuit
    assert opened.shift_times(1000.0).grant_trial("a", now=1064.9, seconds=30) is None


_RULES = st.builds(
    CircuitBreaker,
    failure_threshold=st.integers(1, 6),
    window_seconds=st.integers(1, 100),
    success_threshold=st.integers(1, 5),
    timeout_seconds=st.integers(1, 60),
    half_open_max_calls=st.integers(1, 12),
)
_ACTS = st.lists(
    st.tuples(st.sampled_from(["fail", "try", "succeed", "break", "leave"]), st.floats(0, 40), st.integers(0, 20)),
    max_size=150,
)


@given(_RULES, _ACTS)
def test_whatever_happens_it_keeps_its_promises(rules: CircuitBreaker, acts: list[tuple[str, float, int]]) -> None:
    circuit, now, trial_number = Circuit(), 0.0, 0
    for act, pause, choice in acts:
        before, now = circuit, now + pause
        on_their_way = sorted(circuit.trials)
        chosen = on_their_way[choice % len(on_their_way)] if on_their_way else "none"
        if act == "fail":
            circuit = circuit.add_failure(rules, "E3502", at=now, now=now)
        elif act == "try":
            trial_number += 1
            circuit = circuit.grant_trial(f"{trial_number:04}", now=now, seconds=30) or circuit
        else:
            result = {"succeed": True, "break": False, "leave": None}[act]
            circuit = circuit.end_trial(chosen, has_succeeded=result, reason="E3503", now=now)
        active_count = sum(ends_at > now for ends_at in circuit.trials.values())
        assert active_count <= circuit.trial_limit <= max(1, circuit.rules.half_open_max_calls)
        assert len(circuit.trials) - active_count <= MAX_LATE_TRIALS + circuit.rules.half_open_max_calls
        assert circuit.epoch - before.epoch == (circuit.state is not before.state)
        assert len(circuit.failures) <= MAX_FAILURES
        assert not circuit.failures or circuit.failures[-1] - circuit.failures[0] <= MAX_WINDOW_SECONDS
        if before.state is OPEN and circuit.state is not OPEN:
            assert circuit.state is HALF_OPEN
            assert now >= before.retry_at
        if before.state is HALF_OPEN and act == "break" and before.trials.get(chosen, 0) > now:
            assert circuit.state is OPEN
        if before.state is HALF_OPEN and circuit.state is CLOSED:
            assert before.successes + 1 == before.rules.success_threshold
        if before.state is CLOSED:
            assert circuit.state in (CLOSED, OPEN)
