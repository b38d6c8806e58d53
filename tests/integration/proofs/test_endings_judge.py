"""The judge of the sandbox_endings proof finds each planted fault, and its host sees what is left."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proofs.sandbox_endings.host import Host
from proofs.sandbox_endings.judge import COMMAND, INTERPRETER, Churn, Ended, Left, compute_figures
from proofs.sandbox_endings.programs import COMMANDS, INTERPRETED, MARK, SUCCEEDED, Way
from tests.support.proof_bars import list_exact_bars, list_missed_bars

pytestmark = pytest.mark.nightly


def end_rightly(backend: str, way: Way) -> Ended:
    state = SUCCEEDED if way.number is None else "failed"
    return Ended(backend=backend, way=way, state=state, number=way.number, details=way.detail)


GOOD = [
    end_rightly(backend, way)
    for backend, ways in ((COMMAND, COMMANDS), (INTERPRETER, INTERPRETED))
    for way in ways
    for _ in range(10)
]
NOTHING = Left()
CHURN = Churn(sandboxes=2_000, kills=10, lost=60, untrue=(), at_once=8, left=NOTHING)
KILLED = next(number for number, each in enumerate(GOOD) if each.way.name == "kill_itself")


def test_a_good_run_misses_no_bar() -> None:
    figures = compute_figures(GOOD, NOTHING, CHURN)
    assert list_missed_bars("sandbox_endings", figures) == set()
    assert list_exact_bars("sandbox_endings", among=figures.keys()) == {
        "misnamed", "untrue_endings", "unexplained_endings", "processes_left", "control_groups_left", "mounts_left",
        "namespaces_left", "folders_left", "descriptors_left",
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"state": SUCCEEDED, "number": None},
        {"number": "E3403"},
        {"details": {"ended_by": "crash", "signal": 11}},
        {"details": {}},
    ],
)
def test_a_wrong_name_misses_its_bar(change: dict[str, Any]) -> None:
    planted = [*GOOD[:KILLED], replace(GOOD[KILLED], **change), *GOOD[KILLED + 1 :]]
    assert list_missed_bars("sandbox_endings", compute_figures(planted, NOTHING, CHURN)) == {"misnamed"}


@pytest.mark.parametrize(
    ("churn", "missed"),
    [
        (replace(CHURN, untrue=("sandbox 7",)), {"untrue_endings"}),
        (replace(CHURN, lost=81), {"unexplained_endings"}),
        (replace(CHURN, kills=0, lost=0), {"supervisors_killed"}),
        (replace(CHURN, left=replace(NOTHING, processes=1, mounts=1)), {"processes_left", "mounts_left"}),
        (replace(CHURN, left=replace(NOTHING, control_groups=1, namespaces=1)),
         {"control_groups_left", "namespaces_left"}),
        (replace(CHURN, left=replace(NOTHING, folders=1, descriptors=1)), {"folders_left", "descriptors_left"}),
    ],
)  # fmt: skip
def test_what_is_left_misses_its_bar(churn: Churn, missed: set[str]) -> None:
    assert list_missed_bars("sandbox_endings", compute_figures(GOOD, NOTHING, churn)) == missed
    assert list_missed_bars("sandbox_endings", compute_figures(GOOD, churn.left, CHURN)) <= missed


async def test_the_host_sees_what_is_left(tmp_path: Path) -> None:
    host = Host(folder=tmp_path / "sandboxes", mark=tmp_path.name, temporary=tmp_path)
    assert await host.count_left() == NOTHING
    (tmp_path / "deputize-scratch-1").mkdir()
    (tmp_path / "sandboxes").mkdir()
    (tmp_path / "sandboxes" / "left").touch()
    with subprocess.Popen(["/bin/sleep", "60"], env={MARK: host.mark}) as left:
        found = await host.count_left(seconds=0)
        left.kill()
    assert (found.processes, found.folders) == (1, 2)
