"""The advice on timeout classes: the smallest that fits with headroom, a larger one if calls time out."""

import pytest

from deputize.core.contract.timing import Timeout, TimeoutClass
from deputize.evidence.call_measurements import CallEnd, Measurement, find_bucket
from deputize.evidence.timeout_advice import advise_timeout

pytestmark = pytest.mark.requirement("OBS-3")


def _measure(calls: int, p99: float, timeouts: int = 0) -> Measurement:
    ends = {CallEnd.SUCCESS: calls - timeouts, CallEnd.TIMEOUT: timeouts}
    bucket = find_bucket(int(p99 * 1e6))
    return Measurement(version="1.0.0", ends=ends, latencies=[(bucket, calls)] if calls else [])


_ASYNC = {"timeout_class": "async", "seconds": 600}


@pytest.mark.parametrize(
    ("timeout", "p99", "timeouts", "fitting_class", "is_too_short", "text"),
    [
        (
            {"timeout_class": "standard"}, 0.08, 0, "interactive", False,
            'p99 is 0.08 s over 5,432 calls; `standard` allows 5 s. Declare timeout="interactive".',
        ),
        (
            {"timeout_class": "standard"}, 1.2, 0, "standard", False,
            "p99 is 1.2 s over 5,432 calls; `standard` allows 5 s. Keep it.",
        ),
        ({"timeout_class": "standard"}, 0.25, 0, "interactive", False, 'Declare timeout="interactive".'),
        ({"timeout_class": "standard"}, 0.26, 0, "standard", False, "Keep it."),
        (
            {"timeout_class": "standard"}, 2.6, 0, "long-running", True,
            "p99 is 2.6 s over 5,432 calls; `standard` allows 5 s, which is less than 2 times as much. "
            'Declare timeout="long-running".',
        ),
        ({"timeout_class": "standard"}, 0.08, 5, "interactive", False, 'Declare timeout="interactive".'),
        (
            {"timeout_class": "standard"}, 0.08, 6, "long-running", True,
            '6 of 5,432 calls ran out of time; `standard` allows 5 s. Declare timeout="long-running", '
            "or find out why these calls take so long.",
        ),
        (
            {"timeout_class": "standard", "seconds": 2}, 0.8, 100, "standard", True,
            '100 of 5,432 calls ran out of time; its own limit is 2 s. Declare timeout="standard"',
        ),
        ({"timeout_class": "standard", "seconds": 2}, 1.1, 0, "standard", True, "its own limit is 2 s"),
        ({"timeout_class": "interactive", "seconds": 0.1}, 0.02, 0, "interactive", False, "Keep it."),
        (
            {"timeout_class": "long-running"}, 200, 0, "async", True,
            "Declare timeout=400, which is `async`: callers get 202 and watch the call.",
        ),
        (
            {"timeout_class": "long-running"}, 200, 50, "async", True,
            "Declare timeout=600, which is `async`: callers get 202 and watch the call, or find out",
        ),
        (_ASYNC, 20, 0, "long-running", False, 'Declare timeout="long-running": callers then get the result'),
        (_ASYNC, 200, 0, "async", False, "Keep it."),
        (_ASYNC, 400, 0, "async", True, "Raise timeout.seconds to 800 or more."),
        (_ASYNC, 400, 99, "async", True, "Raise timeout.seconds to 1200 or more, or find out"),
    ],
)  # fmt: skip
def test_the_class_that_fits(
    timeout: dict[str, object], p99: float, timeouts: int, fitting_class: str, is_too_short: bool, text: str
) -> None:
    advice = advise_timeout(Timeout.model_validate(timeout), _measure(5432, p99, timeouts), p99)
    assert (advice.fitting_class, advice.is_too_short) == (fitting_class, is_too_short)
    assert text in advice.text


@pytest.mark.parametrize("calls", [0, 99])
def test_few_calls_are_no_reason_for_advice(calls: int) -> None:
    advice = advise_timeout(Timeout(timeout_class=TimeoutClass.STANDARD), _measure(calls, 0.08, calls), 0.08)
    assert (advice.fitting_class, advice.is_too_short) == (None, False)
    assert advice.text == f"too few calls for advice: {calls} of 100. Ask again when there are more."
