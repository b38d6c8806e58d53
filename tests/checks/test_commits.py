"""The check of commit subjects looks at commits since the rule, in full and in shallow clones."""

import subprocess
from pathlib import Path

import pytest

from checks import commits


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("Unknown modes are rejected now", "is not `area: imperative summary`"),
        ("mcp: Reject unknown modes", "is not `area: imperative summary`"),
        ("MCP: reject unknown modes", "is not `area: imperative summary`"),
        ("mcp:reject unknown modes", "is not `area: imperative summary`"),
        ("mcp: rejected unknown modes", "begins its summary with 'rejected'"),
        ("mcp: rejecting unknown modes", "begins its summary with 'rejecting'"),
        ("mcp: rejects unknown modes", "begins its summary with 'rejects'"),
        ("mcp: reject unknown modes.", "ends with a full stop"),
        ("mcp: reject " + "x" * 61, "has 73 characters"),
        ("", "is not `area: imperative summary`"),
    ],
)
def test_a_subject_that_breaks_the_rule_is_explained(subject: str, reason: str) -> None:
    [problem] = commits.find_problems({"0123abc": subject})
    assert problem.startswith(f"0123abc {reason}")


@pytest.mark.parametrize(
    "subject",
    [
        commits.EXAMPLE,
        "proofs: restore, promote and restart under load",
        "cli: pass show_code under its new name",
        "store/sql: embed named statements",
        "tests: process x",
    ],
)
def test_a_subject_that_keeps_the_rule_passes(subject: str) -> None:
    assert commits.find_problems({"0123abc": subject}) == []


def _git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=Tess", "-c", "user.email=tess@example.com"]
    subprocess.run(["git", *identity, "-C", str(folder), *words], check=True, capture_output=True)


def _commit(folder: Path, subject: str) -> None:
    _git(folder, "add", "--all")
    _git(folder, "commit", "--allow-empty", "--message", subject)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Three commits: one before the rule, the rule itself, and one after it."""
    folder = tmp_path / "origin"
    (folder / "checks").mkdir(parents=True)
    _git(folder, "init", "--quiet")
    (folder / "README.md").write_text("x")
    _commit(folder, "Whatever it was called then")
    (folder / commits.RULE_FILE).write_text("x")
    _commit(folder, "checks: refuse other subjects")
    _commit(folder, "tests: check that")
    return folder


def test_commits_before_the_rule_are_not_checked(repository: Path) -> None:
    assert list(commits.list_new_subjects(repository).values()) == [
        "tests: check that",
        "checks: refuse other subjects",
    ]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_shallow_clone_checks_the_commits_it_has(repository: Path, tmp_path: Path, depth: int) -> None:
    _git(tmp_path, "clone", "--quiet", "--depth", str(depth), f"file://{repository}", "shallow")
    subjects = list(commits.list_new_subjects(tmp_path / "shallow").values())
    assert subjects == ["tests: check that", "checks: refuse other subjects"][:depth]


def test_a_repository_that_begins_with_the_rule_is_checked_from_there(tmp_path: Path) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / commits.RULE_FILE).write_text("x")
    _git(tmp_path, "init", "--quiet")
    _commit(tmp_path, "checks: refuse other subjects")
    assert list(commits.list_new_subjects(tmp_path).values()) == ["checks: refuse other subjects"]


def test_a_checkout_without_a_repository_has_nothing_to_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commits, "ROOT", tmp_path)
    assert commits.main() == 0
    assert "no clone" in capsys.readouterr().out
