"""Cases that are built from the schemas of a contract."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.contract.contract import Contract
from deputize.testing.contract_cases import CaseBuilder, CaseKind, Expectation
from deputize.testing.schema_values import NoValueError
from tests.support.contracts import make_contract

SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["id", "address"],
    "properties": {
        "id": {"type": "integer", "minimum": 1, "maximum": 9},
        "name": {"type": "string", "minLength": 2, "maxLength": 5},
        "kind": {"enum": ["a", "b"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2, "uniqueItems": True},
        "address": {
            "type": "object",
            "additionalProperties": False,
            "required": ["zip"],
            "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "note": {"$ref": "#/$defs/note"}},
        },
    },
    "$defs": {"note": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}},
}
EXAMPLE = {"id": 7, "address": {"zip": "10115"}}


def build(
    schema: dict[str, Any] = SCHEMA, *, examples: tuple[dict[str, Any], ...] = (EXAMPLE,), **more: Any
) -> CaseBuilder:
    contract: Contract = make_contract(input_schema=schema, examples=examples)
    return CaseBuilder(contract, **more)


def test_every_expectation_is_what_the_schema_says() -> None:
    builder = build()
    cases = builder.build_cases(samples=30)
    for case in cases:
        if case.kind in (CaseKind.HOSTILE, CaseKind.DUPLICATE_KEY) and case.expectation is Expectation.REFUSED:
            continue
        is_valid = builder.tool.is_valid_input(json.loads(case.arguments_json))
        assert is_valid is (case.expectation is not Expectation.REFUSED), case


def test_limits_are_tried_on_both_sides_and_inside_nested_objects() -> None:
    ids = {case.id for case in build().build_cases(samples=1)}
    assert {
        "boundary:id:minimum", "boundary:id:maximum", "boundary:name:maxLength", "boundary:kind:enum-1",
        "boundary:tags:maxItems", "exceeding:id:minimum", "exceeding:id:maximum", "exceeding:name:minLength",
        "exceeding:kind:enum", "exceeding:tags:maxItems", "exceeding:address.zip:pattern", "missing:id",
        "missing:address.zip", "extra:unknown_argument", "extra:address.__proto__", "duplicate-key:id",
        "hostile:nul", "hostile:deep-nesting",
    } <= ids  # fmt: skip


def test_what_the_gateway_corrects_is_not_expected_to_be_refused() -> None:
    schema = {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer", "default": 3}}}
    ids = {case.id for case in build(schema, examples=({"x": 1},)).build_cases(samples=1)}
    assert "missing:x" not in ids


def test_the_same_seed_builds_the_same_cases() -> None:
    assert build(seed=4).build_cases(samples=9) == build(seed=4).build_cases(samples=9)
    assert build(seed=4).build_cases(samples=9) != build(seed=5).build_cases(samples=9)


def test_known_values_are_used_for_random_cases() -> None:
    builder = build(values={"id": [3]})
    assert {builder.sample_arguments()["id"] for _ in range(20)} == {3}


def test_a_schema_without_a_valid_value_asks_for_an_example() -> None:
    impossible = {
        "type": "object",
        "required": ["x"],
        "properties": {"x": {"allOf": [{"type": "string"}, {"not": {}}]}},
    }
    with pytest.raises(NoValueError, match="add an example"):
        build(impossible, examples=())


@given(
    st.recursive(
        st.sampled_from(
            [
                {"type": "integer", "minimum": -3, "exclusiveMaximum": 8},
                {"type": "number", "multipleOf": 0.5, "minimum": 0},
                {"type": "string", "format": "date"},
                {"type": "string", "minLength": 30},
                {"type": ["null", "boolean"]},
                {"const": [1, "a"]},
            ]
        ),
        lambda inner: st.one_of(
            st.builds(lambda one: {"type": "array", "items": one, "minItems": 1, "maxItems": 3}, inner),
            st.builds(lambda one, two: {"oneOf": [one, {"allOf": [two]}]}, inner, inner),
            st.builds(
                lambda one, two: {"type": "object", "required": ["p"], "properties": {"p": one, "q": two}}, inner, inner
            ),
        ),
        max_leaves=5,
    )
)
def test_valid_arguments_are_found_for_ordinary_schemas(part: dict[str, Any]) -> None:
    schema = {"type": "object", "required": ["value"], "properties": {"value": part}}
    try:
        builder = build(schema, examples=())
    except NoValueError:
        # Both branches of a oneOf can allow the same values, so that none is valid.
        assert "oneOf" in json.dumps(part)
        return
    assert all(builder.tool.is_valid_input(builder.sample_arguments()) for _ in range(3))
