"""Names inside of schemas: a reference by the name of an `$anchor` means the place it names, or is not admitted."""

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.catalog.importers.server_schemas import input_of, output_of
from deputize.catalog.strictness import schema_reasons

LINE = {"$anchor": "line", "type": "object", "properties": {"next": {"$ref": "#line"}, "n": {"type": "integer"}}}
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from(["next", "n", "first", "rest"]), inner, max_size=3),
    max_leaves=6,
)


def schema(**more: Any) -> dict[str, Any]:
    properties = {"first": {"$ref": "#line"}, "rest": {"$ref": "#/$defs/Line"}}
    return {"type": "object", "properties": properties, "$defs": {"Line": LINE}, **more}


def faults(taken: dict[str, Any]) -> list[str]:
    return [each.path for each in schema_reasons("input_schema", taken)]


def test_a_reference_by_name_is_written_as_the_way_and_the_name_stays() -> None:
    taken = input_of(schema()).schema
    assert taken["properties"]["first"] == {"$ref": "#/$defs/Line"}
    assert taken["$defs"]["Line"]["properties"]["next"] == {"$ref": "#/$defs/Line"}
    assert taken["$defs"]["Line"]["$anchor"] == "line"
    assert faults(taken) == []


def test_where_a_result_is_enveloped_the_way_leads_there() -> None:
    taken = output_of(schema()).schema
    assert taken["properties"]["structured"]["properties"]["first"] == {"$ref": "#/properties/structured/$defs/Line"}
    assert faults(taken) == []


@given(VALUES)
def test_both_spellings_hold_for_the_same_values(value: Any) -> None:
    said = schema()
    open_line = {**LINE, "additionalProperties": True}
    said = {**said, "additionalProperties": True, "$defs": {"Line": open_line}}
    meant, taken = (jsonschema_rs.Draft202012Validator(each) for each in (said, input_of(said).schema))
    assert meant.is_valid(value) == taken.is_valid(value)


@pytest.mark.parametrize(
    "said",
    [
        schema(**{"$defs": {"Line": LINE, "Other": {"$anchor": "line", "type": "string"}}}),
        schema(**{"$defs": {"Line": LINE, "Other": {"$dynamicAnchor": "line", "type": "string"}}}),
        schema(**{"$defs": {"Line": {"$id": "https://else.example/", **LINE}}}),
        schema(**{"$defs": {"A line": LINE}}),
        schema(**{"$defs": {"Line": {"type": "object"}}}),
        schema(**{"$schema": "http://json-schema.org/draft-07/schema#"}),
    ],
    ids=["twice", "dynamic", "under an address", "a way that needs escaping", "nowhere", "before there were names"],
)
def test_a_name_that_may_mean_another_place_is_not_admitted(said: dict[str, Any]) -> None:
    taken = input_of(said).schema
    assert taken["properties"]["first"]["$ref"] == "#line"
    assert any(each.endswith("/properties/first/$ref") for each in faults(taken))
