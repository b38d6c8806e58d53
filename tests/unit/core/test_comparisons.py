"""Comparisons between values of a call."""

from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core import comparisons
from deputize.core.comparisons import InvalidComparison, compute_change, parse_comparison

pytestmark = pytest.mark.requirement("INV-7")

_ORDER = {
    "id": "o1",
    "start": "2026-03-01T10:00:00Z",
    "end": "2026-03-01T09:30:00-01:00",
    "total": 30.3,
    "open": True,
    "lines": [{"product": "a", "amount": 10.1}, {"product": "b", "amount": 20.2}],
    "products": [{"id": "a"}, {"id": "b"}],
    "allowed": ["a", "b", "c"],
    "parts": {"x": 1, "y": 2.0},
    "none": [],
}
_DOCUMENT = {"input": {"limit": 2, "id": "o1", "none": None}, "output": _ORDER}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("count(/output/lines) <= /input/limit", True),
        ("count(/output/lines/*) == 2", True),
        ("count(/output/parts) < 2", False),
        ("count(/output/missing) == 0", False),
        ("count(/output/total) == 0", False),
        ("sum(/output/lines/*/amount) == /output/total", False),
        ("sum(/output/lines/*/amount) == /output/total within 0.000001", True),
        ("sum(/output/lines/*/product) == 0", False),
        ("max(/output/lines/*/amount) <= /output/total", True),
        ("min(/output/parts) >= 1", True),
        ("min(/output/missing/*) >= 0", False),
        ("/output/start < /output/end", True),
        ("/output/end != /output/start", True),
        ("/output/id == /input/id", True),
        ('/output/id == "o1"', True),
        ("/output/id < /input/id", False),
        ("/output/open == true", True),
        ("/output/open == 1", False),
        ("/output/open != 1", True),
        ("/output/parts/y == 2", True),
        ("/input/none == null", True),
        ("/output/lines/*/amount > 10", True),
        ("/output/lines/*/amount > 10.1", False),
        ("/output/lines/0/amount == 10.1", True),
        ("/output/lines/7/amount == 10.1", False),
        ("/output/lines/*/product in /output/products/*/id", True),
        ("/output/lines/*/product in /output/allowed", True),
        ("/output/products/*/id in /output/lines/*/amount", False),
        ("/output/id in /output/allowed", False),
        ("/output/id in /output/missing", False),
        ("/output/missing != 3", False),
        ("/output/missing/* != 3", False),
        ("/output/lines/*/missing != 3", False),
        ("/output/none/* > 3", True),
        ("/output/total == /output/missing", False),
    ],
)
def test_a_comparison_is_evaluated(text: str, holds: bool) -> None:
    assert parse_comparison(text).holds(_DOCUMENT) is holds


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("/output/a</output/b", "not of the form"),
        ("/output/a ~ /output/b", "not of the form"),
        ("count(/output/a == 1", "not of the form"),
        ("/result/a == 1", "does not begin with /input, /output"),
        ("count(output/a) == 1", "does not begin with /input, /output"),
        ("1 == /output/a", "begins with a constant"),
        ("/output/a == /output/b/*", "many values on the right"),
        ("/output/a in 3", "constant behind `in`"),
        ("/output/*/a/* == 3", "more than one *"),
        ("/output/a == 1.2.3", "not JSON"),
        ("/output/a == 1e999", "too large"),
        ("/output/a == 1 within 1-1", "not a number"),
        ("/output/a == 1 within 1e999", "not finite"),
    ],
)
def test_what_is_not_a_comparison_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidComparison, match=reason.replace("*", r"\*")):
        parse_comparison(text)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=8,
)
_PATHS = st.sampled_from(["/output", "/output/a", "/output/*", "/output/a/*/b", "count(/output)", "sum(/output/*)"])


@given(_JSON, _PATHS, st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in"]))
def test_any_result_is_judged_without_an_error(output: Any, path: str, operator: str) -> None:
    comparison = parse_comparison(f"{path} {operator} /output/a")

    assert comparison.holds({"input": {}, "output": output}) in (True, False)


def test_a_sum_too_large_for_a_number_fails_the_comparison() -> None:
    assert not parse_comparison("sum(/output) >= 0").holds({"input": {}, "output": [1.7e308, 1.7e308]})


@given(st.lists(st.integers(-50, 50), max_size=6), st.integers(-50, 50))
def test_many_values_hold_where_each_of_them_does(values: list[int], bound: int) -> None:
    document = {"input": {"bound": bound}, "output": values}

    assert parse_comparison("/output/* <= /input/bound").holds(document) is all(each <= bound for each in values)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (2, 5, 3),
        (2.5, 1, -1.5),
        ({"rows": 2, "sha256": "a"}, {"rows": 3, "sha256": "b"}, {"rows": 1}),
        ({"stock": {"apple": 4}}, {"stock": {"apple": 1, "pear": 2}}, {"stock": {"apple": -3}}),
        ({"open": True}, {"open": False}, {}),
        ([1], [2], None),
        (None, 3, None),
    ],
)
def test_a_change_has_by_how_much_each_number_changed(before: Any, after: Any, change: Any) -> None:
    assert compute_change(before, after) == change


@given(_JSON, _JSON)
def test_the_change_of_any_state_is_computed(before: Any, after: Any) -> None:
    comparison = parse_comparison("/change/a == 0")

    assert comparison.holds({"input": {}, "output": {}, "change": compute_change(before, after)}) in (True, False)


@pytest.mark.parametrize(
    ("text", "compares_state"),
    [("/output/inserted == /change/rows", True), ("count(/after/files) <= 3", True), ("/output/after == 1", False)],
)
def test_a_comparison_tells_whether_it_needs_the_state(text: str, compares_state: bool) -> None:
    assert parse_comparison(text).compares_state is compares_state


def test_a_large_value_on_the_right_is_written_once_for_all_on_the_left(monkeypatch: pytest.MonkeyPatch) -> None:
    written_values: list[Any] = []

    def note_value(value: Any, option: int) -> bytes:
        written_values.append(value)
        return orjson.dumps(value, option=option)

    monkeypatch.setattr(comparisons, "orjson", SimpleNamespace(dumps=note_value, OPT_SORT_KEYS=orjson.OPT_SORT_KEYS))
    document = {"input": {"forbidden": ["x", "y"]}, "output": {"names": ["a", "b", "c"]}}
    assert parse_comparison("/output/names/* != /input/forbidden").holds(document)
    assert written_values.count(["x", "y"]) == 1
