"""Quick proofs run two at a time, timed ones alone; an inconclusive one is repeated once, a failed one never."""

import sys
from pathlib import Path

import pytest

from proofs.__main__ import LONG_PROOFS, TIMED_PROOFS, choose_quick_proofs, get_exit_code, list_names, load_proof
from proofs.kit.proof_queue import FAILED, INCONCLUSIVE, PASSED, run_quick_proofs
from proofs.kit.report import Bar, Verdict

# Writes when it begins and ends; one named `meets-X` ends only once X has begun, and some end with other codes.
_PROOF = """
import sys, time
from pathlib import Path
log, name = Path(sys.argv[1]), sys.argv[2]
def write(what):
    with log.open("a") as file:
        file.write(f"{what} {name}\\n")
write("begin")
runs = log.read_text().splitlines().count(f"begin {name}")
while name.startswith("meets-") and f"begin {name.removeprefix('meets-')}\\n" not in log.read_text():
    time.sleep(0.01)
print(f"what {name} logs\\n{name} in one line")
write("end")
sys.exit({"fails": 1, "inconclusive": 3, "inconclusive-once": 3 if runs == 1 else 0}.get(name, 0))
"""


def _run_queue(tmp_path: Path, *names: str, timed: frozenset[str] = frozenset()) -> tuple[dict[str, int], list[str]]:
    log = tmp_path / "log"
    runs = run_quick_proofs(names, timed, (sys.executable, "-c", _PROOF, str(log)))
    return {name: run.code for name, run in runs.items()}, log.read_text().splitlines()


def test_several_proofs_run_at_a_time_and_a_timed_one_alone(tmp_path: Path) -> None:
    codes, lines = _run_queue(tmp_path, "meets-b", "timed", "b", "c", timed=frozenset({"timed"}))
    assert codes == {"meets-b": PASSED, "b": PASSED, "c": PASSED, "timed": PASSED}
    assert lines[-2:] == ["begin timed", "end timed"]


def test_only_an_inconclusive_proof_is_repeated_and_only_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes, lines = _run_queue(tmp_path, "fails", "inconclusive", "inconclusive-once", "passes")
    assert codes == {"fails": FAILED, "inconclusive": INCONCLUSIVE, "inconclusive-once": PASSED, "passes": PASSED}
    begun = [line.removeprefix("begin ") for line in lines if line.startswith("begin")]
    assert sorted(begun[:4]) == ["fails", "inconclusive", "inconclusive-once", "passes"]
    assert begun[4:] == ["inconclusive", "inconclusive-once"]
    printed = capsys.readouterr().out
    assert "what fails logs" in printed
    assert "passes in one line" in printed
    assert "what passes logs" not in printed


def test_a_wrong_result_and_a_proof_that_broke_off_are_final() -> None:
    bars: dict[str, Bar] = {"lost": ("==", 0), "ms": ("<=", 10)}
    assert get_exit_code(Verdict(figures={"lost": 0, "ms": 1}, bars=bars)) == PASSED
    assert get_exit_code(Verdict(figures={"lost": 0, "ms": 11}, bars=bars)) == INCONCLUSIVE
    assert get_exit_code(Verdict(figures={"lost": 1, "ms": 11}, bars=bars)) == FAILED
    assert get_exit_code(Verdict(figures={}, bars={})) == FAILED
    assert get_exit_code(Verdict(figures={}, bars={}, has_timed_out=True)) == INCONCLUSIVE


def test_every_quick_proof_is_chosen_by_some_commit() -> None:
    chosen = [frozenset(choose_quick_proofs(f"commit {number}")) for number in range(100)]
    assert {len(each & TIMED_PROOFS) for each in chosen} == {1}
    assert {len(each & LONG_PROOFS) for each in chosen} == {1}
    assert {len(each) for each in chosen} == {8}
    assert frozenset().union(*chosen) == {name for name in list_names() if not load_proof(name).is_full_only}


def test_the_timed_and_the_long_proofs_exist() -> None:
    assert set(list_names()) > {*TIMED_PROOFS, *LONG_PROOFS}
