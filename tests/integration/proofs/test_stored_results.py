"""A stored result fails when it is not true of anything, and is listed when it is not true of this code."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from proofs.__main__ import Proof, apply_declaration, attempt_proof, check_stored_results, get_exit_code, list_names
from proofs.kit.declarations import Declaration, find_declaration_problems, load_declarations
from proofs.kit.facts import compute_digests, list_commits
from proofs.kit.proof_queue import INCONCLUSIVE
from proofs.kit.report import Verdict, has_passed, render_json
from proofs.kit.sandbox import Sandbox
from proofs.kit.stored_results import ResultJudge

ROOT = Path(__file__).resolve().parents[3]
_TOML = """
[x]
covers = ["core"]
controls = ["no lock"]
[x.bars]
lost = "== 0"
runs = { full = ">= 100", quick = ">= 5" }
p50_ms = { full = "<= 3.0", kind = "time" }
slowdown = { full = "<= 2.0", kind = "ratio" }
share = { full = ">= 0.9", kind = "ratio", quick = ">= 0.5" }
"""
_FIGURES: dict[str, int | float | str] = {"lost": 0, "runs": 120, "p50_ms": 2.0, "slowdown": 1.5, "share": 0.95}


def _run_git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def _declare(tmp_path: Path, text: str = _TOML) -> dict[str, Declaration]:
    file = tmp_path / "proofs.toml"
    file.write_text(text)
    return load_declarations(file)


class Repository:
    """A clone with one covered package, one proof and one stored result."""

    def __init__(self, root: Path) -> None:
        self.root, self.declarations = root, _declare(root)
        self.package, self.folder = root / "src" / "deputize" / "core", root / "proofs" / "results"
        self.package.mkdir(parents=True)
        self.folder.mkdir(parents=True)
        (self.package / "clock.py").write_text("NOW = 1\n")
        (root / "proofs" / "x.py").write_text("NAME = 'x'\n")
        _run_git(root, "init", "-q")
        _run_git(root, "add", ".")
        _run_git(root, "commit", "-qm", "core: add a clock")

    @property
    def file(self) -> Path:
        return self.folder / "x.json"

    def store(self, figures: dict[str, int | float | str] = _FIGURES, *, is_caught: bool = True) -> None:
        verdict = apply_declaration(
            self.declarations["x"], Verdict(figures=figures, controls={"no lock": is_caught}), full=True
        )
        facts = {
            "commit": _run_git(self.root, "rev-parse", "HEAD"),
            "dirty": False,
            "digests": compute_digests("x", ["core"], self.root),
            "machine": {"cores": 2},
        }
        self.file.write_bytes(render_json("x", verdict, full=True, run_facts=facts))

    def change(self, edit: Callable[[dict[str, Any]], object]) -> None:
        result = orjson.loads(self.file.read_bytes())
        edit(result)
        self.file.write_bytes(orjson.dumps(result))

    def check(self, *, release: bool = False) -> bool:
        judge = ResultJudge(
            declarations=self.declarations,
            folder=self.folder,
            commits=list_commits(self.root),
            compute=lambda name, packages: compute_digests(name, packages, self.root),
        )
        return check_stored_results(judge, release=release)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path)
    made.store()
    return made


def test_a_result_of_this_code_passes_even_a_release(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repository.check(release=True)
    assert capsys.readouterr().out == "results: 1 of 1 proofs hold on this code: PASS\n"


def _judge_by_another_bar(result: dict[str, Any]) -> None:
    result["bars"]["runs"]["bar"] = 50


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda result: result.update(dirty=True), "changed and not committed"),
        (lambda result: result.pop("dirty"), "is no result"),
        (lambda result: result.update(commit="0" * 40), "not in the history"),
        (lambda result: result.update(commit="unknown"), "not in the history"),
        (_judge_by_another_bar, "other bars than the code's (runs)"),
        (lambda result: result["bars"].pop("lost"), "other bars than the code's (lost)"),
        (lambda result: result["controls"].clear(), "other controls than the code's (no lock)"),
        (lambda result: result["figures"].update(lost=1), "its figures say otherwise"),
        (lambda result: result["controls"].update({"no lock": False}), "its figures say otherwise"),
        (lambda result: result["bars"]["lost"].update(passed=False), "says of lost what its figure contradicts"),
        (lambda result: result.update(form="quick"), "is of the quick form"),
    ],
)
def test_a_result_that_is_not_true_of_anything_fails(
    repository: Repository,
    capsys: pytest.CaptureFixture[str],
    edit: Callable[[dict[str, Any]], object],
    told: str,
) -> None:
    repository.change(edit)
    assert not repository.check()
    assert told in capsys.readouterr().out


def test_a_missing_result_fails_unless_the_declaration_says_why(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.file.unlink()
    assert not repository.check()
    assert "results/x.json is missing" in capsys.readouterr().out
    repository.declarations = _declare(repository.root, _TOML.replace("[x]\n", '[x]\nunmeasured = "it takes a week"\n'))
    assert repository.check()
    assert "x: not measured: it takes a week" in capsys.readouterr().out
    assert not repository.check(release=True)
    repository.store()
    assert not repository.check()


def test_a_result_of_no_proof_fails(repository: Repository) -> None:
    (repository.folder / "y.json").write_bytes(repository.file.read_bytes())
    assert not repository.check()


def test_a_file_that_is_no_result_fails(repository: Repository) -> None:
    repository.file.write_text("[]")
    assert not repository.check()


@pytest.mark.parametrize("changed", ["src/deputize/core/clock.py", "src/deputize/core/new.sql", "proofs/x.py"])
def test_a_result_of_earlier_code_is_listed_and_fails_only_a_release(
    repository: Repository, capsys: pytest.CaptureFixture[str], changed: str
) -> None:
    (repository.root / changed).write_text("changed\n")
    assert repository.check()
    assert f"x: stale: {'proof' if changed.startswith('proofs') else 'core'} changed" in capsys.readouterr().out
    assert not repository.check(release=True)


def test_a_change_to_what_is_not_covered_leaves_a_result_as_it_is(repository: Repository) -> None:
    (repository.root / "src" / "deputize" / "app.py").write_text("APP = 1\n")
    assert repository.check(release=True)


def test_a_result_below_its_bar_is_stored_and_fails_only_a_release(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.store(_FIGURES | {"slowdown": 2.5}, is_caught=False)
    assert repository.check()
    assert "x: below its bar: slowdown 2.5 <= 2 (!), control no lock not caught" in capsys.readouterr().out
    assert not repository.check(release=True)


def test_the_quick_form_loosens_times_by_25_and_ratios_by_3_at_most(tmp_path: Path) -> None:
    quick_bars = _declare(tmp_path)["x"].quick_bars
    assert quick_bars == {
        "lost": ("==", 0),
        "runs": (">=", 5),
        "p50_ms": ("<=", 75.0),
        "slowdown": ("<=", 6.0),
        "share": (">=", 0.5),
    }
    for loose in ('quick = ">= 0.29"', 'quick = "<= 0.5"'):
        with pytest.raises(ValueError, match="the quick form of a ratio is at most"):
            _declare(tmp_path, _TOML.replace('quick = ">= 0.5"', loose))


@pytest.mark.parametrize(
    "text",
    [
        _TOML.replace('covers = ["core"]', ""),
        _TOML.replace("controls", "control"),
        _TOML.replace('"== 0"', '"0"'),
        _TOML.replace('"time"', '"clock"'),
        _TOML.replace("[x.bars]", 'load_sensitive = ["runs"]\n[x.bars]'),
    ],
)
def test_a_declaration_that_says_what_it_must_not_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"\[x\]"):
        _declare(tmp_path, text)


def test_exact_bars_and_controls_may_be_sensitive_to_load(tmp_path: Path) -> None:
    sensitive = 'load_sensitive = ["lost", "no lock"]\n[x.bars]'
    declaration = _declare(tmp_path, _TOML.replace("[x.bars]", sensitive))["x"]
    figures = {**_FIGURES, "lost": 1}
    verdict = apply_declaration(declaration, Verdict(figures=figures, controls={"no lock": False}), full=True)
    assert get_exit_code(verdict) == INCONCLUSIVE


def test_controls_other_than_the_declared_ones_are_an_error(tmp_path: Path) -> None:
    declaration = _declare(tmp_path)["x"]
    for verdict, full in (
        (Verdict(figures=_FIGURES), True),
        (Verdict(figures=_FIGURES, controls={"another": True}), False),
        (Verdict(figures=_FIGURES, bars={"lost": ("==", 0)}, controls={"no lock": True}), True),
    ):
        with pytest.raises(ValueError, match=r"^x "):
            apply_declaration(declaration, verdict, full=full)
    # A quick form may leave controls out.
    assert has_passed(apply_declaration(declaration, Verdict(figures=_FIGURES), full=False))


@pytest.mark.parametrize("is_changed", [False, True])
async def test_code_that_changes_during_a_run_makes_its_result_one_of_changed_code(
    repository: Repository, is_changed: bool
) -> None:
    async def prove(sandbox: Sandbox) -> Verdict:
        if is_changed:
            (repository.package / "clock.py").write_text("NOW = 2\n")
        return Verdict(figures=_FIGURES, controls={"no lock": True})

    proof = Proof(name="x", promise="It works.", prove=prove, declaration=repository.declarations["x"])
    commit = _run_git(repository.root, "rev-parse", "HEAD")
    verdict, facts = await attempt_proof(proof, full=True, root=repository.root)
    assert has_passed(verdict)
    assert (facts["commit"], facts["dirty"]) == (commit, is_changed)


def test_every_proof_is_declared_and_covers_packages_that_exist() -> None:
    declarations = load_declarations()
    assert find_declaration_problems(declarations, list_names(), ROOT / "src" / "deputize") == []
    assert find_declaration_problems(declarations, [*list_names(), "new"], ROOT / "src" / "deputize") != []
    assert find_declaration_problems(declarations, list_names(), ROOT / "proofs") != []
