"""Latencies in buckets, and the quantiles that come from them."""

import math
import random

import pytest

from deputize.core.clock import Clock
from deputize.evidence import call_measurements
from deputize.evidence.call_measurements import CallEnd, CallMeasurements, Measurement, find_bucket
from tests.support.scripted_tools import TOOLS

pytestmark = pytest.mark.requirement("OBS-3")


def _measure(latencies: list[int]) -> Measurement:
    buckets: dict[int, int] = {}
    for each in latencies:
        buckets[find_bucket(each)] = buckets.get(find_bucket(each), 0) + 1
    return Measurement(
        version="1.0.0",
        ends={CallEnd.SUCCESS: len(latencies)},
        max_latency_us=max(latencies, default=0),
        latencies=sorted(buckets.items()),
    )


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("seed", range(20))
def test_a_quantile_is_at_most_a_bucket_off(share: float, seed: int) -> None:
    draw = random.Random(seed)
    latencies = sorted(int(10 ** draw.uniform(1, 8)) for _ in range(draw.randint(1, 3000)))
    exact = latencies[math.ceil(round(share * len(latencies), 6)) - 1] / 1e6
    quantile = _measure(latencies).compute_quantile(share)
    assert quantile is not None
    assert exact / 1.1 <= quantile <= exact * 1.1


def test_one_call_is_shown_as_it_was_and_none_as_nothing() -> None:
    assert _measure([123_456]).compute_quantile(0.99) == 0.123456
    assert _measure([]).compute_quantile(0.99) is None


@pytest.mark.parametrize("microseconds", [0, 1, 2, 86_400_000_000, 10**18])
def test_every_latency_has_a_bucket_that_the_database_can_hold(microseconds: int) -> None:
    assert 0 <= find_bucket(microseconds) < 2**15


def test_more_versions_than_fit_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_measurements, "_MAX_VERSIONS", 2)
    measurements, contract = CallMeasurements(Clock()), TOOLS[0].contract
    for tenant in ("a", "b", "c", "a"):
        measurements.record_call(tenant, contract, CallEnd.SUCCESS, 0.1, 0)
    measurements._count_calls()
    assert [key[0] for key in measurements._counts_by_version] == ["a", "b"]


def test_one_tenant_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_measurements, "_MAX_TENANT_VERSIONS", 2)
    measurements, contract = CallMeasurements(Clock()), TOOLS[0].contract
    for tenant, version in (("a", "1.0.0"), ("a", "2.0.0"), ("a", "3.0.0"), ("b", "1.0.0")):
        contract = contract.model_copy(update={"version": version})
        measurements.record_call(tenant, contract, CallEnd.SUCCESS, 0.1, 0)
    measurements._count_calls()
    assert [key[::2] for key in measurements._counts_by_version] == [("a", "1.0.0"), ("a", "2.0.0"), ("b", "1.0.0")]


def test_calls_that_wait_to_be_counted_are_few_and_none_is_lost() -> None:
    measurements, contract = CallMeasurements(Clock()), TOOLS[0].contract
    for _ in range(1234):
        measurements.record_call("a", contract, CallEnd.SUCCESS, 0.1, 0)
        assert len(measurements._uncounted_calls) < 500
    measurements._count_calls()
    [counts] = measurements._counts_by_version.values()
    assert (counts.ends, sum(counts.buckets.values())) == ({CallEnd.SUCCESS: 1234}, 1234)
