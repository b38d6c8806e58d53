"""Differences between our objects and foreign ones: complete, and no way to state what is not enforced."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deputize.catalog.exchange.agent_tool.field_mapping import MISSING
from deputize.catalog.exchange.agent_tool.foreign_fields import (
    ForeignField,
    apply_differences,
    find_differences,
    is_replacement,
    parse_differences,
)
from deputize.core.canonical import canonicalize

SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "a", "/", "~1"]) | st.just(0.5)
NAMES = st.sampled_from(["a", "b", "a/b", "m~n", ""])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=12
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=4)


@given(ours=DOCUMENTS, theirs=DOCUMENTS)
def test_applying_the_differences_gives_the_foreign_object(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    stored = [each.to_json() for each in find_differences(ours, theirs)]
    apply_differences(ours, parse_differences(stored))
    assert canonicalize(ours) == canonicalize(theirs)


@given(ours=DOCUMENTS)
def test_equal_objects_have_no_differences(ours: dict[str, Any]) -> None:
    assert find_differences(ours, ours) == []


def test_one_and_true_are_different_and_one_and_one_point_zero_are_not() -> None:
    assert find_differences({"a": 1}, {"a": 1.0}) == []
    assert [each.value for each in find_differences({"a": 1}, {"a": True})] == [True]


def test_a_value_that_changed_since_is_not_replaced() -> None:
    differences = find_differences({"title": "", "name": "x"}, {"title": "Theirs", "name": "x"})
    document = {"title": "New", "name": "x"}
    apply_differences(document, differences)
    assert document == {"title": "New", "name": "x"}


def test_a_difference_cannot_replace_an_object_around_a_governed_statement() -> None:
    paths = (("profile", "effects"),)
    assert is_replacement(ForeignField(("profile",), None, {"effects": "read"}), paths)
    assert is_replacement(ForeignField(("profile", "effects", "x"), None, 1), paths)
    assert not is_replacement(ForeignField(("profile", "risk"), None, "high"), paths)
    assert not is_replacement(ForeignField(("profile", "effects"), "sha256:1", MISSING), paths)


def test_what_is_no_difference_is_ignored() -> None:
    assert parse_differences("no list") == []
    assert parse_differences([1, {"path": 7}, {"path": "a"}, {"path": "/a", "instead_of": 1}]) == []
    document = {"a": 1}
    apply_differences(document, parse_differences([{"path": "/a/b", "value": 2}, {"path": "/x/y", "value": 2}]))
    assert document == {"a": 1}
