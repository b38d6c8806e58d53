"""The report of service levels as people read it."""

from typing import Any

import pytest

from deputize.interfaces.cli.commands.service_levels import print_health, print_version

pytestmark = pytest.mark.requirement("OBS-3")
_ANSWER = {"name": "crm.find", "since": "2030-01-01"}


def _build_levels(**changes: Any) -> dict[str, Any]:
    names = ("p99_seconds", "availability", "accuracy", "cost")
    return {
        "version": "1.0.0", "state": "available", "calls": 0,
        "ends": {"successes": 0, "rejections": 0, "failures": 0, "timeouts": 0, "unknown_outcomes": 0},
        "latency": {"calls": 0, "p50_seconds": None, "p95_seconds": None, "p99_seconds": None},
        "timeout_share": None, "mean_cost": None,
        "objectives": [
            {"name": name, "target": None, "value": None, "status": "not-declared", "reason": "none"} for name in names
        ],
        "timeout": {"text": "Ask again."},
        **changes,
    }  # fmt: skip


def _render(capsys: pytest.CaptureFixture[str], levels: dict[str, Any]) -> list[str]:
    print_version(_ANSWER, levels)
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_a_version_without_calls(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _render(capsys, _build_levels())
    assert lines[0] == "crm.find 1.0.0 (available): 0 calls since 2030-01-01"
    assert "p99 - - not declared none" in lines
    assert lines[-1] == "timeout: Ask again."


def test_ends_and_values_are_named_with_their_units(capsys: pytest.CaptureFixture[str]) -> None:
    ends = {"successes": 12_000, "rejections": 1, "failures": 2, "timeouts": 3, "unknown_outcomes": 4}
    objectives = [
        {"name": "p99_seconds", "target": 0.5, "value": 0.61234, "status": "not-met", "reason": "why"},
        {"name": "availability", "target": 0.999, "value": 0.99917, "status": "met", "reason": "why"},
        {"name": "accuracy", "target": 0.9, "value": None, "status": "not-measured", "reason": "why"},
        {"name": "cost", "target": 0, "value": 0.25, "status": "too-few-calls", "reason": "why"},
    ]
    latency = {"calls": 12_004, "p50_seconds": 0.01, "p95_seconds": 0.1, "p99_seconds": 0.61234}
    levels = _build_levels(
        calls=12_010, ends=ends, latency=latency, timeout_share=0.00025, mean_cost=0.125, objectives=objectives
    )
    lines = _render(capsys, levels)
    assert lines[1:3] == [
        "12,000 succeeded, 1 returned a wrong result, 2 failed, 3 timed out, 4 ended unknown; 0.025% timed out",
        "p50 0.01 s, p95 0.1 s, p99 0.612 s; mean cost 0.125",
    ]
    assert [line for line in lines if line.endswith("why") and not line.startswith("objective")] == [
        "p99 0.5 s 0.612 s not met why",
        "availability 99.9% 99.917% met why",
        "accuracy 90% - not measured why",
        "cost per call 0 0.25 too few calls why",
    ]


def test_failures_alone_have_no_latency(capsys: pytest.CaptureFixture[str]) -> None:
    ends = {"successes": 0, "rejections": 0, "failures": 2, "timeouts": 0, "unknown_outcomes": 0}
    lines = _render(capsys, _build_levels(calls=2, ends=ends, timeout_share=0.0, mean_cost=0.0))
    assert lines[1:3] == ["2 failed; 0% timed out", "mean cost 0"]


def _build_score(score: float, **penalties: float) -> dict[str, Any]:
    return {
        "tool": "crm.find", "score": score, "calls": 1200, "error_share": 0.05, "timeout_share": 0.01,
        "p99_seconds": 0.5, "limit_seconds": 5.0, "penalties": {"errors": 0, "latency": 0, "timeouts": 0, **penalties},
    }  # fmt: skip


def test_the_health_of_tools_is_a_table_with_what_lowers_it(capsys: pytest.CaptureFixture[str]) -> None:
    tools = [_build_score(0.68, errors=0.25, timeouts=0.04, latency=0.03), _build_score(1.0) | {"p99_seconds": None}]
    print_health({"minutes": 15, "tools": tools})
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "tool health calls errors timeouts p99 lowered by"
    assert "crm.find 0.68 ███████░░░ 1,200 5.0% 1.0% 0.5 s of 5 s errors 0.25, timeouts 0.04, latency 0.03" in lines
    assert "crm.find 1.00 ██████████ 1,200 5.0% 1.0% - -" in lines


def test_without_calls_no_tool_has_a_score(capsys: pytest.CaptureFixture[str]) -> None:
    print_health({"minutes": 15, "tools": []})
    assert capsys.readouterr().out == "No tool was called in the last 15 minutes.\n"
