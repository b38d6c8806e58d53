"""Objectives are met, missed, or not judged; and the number of calls decides which of these can be said."""

from typing import Any

import pytest

from deputize.core.contract.contract import Contract, Objectives
from deputize.evidence.call_measurements import CallEnd, Measurement, find_bucket
from deputize.evidence.objective_levels import ObjectiveLevel, compute_p99, judge_objectives
from tests.support.scripted_tools import TOOLS

pytestmark = pytest.mark.requirement("OBS-3", "CON-2")
_CONTRACTS = {each.contract.name: each.contract for each in TOOLS}


def _declare(tool: str = "checked_note", **objectives: Any) -> Contract:
    return _CONTRACTS[tool].model_copy(update={"objectives": Objectives(**objectives) if objectives else None})


def _measure(*, timed_calls: int = 0, latency_us: int = 100_000, **more: Any) -> Measurement:
    ends = {end: more.pop(end.value, 0) for end in CallEnd}
    latencies = [(find_bucket(latency_us), timed_calls)] if timed_calls else []
    return Measurement(version="1.0.0", ends=ends, latencies=latencies, max_latency_us=latency_us, **more)


def _judge(contract: Contract, measurement: Measurement, name: str) -> ObjectiveLevel:
    (level,) = [each for each in judge_objectives(contract, measurement) if each.name == name]
    return level


@pytest.mark.parametrize(
    ("target", "successes", "failures", "status", "needed_calls"),
    [
        (0.9, 90, 10, "met", 100),
        (0.9, 89, 11, "not-met", 100),
        (0.9, 99, 0, "too-few-calls", 100),
        (0.9, 0, 0, "too-few-calls", 100),
        # No number of further successes up to the needed ones makes up for these.
        (0.9, 0, 11, "not-met", 100),
        (0.9, 0, 10, "too-few-calls", 100),
        (0.999, 999, 0, "too-few-calls", 1000),
        (0.999, 999, 1, "met", 1000),
        (0.999, 998, 2, "not-met", 1000),
        (1.0, 100, 0, "met", 100),
        (1.0, 50, 1, "not-met", 100),
    ],
)
def test_availability(target: float, successes: int, failures: int, status: str, needed_calls: int) -> None:
    measurement = _measure(successes=successes, failures=failures)
    level = _judge(_declare(availability=target), measurement, "availability")
    assert (level.status, level.needed_calls, level.target) == (status, needed_calls, target)
    assert level.value == (successes / (successes + failures) if successes + failures else None)


@pytest.mark.parametrize("end", [each for each in CallEnd if each is not CallEnd.SUCCESS])
def test_every_end_but_success_counts_against_availability(end: CallEnd) -> None:
    level = _judge(_declare(availability=0.9), _measure(successes=80, **{end.value: 20}), "availability")
    assert (level.status, level.value, level.reason) == ("not-met", 0.8, "20 of 100 calls did not succeed")


@pytest.mark.parametrize(
    ("slow_calls", "timed_calls", "status"), [(1, 100, "met"), (2, 100, "not-met"), (0, 99, "too-few-calls")]
)
def test_latency_is_judged_by_exact_counts(slow_calls: int, timed_calls: int, status: str) -> None:
    measurement = _measure(timed_calls=timed_calls, slow_calls=slow_calls)
    assert _judge(_declare(p99_seconds=0.1), measurement, "p99_seconds").status == status


@pytest.mark.parametrize("slow_calls", [0, 100])
def test_the_p99_that_is_shown_does_not_contradict_the_judgement(slow_calls: int) -> None:
    contract = _declare(p99_seconds=0.0951)
    p99 = compute_p99(contract, _measure(timed_calls=100, latency_us=100_000, slow_calls=slow_calls))
    assert p99 is not None
    assert (p99 > 0.0951) == bool(slow_calls)


@pytest.mark.parametrize(
    ("tool", "target", "rejections", "status", "value"),
    [
        ("checked_note", 0.9, 10, "met", 0.9),
        ("checked_note", 0.9, 11, "not-met", 0.89),
        ("checked_note", None, 10, "not-declared", 0.9),
        # Only the schema is checked.
        ("look", 0.9, 10, "not-measured", None),
        ("look", None, 10, "not-declared", None),
    ],
)
def test_accuracy_is_the_share_of_results_that_passed_their_checks(
    tool: str, target: float | None, rejections: int, status: str, value: float | None
) -> None:
    contract = _declare(tool, accuracy=target) if target else _declare(tool)
    level = _judge(contract, _measure(successes=100 - rejections, rejections=rejections, failures=50), "accuracy")
    assert (level.status, level.value) == (status, value)


@pytest.mark.parametrize(
    ("target", "max_cost_micros", "calls", "status"),
    [
        (0.1, 100_000, 100, "met"),
        (0.1, 100_001, 100, "not-met"),
        (0.1, 100_001, 1, "not-met"),
        (0.1, 5, 99, "too-few-calls"),
        (0, 0, 100, "met"),
        (0, 1, 100, "not-met"),
        # A cost is counted in millionths, rounded up, and so is its objective.
        (0.0000001, 1, 100, "met"),
    ],
)
def test_cost_is_the_most_that_a_call_cost(target: float, max_cost_micros: int, calls: int, status: str) -> None:
    level = _judge(_declare(cost=target), _measure(successes=calls, max_cost_micros=max_cost_micros), "cost")
    assert (level.status, level.value) == (status, max_cost_micros / 1e6)


def test_what_is_not_declared_is_measured_all_the_same() -> None:
    measurement = _measure(successes=150, failures=50, timed_calls=150)
    levels = judge_objectives(_declare(), measurement)
    assert {each.status for each in levels} == {"not-declared"}
    assert {each.name: each.value is None for each in levels} == {
        "p99_seconds": False, "availability": False, "accuracy": False, "cost": False,
    }  # fmt: skip
