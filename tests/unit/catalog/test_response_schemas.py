"""Which fields of a response are kept, and the schema that is left of its result."""

from typing import Any

import pytest

from deputize.catalog.response_schemas import MissingField, narrow_result_schema
from deputize.core.contract.response_fields import build_field_tree, project_value

pytestmark = pytest.mark.requirement("EXE-1")
PET = {
    "type": "object",
    "required": ["id", "owner"],
    "properties": {"id": {"type": "string"}, "owner": {"$ref": "#/$defs/Owner"}, "a/b": {"type": "integer"}},
}
DEFINITIONS = {
    "Pet": PET,
    "Owner": {"type": ["object", "null"], "properties": {"name": {"type": "string"}, "card": {"$ref": "#/$defs/Card"}}},
    "Card": {"type": "string"},
    "Page": {"allOf": [{"properties": {"next": {"type": "string"}}, "required": ["next"]}, {"$ref": "#/$defs/Items"}]},
    "Items": {"properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/Pet"}}}},
}


def narrow(body: Any, *pointers: str) -> Any:
    schema = {"type": "object", "properties": {"status": {}, "text": {}, "body": body}, "$defs": DEFINITIONS}
    return narrow_result_schema(schema, pointers)


def test_the_schema_has_only_what_is_kept() -> None:
    schema = narrow({"$ref": "#/$defs/Page"}, "/items/*/id", "/items/*/owner/name", "/items/*/a~1b", "/next")
    owner = {"type": ["object", "null"], "properties": {"name": {"type": "string"}}, "additionalProperties": False}
    item = {
        "type": "object",
        "properties": {"a/b": {"type": "integer"}, "id": {"type": "string"}, "owner": owner},
        "additionalProperties": False,
        "required": ["id", "owner"],
    }
    body = schema["properties"].pop("body")
    assert body["properties"] == {"items": {"type": "array", "items": item}, "next": {"type": "string"}}
    assert body["required"] == ["next"]
    assert schema == {"type": "object", "properties": {"status": {}}}


def test_definitions_stay_where_they_are_still_needed() -> None:
    assert narrow({"$ref": "#/$defs/Pet"}, "/owner")["$defs"].keys() == {"Owner", "Card"}


def test_a_field_of_one_alternative_is_not_required() -> None:
    schema = narrow({"oneOf": [{"$ref": "#/$defs/Pet"}, {"type": "object", "properties": {}}]}, "/id")
    assert "required" not in schema["properties"]["body"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [({}, "/id"), ({"$ref": "#/$defs/Pet"}, "/name"), ({"$ref": "#/$defs/Pet"}, "/id/x"),
     ({"$ref": "#/$defs/Items"}, "/items/id"), ({"$ref": "#/$defs/Pet"}, "/*"), (True, "/id"),
     ({"properties": [], "allOf": 7, "required": 7}, "/id")],
)  # fmt: skip
def test_a_field_that_the_schema_does_not_declare_is_named(body: Any, pointer: str) -> None:
    with pytest.raises(MissingField, match=pointer.replace("*", r"\*")):
        narrow(body, pointer)


def test_a_value_keeps_the_named_fields() -> None:
    tree = build_field_tree(["/items/*/id", "/items/*/a~1b", "/owner/name", "/owner"])
    value = {"items": [{"id": 1, "a/b": 2, "x": 3}, None, {}], "owner": {"name": "Ana", "card": "1"}, "y": 4}
    assert project_value(value, tree) == {
        "items": [{"a/b": 2, "id": 1}, None, {}], "owner": {"name": "Ana", "card": "1"},
    }  # fmt: skip
    for other in ("text", 7, ["x"]):
        with pytest.raises(ValueError, match="there is no"):
            project_value(other, tree)
