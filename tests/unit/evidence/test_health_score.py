"""The health of a tool is 1 minus its weighted penalties."""

import re
from pathlib import Path

import pytest

from deputize.core.contract.timing import TimeoutClass
from deputize.evidence.call_measurements import CallEnd, Measurement, find_bucket
from deputize.evidence.health_score import MAX_ERROR_SHARE, MAX_TIMEOUT_SHARE, HealthScore, score_health

pytestmark = pytest.mark.requirement("OBS-3")
RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "deputize-rules.yml"


def _measure(
    successes: int, failures: int = 0, timeouts: int = 0, seconds: float = 0.0, version: str = "1.0.0"
) -> Measurement:
    latency_us = int(seconds * 1_000_000)
    return Measurement(
        version=version,
        ends={CallEnd.SUCCESS: successes, CallEnd.FAILURE: failures, CallEnd.TIMEOUT: timeouts},
        max_latency_us=latency_us,
        latencies=[(find_bucket(latency_us), successes + timeouts)],
    )


def _score(*measurements: Measurement, limit: float = 5.0) -> HealthScore:
    score = score_health("crm.find", measurements, lambda version: limit)
    assert score is not None
    return score


@pytest.mark.parametrize(
    ("measurement", "expected"),
    [
        (_measure(100), 1.0),
        (_measure(95, failures=5), 1 - 0.5 * 0.5),
        (_measure(90, failures=10), 0.5),
        (_measure(10, failures=90), 0.5),
        (_measure(100, seconds=2.5), 1 - 0.3 * 0.5),
        (_measure(100, seconds=50), 0.7),
        # A call that timed out is an error, too.
        (_measure(98, timeouts=2), 1 - 0.5 * 0.2 - 0.2 * 0.4),
        (_measure(0, timeouts=10, seconds=5), 0.0),
    ],
)
def test_errors_latency_and_timeouts_lower_the_score(measurement: Measurement, expected: float) -> None:
    assert _score(measurement).score == pytest.approx(expected, abs=1e-6)


def test_a_tool_without_calls_has_no_score() -> None:
    assert score_health("crm.find", [], lambda version: 5.0) is None
    assert score_health("crm.find", [_measure(0)], lambda version: 5.0) is None


def test_versions_are_added_up_and_the_one_closest_to_its_limit_counts() -> None:
    versions = [_measure(50, seconds=1, version="1.0.0"), _measure(40, failures=10, seconds=0.4, version="2.0.0")]
    score = score_health("crm.find", versions, {"1.0.0": 5.0, "2.0.0": 0.5}.__getitem__)
    assert score is not None
    assert (score.calls, score.limit_seconds) == (100, 0.5)
    assert score.error_share == pytest.approx(0.1)
    assert score.p99_seconds == pytest.approx(0.4)


def test_what_is_shown_adds_up() -> None:
    shown = _score(_measure(90, failures=6, timeouts=4, seconds=1.25)).to_json()
    assert shown["score"] == pytest.approx(1 - sum(shown["penalties"].values()), abs=1e-3)
    assert shown["penalties"] == {"errors": 0.5, "latency": pytest.approx(0.075, abs=1e-4), "timeouts": 0.16}


def test_prometheus_computes_the_same_score() -> None:
    text = RULES.read_text(encoding="utf-8")
    [errors, timeouts] = re.findall(r"clamp_max\([^/]*ratio:15m\)? / ([0-9.]+), 1\)", text)
    assert (float(errors), float(timeouts)) == (MAX_ERROR_SHARE, MAX_TIMEOUT_SHARE)
    assert re.findall(r"([0-9.]+) \* clamp_max", text) == ["0.5", "0.3", "0.2"]
    limits = dict(re.findall(r'timeout_class="([a-z-]+)"} / ([0-9.]+)', text))
    assert {TimeoutClass(name): float(seconds) for name, seconds in limits.items()} == {
        each: each.seconds for each in TimeoutClass
    }
