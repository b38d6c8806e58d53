"""The checks of the house catch what they are for and leave alone what is right."""

from pathlib import Path
from typing import Any

import pytest

from checks import figures, links, sizes, threats
from proofs.kit.stored_results import StoredResult
from tests import requirements


def _make_result(state: dict[str, Any] | None = None, **changes: object) -> StoredResult:
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
    result = run | changes
    return StoredResult(name=str(result["name"]), result=result, **(state or {}))


def test_a_long_function_is_asked_about_until_it_is_excused(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    body = "\n".join("        pass" for _ in range(60))
    (tmp_path / "src" / "room.py").write_text(f"class Room:\n    def grow(self):\n{body}\n")

    found = sizes.find_large(tmp_path)

    assert [(size.name, size.lines) for size in found] == [("src/room.py::Room.grow", 61)]
    assert "61 lines" in sizes.find_problems(found, {})[0]
    assert sizes.find_problems(found, {"src/room.py::Room.grow": "a table reads best in one piece"}) == []


def test_an_excuse_nobody_needs_is_refused() -> None:
    assert "take it out" in sizes.find_problems([], {"src/room.py": "was long once"})[0]


def test_an_excuse_without_a_reason_excuses_nothing() -> None:
    large = sizes.LargeItem(kind="file", name="src/room.py", lines=401)

    assert sizes.find_problems([large], {"src/room.py": " "}) != []


def test_a_headline_whose_figure_was_not_measured_is_named() -> None:
    found = figures.find_problems([_make_result(name="barrier", figures={"acts": 1000}), _make_result()])

    assert found == ["barrier: the headline names late, which the stored run did not measure"]


def test_a_good_result_is_rendered_between_the_markers() -> None:
    table = figures.render_table([_make_result()])
    readme = figures.insert_table(f"before\n{figures.OPEN_MARK}\nold\n{figures.CLOSE_MARK}\nafter", table)

    assert "| `overhead` | read ratio | 0.4 | >= 0.35 | measured on this code |" in readme
    assert "| `overhead` | broken variant: without audit | caught | caught | measured on this code |" in readme
    assert "old" not in readme
    assert readme.startswith("before")
    assert readme.endswith("after")


def test_a_result_is_published_with_its_state() -> None:
    missed_bar = {"op": ">=", "bar": 0.35, "figure": 0.2, "passed": False}
    missed = _make_result({"misses": ["read_ratio"]}, bars={"read_ratio": missed_bar}, figures={"read_ratio": 0.2})
    stale = _make_result({"changed": ["core"]}, name="stalls")
    faulty = _make_result({"faults": ["was measured on code that was changed"]}, name="drift")
    absent = StoredResult(name="vault", result=None, unmeasured="not yet")

    table = figures.render_table([missed, stale, faulty, absent])

    assert "| `overhead` | read ratio | 0.2 | >= 0.35 (missed) | below its bar |" in table
    assert "| `stalls` | read ratio | 0.4 | >= 0.35 | measured on earlier code (`0123456789`) |" in table
    assert "| `drift` |" not in table
    assert table.endswith("Not measured on this code: `drift`, `vault`.")


def test_a_headline_shows_the_figures_of_its_proof() -> None:
    result = _make_result(name="barrier", figures={"acts": 1000, "late": 0})

    table = figures.render_headlines([_make_result(), result, StoredResult(name="policy", result=None)])

    assert table.splitlines()[2:] == [
        "| 1,000 revocations under load | 0 calls began on revoked authority | `barrier` | measured on this code |",
        "",
        "Not measured on this code: `policy`.",
    ]


def test_marks_are_collected_from_functions_classes_and_modules(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    mark = "pytest.mark." + "requirement"
    (folder / "test_a.py").write_text(
        f"import pytest\npytestmark = [{mark}('CON-1')]\n"
        f"@{mark}('CON-2')\ndef test_one(): ...\n"
        f"@{mark}('CON-4')\nclass TestTwo:\n    async def test_three(self): ...\n"
    )

    found = [(mark.row, mark.test) for mark in requirements.collect_marks(folder)]

    assert found == [
        ("CON-1", "tests/test_a.py::test_one"),
        ("CON-2", "tests/test_a.py::test_one"),
        ("CON-1", "tests/test_a.py::TestTwo::test_three"),
        ("CON-4", "tests/test_a.py::TestTwo::test_three"),
    ]


def test_a_claim_without_a_test_and_a_mark_without_a_row_are_both_refused() -> None:
    rows = requirements.read_ledger('[CON-1]\npromise = "x"\nstate = "done"\n')
    stray = requirements.Mark(row="CON-99", test="tests/test_a.py::test_one")

    found = requirements.find_problems(rows, [stray])

    assert "CON-1 is done, but no test shows it" in found[0]
    assert "names CON-99, which is no row" in found[1]


def test_a_state_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="'finished' is not one of"):
        requirements.read_ledger('[CON-1]\npromise = "x"\nstate = "finished"\n')


def test_prose_that_names_a_module_that_is_gone_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "store"
    folder.mkdir(parents=True)
    (folder / "pool.py").write_text('"""Used by `store/keys.py` and `{}`."""\n'.format("store/gone.py"))
    (folder / "keys.py").write_text('"""See `pool.py`."""\n')
    assert list(links.find_missing_modules(tmp_path)) == [f"src/store/pool.py: `{'store/gone.py'}` does not exist"]


def test_a_threat_without_an_existing_test_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("def test_b() -> None: ...\n")
    threat = {"category": "spoofing", "threat": "t", "mechanism": "m", "not_protected": "n"}
    shown = ["tests/test_a.py::test_b", "tests/test_a.py::test_gone", "python -m proofs gone"]
    problems = list(threats.find_problems([{**threat, "shown_by": shown}, {**threat, "shown_by": []}], tmp_path))
    assert problems[:3] == [
        "t: tests/test_a.py::test_gone does not exist",
        "t: python -m proofs gone does not exist",
        "t: name the test or proof that shows the mechanism",
    ]
    assert "no threat of the category tampering" in problems
