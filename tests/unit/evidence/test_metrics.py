"""The nine signals are there, explained, and add up."""

from itertools import pairwise

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deputize.core.contract.prices import CallUsage
from deputize.core.states import State
from deputize.core.telemetry import METRIC_HELP, METRIC_LABELS, Metric
from deputize.evidence.metrics import BUCKETS, Metrics
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("OBS-2")
NINE_SIGNALS = {
    "deputize_tool_invocations_total": {"tool", "version", "state", "mutation_class"},
    "deputize_tool_invocation_latency_seconds": {"tool", "version", "timeout_class"},
    "deputize_tool_invocation_cost_total": {"tool", "version", "category", "currency"},
    "deputize_tool_invocation_retries_total": {"tool", "version"},
    "deputize_tool_invocation_timeouts_total": {"tool", "version", "timeout_class"},
    "deputize_tool_idempotency_replays_total": {"tool"},
    "deputize_tool_cached_reads_total": {"tool"},
    "deputize_tool_fallbacks_total": {"tool"},
    "deputize_tool_approvals_pending": {"tool", "approver_group"},
    "deputize_tool_approval_resolution_seconds": {"tool", "resolution"},
    "deputize_tool_schema_validation_failures_total": {"tool", "phase"},
}
OTHER_METRICS: dict[str, set[str]] = {
    "deputize_build_info": {"version", "python"},
    "deputize_commit_seconds": {"writer"},
    "deputize_commit_rows_total": {"writer"},
    "deputize_commit_queue_rows": {"writer"},
    "deputize_pool_connections": {"pool", "state"},
    "deputize_pool_connections_limit": {"pool"},
    "deputize_queued_calls": set(),
    "deputize_queued_call_age_seconds": set(),
    "deputize_log_queue_entries": set(),
    "deputize_log_sequencer_lag_seconds": set(),
    "deputize_database_went_back": set(),
    "deputize_log_unwitnessed_seconds": set(),
    "deputize_log_witness_refusals_total": {"witness", "reason"},
    "deputize_readiness_check": {"check", "required"},
    "deputize_event_lag_seconds": {"sink"},
    "deputize_circuit_state": {"service"},
    "deputize_retry_refusals_total": {"service"},
    "deputize_service_calls": {"service", "state"},
    "deputize_service_refusals_total": {"service"},
    "deputize_event_send_failures_total": {"sink"},
    "deputize_events_sent_total": {"sink"},
    "deputize_tool_dry_runs_total": {"tool"},
    "deputize_tool_alert_threshold": {"tool", "threshold"},
    "deputize_approval_notifications_total": {"outcome"},
    "deputize_connection_refusals_total": {"reason"},
    "deputize_source_disagreements_total": {"rule", "resolved"},
    "deputize_injection_suspicions_total": {"kind", "side"},
    "deputize_limit_refusals_total": {"rule"},
    "deputize_limit_uncounted_total": {"rule"},
    "deputize_event_loop_stall_seconds": set(),
}


def _read_samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Everything a scrape shows; a series shown twice is a scrape that Prometheus refuses."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} is shown twice"
            found[key] = sample.value
    return found


def _read_value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return _read_samples(metrics).get((name, frozenset(labels.items())))


def test_the_nine_metrics_are_these_with_these_labels_and_a_help() -> None:
    assert {metric.value: set(METRIC_LABELS[metric]) for metric in Metric} == NINE_SIGNALS | OTHER_METRICS
    assert all(METRIC_HELP[metric].endswith(".") for metric in Metric)


@pytest.mark.requirement("GOV-8")
def test_what_limits_refuse_and_what_they_could_not_count_is_counted_by_rule() -> None:
    metrics = Metrics()
    metrics.record_limit_refusal("per-minute")
    metrics.record_limit_refusal("per-minute")
    metrics.record_uncounted_call("per-minute")
    assert _read_value(metrics, "deputize_limit_refusals_total", rule="per-minute") == 2
    assert _read_value(metrics, "deputize_limit_uncounted_total", rule="per-minute") == 1


def test_a_scrape_names_all_nine_before_the_first_call() -> None:
    text = generate_latest(Metrics().registry).decode()
    for metric in Metric:
        assert f"# HELP {metric.value} {METRIC_HELP[metric]}" in text
        assert f"# TYPE {metric.value} " in text


def test_no_label_names_a_tenant_or_a_caller() -> None:
    assert not {"tenant", "user", "agent", "session"} & {label for labels in METRIC_LABELS.values() for label in labels}


def test_a_call_is_counted_with_its_time_its_retries_and_its_cost() -> None:
    metrics, made = Metrics(), make_contract()
    metrics.record_end(made, State.SUCCEEDED, 0.02, attempts=3, usage=CallUsage(0.5))
    metrics.record_end(made, State.TIMED_OUT, 7.0)
    tool = {"tool": "crm.get_user", "version": "1.0.0"}
    calls = "deputize_tool_invocations_total"
    latency = "deputize_tool_invocation_latency_seconds"
    assert _read_value(metrics, calls, **tool, state="succeeded", mutation_class="read") == 1
    assert _read_value(metrics, calls, **tool, state="timed_out", mutation_class="read") == 1
    assert _read_value(metrics, f"{latency}_count", **tool, timeout_class="standard") == 2
    assert _read_value(metrics, f"{latency}_sum", **tool, timeout_class="standard") == pytest.approx(7.02)
    assert _read_value(metrics, f"{latency}_bucket", **tool, timeout_class="standard", le="0.032") == 1
    assert _read_value(metrics, f"{latency}_bucket", **tool, timeout_class="standard", le="0.018") == 0
    assert _read_value(metrics, f"{latency}_bucket", **tool, timeout_class="standard", le="+Inf") == 2
    assert _read_value(metrics, "deputize_tool_invocation_retries_total", **tool) == 2
    assert _read_value(metrics, "deputize_tool_invocation_timeouts_total", **tool, timeout_class="standard") == 1
    assert _read_value(metrics, "deputize_tool_invocation_cost_total", **tool, category="compute", currency="") == 0.5


def test_a_call_exactly_on_a_bucket_belongs_to_it() -> None:
    metrics = Metrics()
    metrics.record_end(make_contract(), State.SUCCEEDED, 0.032)
    bucket = {"tool": "crm.get_user", "version": "1.0.0", "timeout_class": "standard", "le": "0.032"}
    assert _read_value(metrics, "deputize_tool_invocation_latency_seconds_bucket", **bucket) == 1


def test_calls_of_unknown_tools_are_counted_without_their_names() -> None:
    metrics = Metrics()
    metrics.record_end(None, State.BLOCKED, 0.1)
    assert (
        _read_value(metrics, "deputize_tool_invocations_total", tool="", version="", state="blocked", mutation_class="")
        == 1
    )


def test_replays_and_misfits_are_counted_per_tool() -> None:
    metrics = Metrics()
    metrics.record_replay(make_contract())
    metrics.record_replay(make_contract(version="2.0.0"))
    metrics.record_schema_violation(make_contract(), "input")
    metrics.record_schema_violation(make_contract(version="2.0.0"), "input")
    assert _read_value(metrics, "deputize_tool_idempotency_replays_total", tool="crm.get_user") == 2
    assert (
        _read_value(metrics, "deputize_tool_schema_validation_failures_total", tool="crm.get_user", phase="input") == 2
    )


def test_tenants_that_declare_one_name_and_version_differently_share_their_series() -> None:
    metrics = Metrics()
    for description in ("Look up one user by number.", "Look up one user by e-mail."):
        for cost in (0.0, 1.0):
            metrics.record_end(
                make_contract(description=description), State.SUCCEEDED, 0.02, attempts=2, usage=CallUsage(cost)
            )
    tool = {"tool": "crm.get_user", "version": "1.0.0"}
    assert (
        _read_value(metrics, "deputize_tool_invocations_total", **tool, state="succeeded", mutation_class="read") == 4
    )
    assert _read_value(metrics, "deputize_tool_invocation_retries_total", **tool) == 4
    assert _read_value(metrics, "deputize_tool_invocation_latency_seconds_count", **tool, timeout_class="standard") == 4


def test_versions_without_end_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deputize.evidence.metrics._MAX_TALLIES", 2)
    metrics = Metrics()
    for number in range(5):
        contract = make_contract(version=f"{number}.0.0")
        metrics.record_end(contract, State.SUCCEEDED, 0.1)
        metrics.record_schema_violation(make_contract(name=f"tool{number}"), "input")
    labels = {"tool": "other", "version": "", "state": "succeeded", "mutation_class": ""}
    assert _read_value(metrics, "deputize_tool_invocations_total", **labels) == 3
    name = "deputize_tool_schema_validation_failures_total"
    assert _read_value(metrics, name, tool="other", phase="input") == 3


@pytest.mark.requirement("OBS-3")
def test_failures_are_shown_as_zero_from_the_first_call_on() -> None:
    metrics = Metrics()
    metrics.record_end(make_contract(), State.SUCCEEDED, 0.1)
    labels = {"tool": "crm.get_user", "version": "1.0.0", "mutation_class": "read"}
    for state in ("failed", "timed_out", "unknown"):
        assert _read_value(metrics, "deputize_tool_invocations_total", **labels, state=state) == 0
    name = "deputize_tool_schema_validation_failures_total"
    assert _read_value(metrics, name, tool="crm.get_user", phase="output") == 0


@pytest.mark.requirement("OBS-3")
def test_no_bucket_is_twice_the_one_before() -> None:
    assert all(upper < 2 * lower for lower, upper in pairwise(BUCKETS))


def test_the_checks_of_readiness_are_run_at_each_scrape() -> None:
    metrics, is_ok = Metrics(), [True]
    metrics.watch_readiness(lambda: [("database", is_ok[0], True), ("workers", False, False)])
    assert _read_value(metrics, "deputize_readiness_check", check="database", required="true") == 1
    is_ok[0] = False
    assert _read_value(metrics, "deputize_readiness_check", check="database", required="true") == 0
    assert _read_value(metrics, "deputize_readiness_check", check="workers", required="false") == 0


@pytest.mark.requirement("OBS-3")
def test_thresholds_that_tools_declare_are_shown_and_the_lowest_counts() -> None:
    metrics = Metrics()
    thresholds = {"error_rate": 0.05, "timeout_rate": 0.02, "latency_factor": 1.5, "pending_approvals": 3}
    for contract in (
        make_contract(alerts=thresholds),
        make_contract(alerts={"error_rate": 0.2}, version="2.0.0"),
        make_contract(version="3.0.0"),
    ):
        metrics.show_tool(contract)
    name = make_contract().full_name
    for threshold, value in thresholds.items():
        labels = {"tool": name, "threshold": threshold}
        assert metrics.registry.get_sample_value(Metric.ALERT_THRESHOLD, labels) == value
