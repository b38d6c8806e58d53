"""A verdict is judged strictly and told in one line, one JSON and one exit code."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx2
import orjson
import pytest

from proofs.__main__ import Proof, run_proof
from proofs.kit.facts import read_commit_facts
from proofs.kit.report import (
    Verdict,
    check_bars,
    has_passed,
    has_wrong_result,
    is_timeout,
    render_last_line,
)
from proofs.kit.sandbox import Sandbox

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[3]
GOOD = Verdict(figures={"ratio": 0.4567891, "rounds": 7}, bars={"ratio": (">=", 0.35)}, controls={"no lock": True})


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(figures={"ratio": 0.3}, bars={"ratio": (">=", 0.35)}),
        Verdict(figures={}, bars={"ratio": (">=", 0.35)}),
        Verdict(figures={"ratio": float("nan")}, bars={"ratio": (">=", 0.35)}),
        Verdict(figures={"ratio": "0.9"}, bars={"ratio": (">=", 0.35)}),
        Verdict(figures={"lost": 0}, bars={"lost": ("==", 0)}, controls={"no lock": False}),
        Verdict(figures={"lost": 0}, bars={}),
    ],
    ids=["below", "missing", "not a number", "of another kind", "control not caught", "no bar"],
)
def test_whatever_is_not_shown_fails(verdict: Verdict) -> None:
    assert not has_passed(verdict)
    assert render_last_line("x", verdict).endswith("FAIL")


def test_what_meets_its_bars_passes_in_one_line() -> None:
    assert has_passed(GOOD)
    assert [bar.is_met for bar in check_bars(GOOD)] == [True]
    assert render_last_line("x", GOOD) == "x: ratio 0.4568 >= 0.35, rounds 7, control no lock caught: PASS"


async def passing_proof(world: Sandbox) -> Verdict:
    world.log("working")
    return GOOD


async def failing_proof(world: Sandbox) -> Verdict:
    raise RuntimeError("it broke")


async def test_a_proof_leaves_its_result_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results" / "x.json"
    assert has_passed(await run_proof(Proof(name="x", promise="It works.", prove=passing_proof), full=True, json=file))
    kept = orjson.loads(file.read_bytes())
    assert (kept["name"], kept["passed"], kept["form"]) == ("x", True, "full")
    assert kept["bars"]["ratio"] == {"op": ">=", "bar": 0.35, "figure": 0.4567891, "passed": True}
    assert kept["controls"] == {"no lock": True}
    assert set(kept["machine"]) == {"cores", "memory_gib", "python", "kernel", "postgres"}
    assert {"commit", "digests", "dirty", "started", "seconds"} <= set(kept)
    told = capsys.readouterr()
    assert told.out.splitlines()[-1].endswith("PASS")
    assert "working" in told.err


async def test_a_proof_that_breaks_off_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.json"
    assert not has_passed(
        await run_proof(Proof(name="x", promise="It works.", prove=failing_proof), full=False, json=file)
    )
    assert orjson.loads(file.read_bytes())["passed"] is False
    told = capsys.readouterr()
    assert told.out.splitlines()[-1].endswith("FAIL")
    assert "it broke" in told.err


@pytest.mark.parametrize(
    ("figures", "controls", "wrong"),
    [
        ({"lost": 0, "ms": 99.0}, {"no lock": True}, False),
        ({"lost": 1, "ms": 1.0}, {"no lock": True}, True),
        ({"lost": 0, "ms": 1.0}, {"no lock": False}, True),
        ({}, {}, True),
    ],
)
def test_a_wrong_result_is_distinguished_from_a_late_one(
    figures: dict[str, float], controls: dict[str, bool], wrong: bool
) -> None:
    verdict = Verdict(figures=figures, bars={"lost": ("==", 0), "ms": ("<=", 10)}, controls=controls)
    assert not has_passed(verdict)
    assert has_wrong_result(verdict) is wrong


@pytest.mark.parametrize(("lost", "is_caught"), [(1, True), (0, False), (1, False)])
def test_what_a_busy_machine_may_miss_is_no_wrong_result(lost: int, is_caught: bool) -> None:
    verdict = Verdict(
        figures={"lost": lost, "twice": 0}, bars={"lost": ("==", 0), "twice": ("==", 0)},
        controls={"slow": is_caught, "no lock": True}, load_sensitive=("lost", "slow"),
    )  # fmt: skip
    assert not has_passed(verdict)
    assert not has_wrong_result(verdict)
    assert has_wrong_result(replace(verdict, controls={"slow": True, "no lock": False}))
    assert has_wrong_result(replace(verdict, figures={"lost": 0, "twice": 1}))


def test_only_what_took_too_long_counts_as_a_timeout() -> None:
    late = [TimeoutError(), httpx2.ReadTimeout("late"), subprocess.TimeoutExpired("x", 1)]
    assert all(is_timeout(each) for each in late)
    assert is_timeout(ExceptionGroup("tasks", [late[0], ExceptionGroup("more", late[1:])]))
    assert not is_timeout(ExceptionGroup("tasks", [late[0], ValueError("wrong")]))
    assert not is_timeout(ConnectionError("reset"))


def test_a_folder_without_a_repository_has_no_commit(tmp_path: Path) -> None:
    assert read_commit_facts(tmp_path) == {"commit": "unknown", "dirty": True}


@pytest.mark.parametrize(("name", "code"), [("list", 0), ("no_such_proof", 2)])
def test_the_command_lists_proofs_and_refuses_names_it_does_not_know(name: str, code: int) -> None:
    command = [sys.executable, "-m", "proofs", name]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == code
