"""Faults are planted exactly once, in a copy that is restored, and count as noticed only if a test fails."""

from pathlib import Path

import pytest

from checks import mutants as check
from proofs.mutants.experiment import judge_tests
from proofs.mutants.mutant import Mutant, MutantOutdated, choose_mutants, load_mutants

_MUTANT = Mutant(
    name="always_open", fault="A door is open.", file="core/door.py", old="return is_locked", new="return False",
    tests=("unit/test_door.py::test_a_locked_door",),
)  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in (
        ("src/deputize/core/door.py", "def read(is_locked):\n    return is_locked\n"),
        ("src/deputize/core/__init__.py", ""),
        ("tests/unit/test_door.py", "def test_a_locked_door():\n    ...\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_fault_is_there_while_it_is_applied_and_gone_afterwards(tree: Path) -> None:
    file = tree / "src/deputize/core/door.py"
    before = file.read_text()
    with _MUTANT.apply(tree):
        assert file.read_text() == before.replace("return is_locked", "return False")
    assert file.read_text() == before
    with pytest.raises(RuntimeError), _MUTANT.apply(tree):
        raise RuntimeError("the tests broke off")
    assert file.read_text() == before
    assert check.find_problems([_MUTANT], tree) == []


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("src/deputize/core/door.py", "def read(is_locked):\n    return not is_locked\n", "0 times"),
        ("src/deputize/core/door.py", "return is_locked\nreturn is_locked\n", "2 times"),
        ("tests/unit/test_door.py", "def test_another_door():\n    ...\n", "test_a_locked_door"),
        ("src/deputize/store/__init__.py", "", "no fault is planted in src/deputize/store"),
    ],
)
def test_a_fault_that_no_longer_fits_is_named(tree: Path, file: str, text: str, told: str) -> None:
    (tree / file).parent.mkdir(exist_ok=True)
    (tree / file).write_text(text)
    [problem] = check.find_problems([_MUTANT], tree)
    assert told in problem
    if not file.startswith("src/deputize/store"):
        with pytest.raises(MutantOutdated, match="always_open"), _MUTANT.apply(tree):
            pass


@pytest.mark.parametrize(("new", "told"), [("return (", "does not parse"), ("return  is_locked", "changes nothing")])
def test_a_fault_that_is_none_is_named(tree: Path, new: str, told: str) -> None:
    mutant = Mutant(name="m", fault="f", file=_MUTANT.file, old=_MUTANT.old, new=new, tests=_MUTANT.tests)
    [problem] = check.find_problems([mutant], tree)
    assert told in problem


@pytest.mark.parametrize(
    ("code", "last_line", "end"),
    [
        (0, "12 passed in 3.1s", "survived"),
        (1, "1 failed, 3 passed in 3.1s", "killed"),
        (1, "1 error in 3.1s", "broken"),
        (1, "3 passed, 1 error in 3.1s", "broken"),
        (2, "1 error in 0.1s", "broken"),
        (4, "no tests ran in 0.01s", "broken"),
        (5, "no tests ran in 0.01s", "broken"),
        (-9, "", "broken"),
    ],
)
def test_a_fault_is_noticed_by_a_test_that_fails_and_by_nothing_else(code: int, last_line: str, end: str) -> None:
    assert judge_tests(code, last_line) == end


def test_every_commit_tries_a_few_and_the_same_again() -> None:
    mutants = load_mutants()
    chosen = choose_mutants(mutants, "a" * 40, 5)
    assert chosen == choose_mutants(mutants, "a" * 40, 5)
    tried = {each.name for number in range(200) for each in choose_mutants(mutants, f"{number:040x}", 5)}
    assert len(chosen) == 5
    assert len(tried) > len(mutants) * 0.9


def test_every_fault_of_the_list_fits_the_source() -> None:
    mutants = load_mutants()
    assert check.find_problems(mutants, check.ROOT) == []
    assert len(mutants) >= 60
    assert all(each.equivalent is None or each.equivalent.endswith(".") for each in mutants)


def test_a_file_names_only_faults_of_its_package(tmp_path: Path) -> None:
    (tmp_path / "store.toml").write_text('[m]\nfault = "f"\nfile = "core/x.py"\nold = "a"\nnew = "b"\ntests = ["t"]\n')
    with pytest.raises(ValueError, match="another package"):
        load_mutants(tmp_path)
