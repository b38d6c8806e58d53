"""Test that references to an `$anchor` are resolved if it is unique, and rejected otherwise."""

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.catalog.importers.server_schemas import convert_input_schema, convert_output_schema
from deputize.catalog.schema_rules import check_schema

LINE = {"$anchor": "line", "type": "object", "properties": {"next": {"$ref": "#line"}, "n": {"type": "integer"}}}
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from(["next", "n", "first", "rest"]), inner, max_size=3),
    max_leaves=6,
)


def make_schema(**more: Any) -> dict[str, Any]:
    properties = {"first": {"$ref": "#line"}, "rest": {"$ref": "#/$defs/Line"}}
    return {"type": "object", "properties": properties, "$defs": {"Line": LINE}, **more}


def find_schema_errors(schema: dict[str, Any]) -> list[str]:
    return [each.path for each in check_schema("input_schema", schema)]


def test_a_reference_by_name_is_written_as_the_way_and_the_name_stays() -> None:
    taken = convert_input_schema(make_schema()).schema
    assert taken["properties"]["first"] == {"$ref": "#/$defs/Line"}
    assert taken["$defs"]["Line"]["properties"]["next"] == {"$ref": "#/$defs/Line"}
    assert taken["$defs"]["Line"]["$anchor"] == "line"
    assert find_schema_errors(taken) == []


def test_where_a_result_is_enveloped_the_way_leads_there() -> None:
    taken = convert_output_schema(make_schema()).schema
    assert taken["properties"]["structured"]["properties"]["first"] == {"$ref": "#/properties/structured/$defs/Line"}
    assert find_schema_errors(taken) == []


@given(VALUES)
def test_both_spellings_hold_for_the_same_values(value: Any) -> None:
    said = make_schema()
    open_line = {**LINE, "additionalProperties": True}
    said = {**said, "additionalProperties": True, "$defs": {"Line": open_line}}
    meant, taken = (jsonschema_rs.Draft202012Validator(each) for each in (said, convert_input_schema(said).schema))
    assert meant.is_valid(value) == taken.is_valid(value)


@pytest.mark.parametrize(
    "said",
    [
        make_schema(**{"$defs": {"Line": LINE, "Other": {"$anchor": "line", "type": "string"}}}),
        make_schema(**{"$defs": {"Line": LINE, "Other": {"$dynamicAnchor": "line", "type": "string"}}}),
        make_schema(**{"$defs": {"Line": {"$id": "https://else.example/", **LINE}}}),
        make_schema(**{"$defs": {"A line": LINE}}),
        make_schema(**{"$defs": {"Line": {"type": "object"}}}),
        make_schema(**{"$schema": "http://json-schema.org/draft-07/schema#"}),
    ],
    ids=["twice", "dynamic", "under an address", "a way that needs escaping", "nowhere", "before there were names"],
)
def test_a_name_that_may_mean_another_place_is_not_admitted(said: dict[str, Any]) -> None:
    taken = convert_input_schema(said).schema
    assert taken["properties"]["first"]["$ref"] == "#line"
    assert any(each.endswith("/properties/first/$ref") for each in find_schema_errors(taken))
