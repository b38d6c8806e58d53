"""The checks of the house catch what they are for and leave alone what is right."""

from pathlib import Path

import pytest

from checks import figures, sizes, words
from tests import requirements


def _result(**changes: object) -> dict[str, object]:
    run: dict[str, object] = {
        "name": "overhead",
        "passed": True,
        "form": "full",
        "figures": {"read_ratio": 0.4},
        "bars": {"read_ratio": {"op": ">=", "bar": 0.35, "figure": 0.4, "passed": True}},
        "controls": {"without_audit": True},
        "commit": "0123456789abcdef",
        "machine": {"cores": 2},
    }
    return run | changes


def test_a_long_function_is_asked_about_until_it_is_excused(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    body = "\n".join("        pass" for _ in range(60))
    (tmp_path / "src" / "room.py").write_text(f"class Room:\n    def grow(self):\n{body}\n")

    found = sizes.measure(tmp_path)

    assert [(size.name, size.lines) for size in found] == [("src/room.py::Room.grow", 61)]
    assert "61 lines" in sizes.problems(found, {})[0]
    assert sizes.problems(found, {"src/room.py::Room.grow": "a table reads best in one piece"}) == []


def test_an_excuse_nobody_needs_is_refused() -> None:
    assert "take it out" in sizes.problems([], {"src/room.py": "was long once"})[0]


def test_an_excuse_without_a_reason_excuses_nothing() -> None:
    large = sizes.Large(kind="file", name="src/room.py", lines=401)

    assert sizes.problems([large], {"src/room.py": " "}) != []


@pytest.mark.parametrize(
    "line",
    [
        "see https://py" + "pi.org/project/x",
        "tarball from registry.npm" + "js.org",
        "open('/wor" + "k/main/x')",
        "# TO" + "DO later",
    ],
)
def test_words_that_must_not_be_published_are_found(line: str) -> None:
    assert list(words.banned_words(line)) != []


@pytest.mark.parametrize("line", ["# TO" + "DO(#12) later", "docs/work/plan.md", "the npm ecosystem"])
def test_harmless_words_are_left_alone(line: str) -> None:
    assert list(words.banned_words(line)) == []


def test_a_result_that_failed_or_was_quick_is_not_shown() -> None:
    found = figures.problems([_result(passed=False), _result(form="quick"), _result()])

    assert found == ["overhead: the kept run did not pass", "overhead: only full runs are kept"]


def test_a_good_result_is_rendered_between_the_markers() -> None:
    table = figures.render([_result()])
    readme = figures.place(f"before\n{figures.OPEN}\nold\n{figures.CLOSE}\nafter", table)

    assert "| `overhead` | read ratio | 0.4 | >= 0.35 | `0123456789` |" in readme
    assert "| `overhead` | broken variant: without audit | caught | caught | `0123456789` |" in readme
    assert "old" not in readme
    assert readme.startswith("before")
    assert readme.endswith("after")


def test_marks_are_collected_from_functions_classes_and_modules(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    mark = "pytest.mark." + "requirement"
    (folder / "test_a.py").write_text(
        f"import pytest\npytestmark = [{mark}('CON-1')]\n"
        f"@{mark}('CON-2')\ndef test_one(): ...\n"
        f"@{mark}('CON-4')\nclass TestTwo:\n    async def test_three(self): ...\n"
    )

    found = [(mark.row, mark.test) for mark in requirements.collect(folder)]

    assert found == [
        ("CON-1", "tests/test_a.py::test_one"),
        ("CON-2", "tests/test_a.py::test_one"),
        ("CON-1", "tests/test_a.py::TestTwo::test_three"),
        ("CON-4", "tests/test_a.py::TestTwo::test_three"),
    ]


def test_a_claim_without_a_test_and_a_mark_without_a_row_are_both_refused() -> None:
    rows = requirements.read_ledger('[CON-1]\npromise = "x"\nstate = "done"\n')
    stray = requirements.Mark(row="CON-99", test="tests/test_a.py::test_one")

    found = requirements.problems(rows, [stray])

    assert "CON-1 is done, but no test shows it" in found[0]
    assert "names CON-99, which is no row" in found[1]


def test_a_state_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="'finished' is not one of"):
        requirements.read_ledger('[CON-1]\npromise = "x"\nstate = "finished"\n')
