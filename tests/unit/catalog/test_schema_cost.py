"""A schema that could cost much is refused before any document is checked against it."""

from time import thread_time
from typing import Any

import pytest

from deputize.catalog.schema_cost import MAX_EVALUATIONS, measure_schema
from deputize.catalog.schema_rules import check_schema
from deputize.catalog.schemas import compile_schema, iterate_errors
from deputize.catalog.validation_job import is_costly_document


def make_doubling_schema(levels: int, *, nested: bool) -> dict[str, Any]:
    def refer(level: int) -> dict[str, Any]:
        reference = {"$ref": f"#/$defs/x{level + 1}"}
        return {"properties": {"a": reference}} if nested else reference

    definitions: dict[str, Any] = {f"x{each}": {"allOf": [refer(each), refer(each)]} for each in range(levels)}
    return {"$ref": "#/$defs/x0", "$defs": {**definitions, f"x{levels}": {"type": "integer"}}}


def list_reasons(schema: dict[str, Any]) -> list[str]:
    return [each.reason for each in check_schema("input_schema", schema)]


@pytest.mark.parametrize("nested", [False, True])
def test_references_that_double_at_every_level_are_refused(nested: bool) -> None:
    began = thread_time()
    assert list_reasons(make_doubling_schema(3, nested=nested)) == []
    assert "more than 10,000 checks" in list_reasons(make_doubling_schema(20, nested=nested))[0]
    assert thread_time() - began < 3


def test_a_recursive_schema_counts_once() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    assert measure_schema(tree).evaluations < 10
    assert measure_schema(tree).is_recursive
    assert not measure_schema(make_doubling_schema(3, nested=True)).is_recursive
    assert measure_schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}).evaluations <= MAX_EVALUATIONS


@pytest.mark.parametrize("reference", ["#/$defs/a", "#/%24defs/a"])
def test_a_recursive_schema_that_reads_what_was_not_evaluated_is_refused(reference: str) -> None:
    branch = {"prefixItems": [{"$ref": reference, "unevaluatedItems": False}]}
    schema = {"$ref": reference, "$defs": {"a": {"anyOf": [branch, branch]}}}
    assert "takes exponential time" in list_reasons(schema)[0]
    # One that an earlier release admitted is never matched on the event loop.
    assert is_costly_document(measure_schema(schema), b"[]")
    assert list_reasons({"allOf": [{"$ref": "#/$defs/a"}], "unevaluatedProperties": False, "$defs": {"a": {}}}) == []


def test_a_valid_document_of_a_recursive_union_takes_linear_time() -> None:
    reference = {"$ref": "#/$defs/a"}
    branch = {"type": "array", "items": reference}
    schema = {**reference, "$defs": {"a": {"anyOf": [branch, {**branch, "maxItems": 5}, {"type": "integer"}]}}}
    document: Any = "no integer"
    for _ in range(90):
        document = [document]
    began = thread_time()
    assert not compile_schema(schema).is_valid(document)
    assert thread_time() - began < 3


def test_many_patterns_are_refused_by_their_sum() -> None:
    schema = {"properties": {f"p{each}": {"pattern": rf"^\p{{L}}+{each}$"} for each in range(20)}}
    assert "the limit is 20,000" in list_reasons(schema)[0]


@pytest.mark.parametrize("schema", [{"pattern": "(?=a)b"}, {"patternProperties": {"(?=a)b": {}}}])
def test_a_pattern_that_cannot_be_matched_in_linear_time_is_refused(schema: dict[str, Any]) -> None:
    assert "look-around" in list_reasons(schema)[0]


def test_the_cost_of_a_document_grows_with_patterns_and_with_values() -> None:
    plain, costly = measure_schema({"type": "object"}), measure_schema({"pattern": "[ab]*a[ab]{900}c"})
    assert plain.estimate_steps(size=1_000_000, values=10, fractions=10, exponents=10) < 1_000
    assert costly.estimate_steps(size=1_000_000, values=1, fractions=0, exponents=0) > 100_000_000


@pytest.mark.parametrize(
    ("schema", "item", "count", "is_costly"),
    [
        ({"enum": [each + 0.5 for each in range(200)]}, b"199.5", 400, True),
        ({"enum": [each + 0.5 for each in range(20)]}, b"19.5", 100, False),
        ({"enum": [[each] for each in range(2_000)]}, b"[1999]", 400, True),
        ({"enum": [str(each) for each in range(2_000)]}, b'"1999"', 2_000, False),
        ({"multipleOf": 1e-300}, b"7", 2_000, True),
        ({"minimum": 0.5}, b"1e-300", 2_000, True),
        ({"minimum": 0}, b"7.5", 2_000, False),
        ({"allOf": [{"format": "uri-template"}] * 500}, b'"' + b"a" * 100_000 + b'"', 1, True),
    ],
)
def test_numbers_constants_and_formats_make_a_document_costly(
    schema: dict[str, Any], item: bytes, count: int, is_costly: bool
) -> None:
    document = b"[" + b",".join([item] * count) + b"]"
    assert is_costly_document(measure_schema({"items": schema}), document) is is_costly


def test_a_hundred_thousand_errors_are_not_all_described() -> None:
    validator = compile_schema({"items": {"type": "string"}})
    began = thread_time()
    assert len(list(iterate_errors(validator, list(range(100_000))))) == 1
    assert thread_time() - began < 3
    assert len(list(iterate_errors(validator, [1, 2, 3]))) == 3
