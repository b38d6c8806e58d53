"""The judges of what governing costs find one planted fault of each category, in that category and in no other."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proofs.fairness import compute_limit_seconds, judge_delays, require_quick_starts
from proofs.kit.child_process import CommandResult
from proofs.kit.load import PairedSamples, Sample
from proofs.kit.process_usage import ProcessUsage
from proofs.overhead.experiment import build_verdict as judge_overhead
from proofs.proxy.experiment import build_figures, compare_peers, judge_counts
from proofs.proxy.rounds import TargetRuns
from proofs.quickstart import (
    TutorialRun,
    count_running_processes,
    find_call_faults,
    find_call_id,
    find_show_faults,
    judge_runs,
)
from proofs.sessions.experiment import has_every_leak, judge_usage
from tests.support.proof_bars import list_missed_bars

pytestmark = pytest.mark.nightly

# The proxy: direct calls take 1 ms, governed ones 2 ms; another proxy takes 4 ms.


def make_runs(*p50_ms: float, per_second: int = 500, p99_ms: float = 4.0, cpu_ms: float = 0.9) -> TargetRuns:
    samples = [Sample(requests=per_second, seconds=1.0, p50_ms=each, p99_ms=p99_ms) for each in p50_ms]
    return TargetRuns(samples=samples, cpu_ms=[cpu_ms] * len(samples))


DIRECT, GOVERNED = make_runs(1.0, 1.0, 1.0), make_runs(2.0, 2.0, 2.0)
PEER = make_runs(4.0, 4.0, 4.0, per_second=250, p99_ms=8.0, cpu_ms=2.0)


@pytest.mark.parametrize(
    ("governed", "missed"),
    [
        (GOVERNED, set()),
        (make_runs(2.0, 9.0, 2.0), set()),
        (make_runs(2.0, 2.6, 2.6), {"p50_ratio_at_1"}),
        (make_runs(2.0, 2.0, 2.0, cpu_ms=1.1), {"deputize_cpu_ms_at_1"}),
    ],
)
def test_a_proxied_call_is_compared_round_by_round(governed: TargetRuns, missed: set[str]) -> None:
    assert list_missed_bars("proxy", build_figures({"direct": DIRECT, "deputize": governed}, 1)) == missed


@pytest.mark.parametrize(
    ("governed", "missed"),
    [
        (GOVERNED, set()),
        (make_runs(2.0, 2.0, per_second=240), {"per_second_of_best_peer_at_1"}),
        (make_runs(2.0, 2.0, p99_ms=8.1), {"p99_of_best_peer_at_1"}),
        (make_runs(2.0, 2.0, cpu_ms=2.1), {"cpu_of_best_peer_at_1"}),
    ],
)
def test_the_best_of_the_other_proxies_counts(governed: TargetRuns, missed: set[str]) -> None:
    slow_peer = make_runs(9.0, 9.0, per_second=1, p99_ms=9000.0, cpu_ms=9.0)
    runs = {1: {"deputize": governed, "peer": PEER, "slow": slow_peer}}
    assert list_missed_bars("proxy", compare_peers(runs, ["peer", "slow"])) == missed
    assert compare_peers(runs, []) == {}


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, set()),
        ({"reached_count": 11_999}, {"calls_not_reached"}),
        ({"entry_count": 5_999}, {"calls_not_audited"}),
        ({"governed_count": 4_999}, {"calls_governed"}),
    ],
)
def test_proxied_calls_reach_the_server_and_are_audited(changes: dict[str, int], missed: set[str]) -> None:
    counts = {"measured_count": 12_000, "reached_count": 12_100, "governed_count": 6_000, "entry_count": 6_050}
    assert list_missed_bars("proxy", judge_counts(**{**counts, **changes})) == missed


# Overhead: each share of what the other load does, with one round far out.


def make_pair(share: float) -> PairedSamples:
    ours = [Sample(requests=round(1000 * each), seconds=1.0, p50_ms=1.0) for each in (share, share, 0.01)]
    return PairedSamples(a=tuple(ours), b=(Sample(requests=1000, seconds=1.0),) * 3)


SHARES = {"read": 0.4, "write": 0.3, "read_traced": 0.95, "write_traced": 0.95, "write_against_postgres": 0.5}


@pytest.mark.parametrize(
    ("changes", "unbatched", "missed", "is_caught"),
    [
        ({}, 0.1, set(), True),
        ({"read": 0.34}, 0.1, {"read"}, True),
        ({"write": 0.2}, 0.1, {"write"}, True),
        ({"read_traced": 0.89}, 0.1, {"read_traced"}, True),
        ({"write_traced": 0.89}, 0.1, {"write_traced"}, True),
        ({"write_against_postgres": 0.42}, 0.1, {"write_against_postgres"}, True),
        ({}, 0.25, set(), False),
    ],
)
def test_overhead_is_judged_by_medians(
    changes: dict[str, float], unbatched: float, missed: set[str], is_caught: bool
) -> None:
    samples = {name: make_pair(share) for name, share in {**SHARES, **changes}.items()}
    verdict = judge_overhead(samples, make_pair(unbatched), {"cpu_us_read_reply": 1.0})
    assert list_missed_bars("overhead", verdict.figures) == missed
    assert list(verdict.controls.values()) == [is_caught]


# Sessions: what a gateway holds before and after.

BEFORE = ProcessUsage(rss_mib=100.0, open_files=20, processes=2)


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, set()),
        ({"rss_mib": 90.0, "open_files": 19, "processes": 1}, set()),
        ({"rss_mib": 110.0}, {"memory_grew_by"}),
        ({"open_files": 21}, {"files_left"}),
        ({"processes": 3}, {"processes_left"}),
    ],
)
def test_what_sessions_leave_behind_is_found(changes: dict[str, Any], missed: set[str]) -> None:
    after = replace(BEFORE, **changes)
    assert list_missed_bars("sessions", judge_usage(BEFORE, after)) == missed
    assert not has_every_leak(BEFORE, after)


def test_a_gateway_that_leaks_leaks_everything() -> None:
    assert has_every_leak(BEFORE, ProcessUsage(rss_mib=110.0, open_files=21, processes=3))


# Fairness: how long runs of another tenant take to begin.


@pytest.mark.parametrize(
    ("alone", "beside", "left", "missed"),
    [
        ([0.1] * 100, [0.9] * 100, 1, set()),
        ([0.1] * 100, [1.1] * 100, 1, {"start_p95_of_what_is_allowed"}),
        ([0.8] * 100, [1.5] * 100, 1, set()),
        ([0.8] * 100, [0.1] * 90 + [1.7] * 10, 1, {"start_p95_of_what_is_allowed"}),
        ([0.1] * 100, [0.9] * 100, 0, {"flood_left_at_the_end"}),
    ],
)
def test_a_flood_that_holds_up_others_is_found(
    alone: list[float], beside: list[float], left: int, missed: set[str]
) -> None:
    assert list_missed_bars("fairness", judge_delays(alone, beside, left)) == missed
    assert compute_limit_seconds(alone) >= 1.0
    require_quick_starts(alone)


def test_a_machine_on_which_everybody_waits_shows_nothing() -> None:
    with pytest.raises(TimeoutError, match="too busy"):
        require_quick_starts([0.1] * 90 + [2.1] * 10)


# Quickstart: the tutorial's call and its record, as typed.

RUN = TutorialRun(seconds=10.0, faults=(), delays=(), leftover_count=0)
CALL_ID = "01890000-0000-7000-8000-000000000000"
GREETED = CommandResult(code=0, stdout="Hello, Ana!", stderr=f"allowed by default · call {CALL_ID}", seconds=1.0)


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, set()),
        ({"seconds": 15.1}, {"installed_seconds"}),
        ({"faults": ("x",)}, {"wrong"}),
        ({"delays": ("x",)}, {"not_in_time"}),
        ({"leftover_count": 1}, {"left_running"}),
    ],
)
def test_a_tutorial_that_differs_is_found(changes: dict[str, Any], missed: set[str]) -> None:
    assert list_missed_bars("quickstart", judge_runs([RUN, replace(RUN, **changes)], RUN)) == missed
    venv_missed = {"empty_venv_seconds" if each == "installed_seconds" else each for each in missed}
    venv_run = replace(RUN, **({"seconds": 60.1} if "seconds" in changes else changes))
    assert list_missed_bars("quickstart", judge_runs([RUN], venv_run)) == venv_missed


@pytest.mark.parametrize(
    ("changes", "is_good"),
    [({}, True), ({"code": 1}, False), ({"stdout": "Hello!"}, False), ({"stderr": ""}, False)],
)
def test_the_first_call_is_governed_and_answered(changes: dict[str, Any], is_good: bool) -> None:
    assert (find_call_faults(replace(GREETED, **changes)) == []) is is_good


def test_the_first_call_is_on_record() -> None:
    assert find_call_id(GREETED) == CALL_ID
    assert find_call_id(replace(GREETED, stderr="allowed by default")) is None
    assert find_show_faults(replace(GREETED, code=0, stdout="state succeeded")) == []
    assert find_show_faults(replace(GREETED, code=0, stdout="state failed")) != []
    assert find_show_faults(replace(GREETED, code=1, stdout="state succeeded")) != []


def test_a_process_that_still_works_in_the_folder_is_found(tmp_path: Path) -> None:
    assert count_running_processes(tmp_path) == 0
    with subprocess.Popen([sys.executable, "-c", "input()"], cwd=tmp_path, stdin=subprocess.PIPE) as process:
        assert count_running_processes(tmp_path) == 1
        process.communicate(b"\n")
    assert count_running_processes(tmp_path) == 0
