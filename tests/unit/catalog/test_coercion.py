"""Test argument coercion: what it corrects, what it leaves unchanged, and its two invariants."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.catalog.compiled_tool import CompiledTool
from deputize.core.call import Mutation
from tests.support.contracts import make_contract, make_input_schema

pytestmark = [pytest.mark.requirement("INV-11"), pytest.mark.requirement("CON-11")]

NODE = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"size": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
}
SCHEMA: dict[str, Any] = {
    **make_input_schema(
        count={"type": "integer", "minimum": 0},
        ratio={"type": "number"},
        on={"type": "boolean"},
        text={"type": "string"},
        maybe={"anyOf": [{"type": "integer"}, {"type": "null"}]},
        either={"type": ["integer", "string"]},
        tags={"type": "array", "items": {"type": "integer"}},
        wrapped={"type": "array", "items": {"type": "integer"}, "x-coerce": "wrap"},
        place={"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": False},
        tree={"$ref": "#/$defs/node"},
        mode={"enum": [1, 2]},
        anything={},
    ),
    "$defs": {"node": NODE},
}
TOOL = CompiledTool(make_contract(input_schema=SCHEMA))

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.sampled_from(["3", "3.0", "-0", "007", "1e3", "true", "False", "null", '[1, "2"]', '{"x": "1"}', "", "abc"]),
    st.text(max_size=5).filter(lambda text: text.isprintable()),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "size", "next"]), inner)
)
arguments = st.dictionaries(st.sampled_from([*SCHEMA["properties"], "unknown"]), values, max_size=4)


@pytest.mark.parametrize(
    ("given_value", "wanted", "change"),
    [
        ({"count": "3"}, {"count": 3}, "string→integer"),
        ({"count": "3.0"}, {"count": 3}, "string→integer"),
        ({"ratio": "0.25"}, {"ratio": 0.25}, "string→number"),
        ({"ratio": "1e3"}, {"ratio": 1000.0}, "string→number"),
        ({"ratio": "7"}, {"ratio": 7}, "string→integer"),
        ({"on": "true"}, {"on": True}, "string→boolean"),
        ({"on": "False"}, {"on": False}, "string→boolean"),
        ({"maybe": "5"}, {"maybe": 5}, "string→integer"),
        ({"mode": "2"}, {"mode": 2}, "string→integer"),
        ({"tags": "[1, 2]"}, {"tags": [1, 2]}, "string→array"),
        ({"place": '{"x": 1}'}, {"place": {"x": 1}}, "string→object"),
        ({"wrapped": 4}, {"wrapped": [4]}, "integer→array"),
    ],
)
def test_a_slip_with_one_meaning_is_corrected(given_value: Any, wanted: Any, change: str) -> None:
    found, mutations = TOOL.coerce_arguments(given_value)
    assert found == wanted
    assert mutations == (Mutation(path="/" + next(iter(wanted)), source="coercion", change=change),)


@pytest.mark.parametrize(
    "left",
    [
        {"count": "three"}, {"count": "3.5"}, {"count": "007"}, {"count": " 3"}, {"count": "-0"}, {"count": "-3"},
        {"count": "99999999999999999999"}, {"count": 3.5}, {"count": True}, {"count": None}, {"count": [3]},
        {"ratio": "0.1000000000000000000001"}, {"ratio": "NaN"}, {"ratio": "1e400"}, {"on": 1}, {"on": "yes"},
        {"text": 5}, {"tags": 4}, {"tags": "[1,"}, {"place": "[]"}, {"place": '{"x": 1, "y": 2}'},
        {"tags": "[99999999999999999999]"}, {"place": '{"x": 1, "x": 2}'}, {"count": "3", "unknown": 1},
    ],
)  # fmt: skip
def test_what_would_be_lossy_or_a_guess_is_left_as_it_came(left: dict[str, Any]) -> None:
    before = copy.deepcopy(left)
    found, mutations = TOOL.coerce_arguments(left)
    assert found is left
    assert mutations == ()
    assert left == before


def test_json_inside_text_is_held_to_the_rules_of_interfaces() -> None:
    schema = make_input_schema(place={"type": "object", "x-open": True, "additionalProperties": True})
    tool = CompiledTool(make_contract(input_schema=schema))
    for text in ('{"x": "\\u0000"}', '{"x": ' + "[" * 60 + "]" * 60 + "}", '{"x": 99999999999999999999}'):
        assert tool.coerce_arguments({"place": text}) == ({"place": text}, ())


def test_coercion_reaches_into_lists_objects_and_schemas_that_contain_themselves() -> None:
    deep = {"tree": {"size": "1", "next": {"size": "2", "next": {"size": 3}}}, "tags": ["1", 2], "text": "3"}
    found, mutations = TOOL.coerce_arguments(deep)
    assert found == {
        "tree": {"size": 1, "next": {"size": 2, "next": {"size": 3}}},
        "tags": [1, 2],
        "text": "3",
    }
    assert {each.path for each in mutations} == {"/tree/size", "/tree/next/size", "/tags/0"}


def test_a_required_property_with_a_default_is_filled_and_recorded() -> None:
    schema = {**make_input_schema(size={"type": "integer", "default": 10}, q={"type": "string"}), "required": ["size"]}
    tool = CompiledTool(make_contract(input_schema=schema))
    found, mutations = tool.coerce_arguments({"q": "x"})
    assert found == {"q": "x", "size": 10}
    assert mutations == (Mutation(path="/size", source="default", change="absent→default"),)


def test_between_two_kinds_of_object_nothing_is_chosen() -> None:
    kinds = [
        {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
        {"type": "object", "properties": {"x": {"type": "string"}, "y": {"type": "integer"}}, "required": ["y"]},
    ]
    tool = CompiledTool(make_contract(input_schema=make_input_schema(what={"oneOf": kinds})))
    assert tool.coerce_arguments({"what": {"x": "1"}}) == ({"what": {"x": "1"}}, ())


@given(arguments)
def test_a_coerced_value_fits_the_schema_or_is_what_came_in(came: dict[str, Any]) -> None:
    before = copy.deepcopy(came)
    found, mutations = TOOL.coerce_arguments(came)
    assert came == before
    if mutations:
        assert TOOL.is_valid_input(found)
        assert not TOOL.is_valid_input(came)
    else:
        assert found is came


@given(arguments.filter(TOOL.is_valid_input))
def test_valid_input_is_never_changed(came: dict[str, Any]) -> None:
    assert TOOL.coerce_arguments(came) == (came, ())
