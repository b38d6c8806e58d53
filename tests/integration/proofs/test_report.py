"""A verdict is judged strictly and told in one line, one JSON and one exit code."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from proofs.__main__ import Proof, run
from proofs.kit.facts import commit_facts
from proofs.kit.report import Verdict, as_json, is_wrong, judge, last_line, passes, shortcomings
from proofs.kit.world import World

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
    assert not passes(verdict)
    assert last_line("x", verdict).endswith("FAIL")


def test_what_meets_its_bars_passes_in_one_line() -> None:
    assert passes(GOOD)
    assert [bar.passed for bar in judge(GOOD)] == [True]
    assert last_line("x", GOOD) == "x: ratio 0.4568 >= 0.35, rounds 7, control no lock caught: PASS"


async def good(world: World) -> Verdict:
    world.say("working")
    return GOOD


async def broken(world: World) -> Verdict:
    raise RuntimeError("it broke")


async def test_a_proof_leaves_its_result_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results" / "x.json"
    assert passes(await run(Proof(name="x", promise="It works.", prove=good), full=True, json=file))
    kept = orjson.loads(file.read_bytes())
    assert (kept["name"], kept["passed"], kept["form"]) == ("x", True, "full")
    assert kept["bars"]["ratio"] == {"op": ">=", "bar": 0.35, "figure": 0.4567891, "passed": True}
    assert kept["controls"] == {"no lock": True}
    assert set(kept["machine"]) == {"cores", "memory_gib", "python", "kernel", "postgres"}
    assert {"commit", "dirty", "started", "seconds"} <= set(kept)
    told = capsys.readouterr()
    assert told.out.splitlines()[-1].endswith("PASS")
    assert "working" in told.err
    assert shortcomings(file.parent) == []


async def test_a_proof_that_breaks_off_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.json"
    assert not passes(await run(Proof(name="x", promise="It works.", prove=broken), full=False, json=file))
    assert orjson.loads(file.read_bytes())["passed"] is False
    told = capsys.readouterr()
    assert told.out.splitlines()[-1].endswith("FAIL")
    assert "it broke" in told.err


@pytest.mark.parametrize(
    ("figures", "controls", "wrong"),
    [
        ({"lost": 0, "ms": 99.0}, {"no lock": True}, False),
        ({"lost": 1, "ms": 1.0}, {"no lock": True}, True),
        ({"lost": 0, "ms": 1.0}, {"no lock": False}, False),
        ({}, {}, True),
    ],
)
def test_what_came_out_wrong_is_told_from_what_was_late(
    figures: dict[str, float], controls: dict[str, bool], wrong: bool
) -> None:
    verdict = Verdict(figures=figures, bars={"lost": ("==", 0), "ms": ("<=", 10)}, controls=controls)
    assert not passes(verdict)
    assert is_wrong(verdict) is wrong


def test_kept_results_are_judged_anew(tmp_path: Path) -> None:
    result = orjson.loads(as_json("x", GOOD, full=False, about={}))
    result["figures"]["ratio"] = 0.1
    (tmp_path / "x.json").write_bytes(orjson.dumps(result))
    assert len(shortcomings(tmp_path)) == 2  # not the full form, and below its bar, though it says `passed`


def test_a_folder_without_a_repository_has_no_commit(tmp_path: Path) -> None:
    assert commit_facts(tmp_path) == {"commit": "unknown", "dirty": True}


@pytest.mark.parametrize(("name", "code"), [("list", 0), ("no_such_proof", 2)])
def test_the_command_lists_proofs_and_refuses_names_it_does_not_know(name: str, code: int) -> None:
    command = [sys.executable, "-m", "proofs", name]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == code
