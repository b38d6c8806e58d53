"""Each alert of the Prometheus rules fires, stays silent and clears, as promtool evaluates them."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from deputize.core.telemetry import METRIC_LABELS, Metric
from tests.acceptance.monitoring.alert_cases import CASES, AlertCase, Series

pytestmark = [pytest.mark.requirement("OBS-3"), pytest.mark.nightly]
RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "deputize-rules.yml"
_FOUR_ALERTS = {"ToolDegraded", "LatencyRegression", "TimeoutClassMismatch", "ApprovalQueueBacklog"}
_METRIC = re.compile(r"\b(deputize_[a-z_]+?)(?:_bucket|_sum|_count)?(\{[^}]*\})?(?![a-z_])")
_LABEL = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|on) \(([a-z_, ]*)\)")


def _run_promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    assert program, "these tests need promtool: apt-get install -y prometheus"
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300)


_GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
_RULES: list[dict[str, Any]] = [rule for group in _GROUPS for rule in group["rules"]]
_ALERTS = {rule["alert"]: rule for rule in _RULES if "alert" in rule}


def _build_test(case: AlertCase, series: Series, expectations: Mapping[int, bool]) -> dict[str, Any]:
    """Build what promtool reads: the series, and at which samples the alert fires or not."""
    labels = ", ".join(case.labels)
    shown_labels = ", ".join(f'{name}="{value}"' for name, value in case.labels.items())
    return {
        "interval": f"{case.minutes}m",
        "input_series": [{"series": name, "values": text} for name, text in series.items()],
        "promql_expr_test": [
            {
                "expr": f'max by ({labels}) (ALERTS{{alertname="{case.alert}", alertstate="firing"}})',
                "eval_time": f"{sample * case.minutes}m",
                "exp_samples": [{"labels": f"{{{shown_labels}}}", "value": 1}] if fires else [],
            }
            for sample, fires in expectations.items()
        ],
    }


def _build_tests(case: AlertCase) -> Iterator[dict[str, Any]]:
    yield _build_test(case, case.series, {case.silent_at: False, case.fires_at: True, case.cleared_at: False})
    for series in case.silent_series:
        yield _build_test(case, series, dict.fromkeys((case.silent_at, case.fires_at, case.cleared_at), False))


def _run_case(case: AlertCase, rules: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "case.yml"
    tests = list(_build_tests(case))
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": f"{case.minutes}m",
        # Without it promtool evaluates groups in any order, and an alert may see what was recorded before.
        "group_eval_order": [group["name"] for group in _GROUPS],
        "tests": tests,
    }
    file.write_text(yaml.safe_dump(document))
    return _run_promtool("test", "rules", file)


def test_the_rules_are_valid() -> None:
    result = _run_promtool("check", "rules", RULES)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_an_alert_fires_stays_silent_and_clears(case: AlertCase, tmp_path: Path) -> None:
    result = _run_case(case, RULES, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_has_a_case_and_the_four_of_the_promise_are_there() -> None:
    assert {case.alert for case in CASES} == set(_ALERTS)
    assert set(_ALERTS) >= _FOUR_ALERTS


@pytest.mark.parametrize(
    ("alert", "old", "new"),
    [
        ("ToolDegraded", "tool_calls:15m + 0.1)", "tool_calls:15m + 0.5)"),
        ("ToolDegraded", "tool_calls:15m + 0.1)", "tool_calls:15m + 0.05)"),
        ("TimeoutClassMismatch", "tool_calls:15m + 0.05)", "tool_calls:15m + 0.02)"),
        ("ApprovalQueueBacklog", "max by (tool, approver_group)", "sum by (tool, approver_group)"),
    ],
)
def test_a_changed_rule_is_noticed(alert: str, old: str, new: str, tmp_path: Path) -> None:
    text = RULES.read_text(encoding="utf-8")
    assert old in text
    changed_rules = tmp_path / "changed.yml"
    changed_rules.write_text(text.replace(old, new))
    result = _run_case(next(case for case in CASES if case.alert == alert), changed_rules, tmp_path)
    assert result.returncode
    assert "FAILED" in result.stdout + result.stderr


def test_every_metric_and_label_of_the_rules_exists() -> None:
    recorded_names = {rule["record"] for rule in _RULES if "record" in rule}
    labels = {label for names in METRIC_LABELS.values() for label in names} | {"le", "fitting_class", ""}
    for rule in _RULES:
        expression = rule["expr"]
        for name, selector in _METRIC.findall(expression):
            metric = Metric(name)
            assert set(_LABEL.findall(selector)) <= {*METRIC_LABELS[metric], "le"}, f"{name} has no such label"
        assert set(re.findall(r"deputize:[a-z0-9_:]+", expression)) <= recorded_names
        for grouping in _GROUPING.findall(expression):
            assert set(grouping.split(", ")) <= labels, grouping


def test_an_alert_says_what_happened_why_and_what_to_do() -> None:
    for name, rule in _ALERTS.items():
        assert set(rule["annotations"]) == {"summary", "description", "action"}, name
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}, name
