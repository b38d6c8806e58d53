"""Describe for each alert of the rules which series make it fire, end it, and leave it silent.

Times are counted in samples, a minute apart unless a case says otherwise. Each case has three phases: usual, bad and
usual again.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deputize.evidence.metrics import BUCKETS

Series = Mapping[str, str]
_CALLS = "deputize_tool_invocations_total"
_LATENCY = "deputize_tool_invocation_latency_seconds"
_TIMEOUTS = "deputize_tool_invocation_timeouts_total"
_VERSION = 'tool="crm.find", version="1.0.0"'
# Samples of a day, five minutes apart.
_DAY = 288


@dataclass(frozen=True, kw_only=True)
class AlertCase:
    """Series that make an alert fire and end it, and others that must leave it silent all the time."""

    alert: str
    series: Series
    labels: Mapping[str, str]
    silent_at: int = 20
    fires_at: int = 60
    cleared_at: int = 100
    silent_series: Sequence[Series] = field(default=())
    minutes: int = 1


def grow(*phases: tuple[int, float]) -> str:
    """Write a counter in promtool's notation: for each phase, how many samples and by how much each one grows."""
    texts, value = ["0"], 0.0
    for samples, step in phases:
        texts.append(f"{value + step:g}+{step:g}x{samples - 1}")
        value += samples * step
    return " ".join(texts)


def hold(*phases: tuple[int, float]) -> str:
    """Write a gauge in promtool's notation: for each phase, how many samples and their value."""
    return " ".join(f"{value:g}x{samples - 1}" for samples, value in phases)


def _count_calls(**phases_by_state: Sequence[tuple[int, float]]) -> dict[str, str]:
    return {
        f'{_CALLS}{{{_VERSION}, state="{state}", mutation_class="read"}}': grow(*phases)
        for state, phases in phases_by_state.items()
    }


def _count_timeouts(*phases: tuple[int, float], timeout_class: str = "standard") -> dict[str, str]:
    return {f'{_TIMEOUTS}{{{_VERSION}, timeout_class="{timeout_class}"}}': grow(*phases)}


def _measure_latency(*phases: tuple[int, float, float], timeout_class: str = "standard") -> dict[str, str]:
    """Write a histogram: for each phase, how many samples, the calls of each and the seconds that each call takes."""
    labels = f'{_VERSION}, timeout_class="{timeout_class}"'
    # Those on both sides of a latency suffice; promtool takes its time for more.
    places = {bisect_left(BUCKETS, seconds) for _, _, seconds in phases}
    bounds = sorted({BUCKETS[place] for each in places for place in (max(each - 1, 0), each)})
    series = {
        f'{_LATENCY}_bucket{{{labels}, le="{bound}"}}': grow(
            *((samples, calls if seconds <= bound else 0) for samples, calls, seconds in phases)
        )
        for bound in (*bounds, float("inf"))
    }
    count = grow(*((samples, calls) for samples, calls, _ in phases))
    return {name.replace('"inf"', '"+Inf"'): text for name, text in series.items()} | {
        f"{_LATENCY}_count{{{labels}}}": count
    }


def _fail(share: float, calls: float = 10, end: str = "failed") -> dict[str, str]:
    """Write calls of which a share does not succeed in the second of three phases of 40 samples."""
    bad = ((40, 0), (40, calls * share), (40, 0))
    good = ((40, calls), (40, calls * (1 - share)), (40, calls))
    return _count_calls(**{end: bad, "succeeded": good})


def _time_out(share: float, calls: float = 10) -> dict[str, str]:
    return _fail(share, calls, "timed_out") | _count_timeouts((40, 0), (40, calls * share), (40, 0))


def _set_gauge(name: str, usual: float, bad: float) -> dict[str, str]:
    return {name: hold((40, usual), (40, bad), (40, usual))}


def _slow_commits(seconds: float) -> dict[str, str]:
    """Commits of a millisecond, then all of so many seconds, then of a millisecond again."""
    bounds = ("0.001", "0.25", "0.5", "1.0", "2.5", "+Inf")
    name = 'deputize_commit_seconds_bucket{{instance="a", writer="calls", le="{}"}}'
    return {
        name.format(bound): grow((40, 60), (40, 60 if float(bound) >= seconds else 0), (40, 60)) for bound in bounds
    }


_EVEN_CALLS = _count_calls(succeeded=((3 * _DAY, 50),))
_READY = 'deputize_readiness_check{check="database", required="true", instance="a"}'
_PENDING = 'deputize_tool_approvals_pending{tool="crm.find", approver_group="ops", instance="a"}'
_CIRCUIT = 'deputize_circuit_state{service="shop"}'
_EVENT_LAG = 'deputize_event_lag_seconds{sink="siem"}'
_LOG_LAG = 'deputize_log_sequencer_lag_seconds{instance="a"}'
_QUEUED_AGE = 'deputize_queued_call_age_seconds{instance="a"}'
_TOOL = {"tool": "crm.find"}


def _declare(threshold: str, value: float, samples: int = 120) -> dict[str, str]:
    """Write the threshold that the tool declares in its contract."""
    name = f'deputize_tool_alert_threshold{{tool="crm.find", threshold="{threshold}", instance="a"}}'
    return {name: hold((samples, value))}


CASES = [
    AlertCase(
        alert="ToolDegraded", labels=_TOOL, series=_fail(0.2),
        silent_series=[
            _fail(0.08),
            # Too few calls to say so.
            _fail(1, calls=0.5),
            # Refusals are no fault of the tool.
            _fail(0.9, end="denied"),
            _fail(0.9, end="validation_failed"),
        ],
    ),
    AlertCase(alert="ToolDegraded", labels=_TOOL, series=_fail(0.3, end="unknown")),
    # Many refusals do not hide that the tool fails.
    AlertCase(alert="ToolDegraded", labels=_TOOL, series=_fail(0.2) | _count_calls(denied=((120, 1000),))),
    AlertCase(
        alert="LatencyRegression", labels=_TOOL, minutes=5, series=_measure_latency(
            (2 * _DAY, 50, 0.1), (20, 50, 0.4), (40, 50, 0.1)) | _EVEN_CALLS,
        silent_at=2 * _DAY - 1, fires_at=2 * _DAY + 15, cleared_at=2 * _DAY + 50,
        silent_series=[
            # From one bucket to the next.
            _measure_latency((2 * _DAY, 50, 0.1), (60, 50, 0.101)) | _EVEN_CALLS,
            # Too few calls for a baseline.
            _measure_latency((2 * _DAY, 0.2, 0.1), (60, 50, 4)) | _EVEN_CALLS,
        ],
    ),
    AlertCase(
        alert="TimeoutClassMismatch", labels=_TOOL | {"timeout_class": "standard"}, series=_time_out(0.1),
        silent_series=[_time_out(0.03), _time_out(1, calls=0.5)],
    ),
    AlertCase(
        alert="TimeoutClassAdvice",
        labels=_TOOL | {"timeout_class": "standard", "fitting_class": "interactive"}, minutes=5,
        series=_measure_latency((20, 50, 1), (_DAY + 20, 2, 0.02), (40, 50, 1)),
        silent_at=20, fires_at=_DAY + 38, cleared_at=_DAY + 79,
        silent_series=[
            # Too few calls.
            _measure_latency((_DAY, 0.1, 0.02)),
            _measure_latency((_DAY, 2, 1))
            | _measure_latency((_DAY, 2, 0.02), timeout_class="interactive")
            | _measure_latency((_DAY, 2, 30), timeout_class="long-running"),
        ],
    ),
    AlertCase(
        alert="TimeoutClassAdvice", labels={"timeout_class": "interactive", "fitting_class": "standard"}, minutes=5,
        series=_measure_latency((20, 50, 0.1), (40, 50, 0.45), (_DAY + 20, 2, 0.1), timeout_class="interactive"),
        silent_at=19, fires_at=59, cleared_at=_DAY + 79,
    ),
    AlertCase(
        alert="TimeoutClassAdvice", labels={"timeout_class": "long-running", "fitting_class": "standard"}, minutes=5,
        series=_measure_latency((20, 50, 30), (_DAY + 20, 2, 1), (40, 50, 30), timeout_class="long-running"),
        silent_at=19, fires_at=_DAY + 38, cleared_at=_DAY + 79,
    ),
    AlertCase(
        alert="ToolUnhealthy", labels=_TOOL,
        series=_time_out(0.3) | _measure_latency((40, 10, 0.1), (40, 10, 5), (40, 10, 0.1)),
        silent_series=[
            _fail(0.09) | _count_timeouts((120, 0)) | _measure_latency((120, 10, 0.001)),
            _time_out(0.04) | _measure_latency((120, 10, 0.1)),
            _time_out(1, calls=0.5) | _measure_latency((120, 0.5, 5)),
        ],
    ),
    # A tool that fails at once.
    AlertCase(
        alert="ToolUnhealthy", labels=_TOOL,
        series=_fail(1) | _count_timeouts((120, 0)) | _measure_latency((120, 10, 0.001)),
    ),
    AlertCase(
        alert="ToolOutputInvalid", labels=_TOOL, silent_at=39,
        series={'deputize_tool_schema_validation_failures_total{tool="crm.find", phase="output"}': grow(
            (40, 0), (40, 1), (40, 0))},
        silent_series=[
            {'deputize_tool_schema_validation_failures_total{tool="crm.find", phase="input"}': grow((120, 5))}
        ],
    ),
    AlertCase(
        alert="ApprovalQueueBacklog", labels={"approver_group": "ops"}, silent_at=69, fires_at=75,
        series=_set_gauge(_PENDING, 2, 25),
        silent_series=[
            _set_gauge(_PENDING, 2, 20),
            # Two gateways that count the same requests.
            _set_gauge(_PENDING, 2, 15) | _set_gauge(_PENDING.replace('"a"', '"b"'), 2, 15),
            # Groups are counted apart.
            _set_gauge(_PENDING, 2, 15) | _set_gauge(_PENDING.replace("ops", "law"), 2, 15),
        ],
    ),
    # Requests for several tools wait for the same people.
    AlertCase(
        alert="ApprovalQueueBacklog", labels={"approver_group": "ops"}, silent_at=69, fires_at=75,
        series=_set_gauge(_PENDING, 2, 15) | _set_gauge(_PENDING.replace("crm.find", "crm.put"), 2, 15),
    ),
    AlertCase(
        alert="ApprovalNotificationsLost", labels={}, cleared_at=145,
        series={'deputize_approval_notifications_total{outcome="given_up"}': grow((40, 0), (40, 1), (80, 0))},
        silent_series=[{'deputize_approval_notifications_total{outcome="failed"}': grow((120, 5))}],
    ),
    AlertCase(
        alert="DeputizeDown", labels={"instance": "a"}, series=_set_gauge('up{job="deputize", instance="a"}', 1, 0),
        silent_series=[
            {'up{job="deputize", instance="a"}': hold((40, 1), (2, 0), (80, 1))},
            _set_gauge('up{job="other", instance="a"}', 1, 0),
        ],
    ),
    AlertCase(
        alert="DeputizeNotReady", labels={"check": "database", "instance": "a"}, series=_set_gauge(_READY, 1, 0),
        silent_series=[
            {_READY: hold((40, 1), (4, 0), (80, 1))},
            _set_gauge(_READY.replace("true", "false"), 1, 0),
        ],
    ),
    AlertCase(
        alert="DeputizeNoWorker", labels={},
        series=_set_gauge('deputize_readiness_check{check="workers", required="false"}', 1, 0),
        silent_series=[_set_gauge(_READY, 1, 0)],
    ),
    AlertCase(
        alert="DeputizeDatabaseWentBack", labels={}, silent_at=39,
        series=_set_gauge("deputize_database_went_back", 0, 1),
    ),
    AlertCase(
        alert="DeputizeEventLoopStalled", labels={"instance": "a"},
        series={'deputize_event_loop_stall_seconds_sum{instance="a"}': grow((40, 0), (40, 6), (40, 0))},
        silent_series=[{'deputize_event_loop_stall_seconds_sum{instance="a"}': grow((40, 0), (40, 2), (40, 0))}],
    ),
    AlertCase(
        alert="DeputizeLogLate", labels={}, series=_set_gauge(_LOG_LAG, 0.5, 90),
        silent_series=[_set_gauge(_LOG_LAG, 0.5, 50), {_LOG_LAG: hold((40, 0), (4, 90), (80, 0))}],
    ),
    AlertCase(
        alert="DeputizeCallsWaitLong", labels={}, series=_set_gauge(_QUEUED_AGE, 10, 1000),
        silent_series=[_set_gauge(_QUEUED_AGE, 10, 800), {_QUEUED_AGE: hold((40, 0), (4, 1000), (80, 0))}],
    ),
    AlertCase(
        alert="DeputizeCommitsSlow", labels={"writer": "calls"}, series=_slow_commits(2.5),
        silent_series=[_slow_commits(0.5)],
    ),
    AlertCase(
        alert="DeputizeEventsLate", labels={"sink": "siem"}, series=_set_gauge(_EVENT_LAG, 0.5, 90),
        silent_series=[_set_gauge(_EVENT_LAG, 0.5, 50), {_EVENT_LAG: hold((40, 0), (4, 90), (80, 0))}],
    ),
    AlertCase(
        alert="CircuitOpen", labels={"service": "shop"}, series=_set_gauge(_CIRCUIT, 0, 2),
        silent_series=[_set_gauge(_CIRCUIT, 0, 0), {_CIRCUIT: hold((40, 0), (1, 2), (80, 0))}],
    ),
    AlertCase(
        alert="DeputizeLimitsNotCounted", labels={"rule": "per-minute"}, silent_at=39,
        series={'deputize_limit_uncounted_total{rule="per-minute"}': grow((40, 0), (40, 1), (40, 0))},
        silent_series=[{'deputize_limit_refusals_total{rule="per-minute"}': grow((120, 1))}],
    ),
    # A tool that declares thresholds of its own is judged by them.
    AlertCase(
        alert="ToolDegraded", labels=_TOOL, series=_fail(0.08) | _declare("error_rate", 0.05),
        silent_series=[_fail(0.2) | _declare("error_rate", 0.3)],
    ),
    AlertCase(
        alert="TimeoutClassMismatch", labels=_TOOL, series=_time_out(0.04) | _declare("timeout_rate", 0.02),
        silent_series=[_time_out(0.2) | _declare("timeout_rate", 0.5)],
    ),
    AlertCase(
        alert="ToolApprovalBacklog", labels=_TOOL, series=_set_gauge(_PENDING, 1, 4) | _declare("pending_approvals", 3),
        silent_series=[_set_gauge(_PENDING, 1, 4), _set_gauge(_PENDING, 1, 4) | _declare("pending_approvals", 4)],
    ),
    AlertCase(
        alert="LatencyRegression", labels=_TOOL, minutes=5, series=_measure_latency(
            (2 * _DAY, 50, 0.1), (20, 50, 0.18), (40, 50, 0.1))
        | _EVEN_CALLS | _declare("latency_factor", 1.2, 3 * _DAY),
        silent_at=2 * _DAY - 1, fires_at=2 * _DAY + 15, cleared_at=2 * _DAY + 50,
    ),
]  # fmt: skip
