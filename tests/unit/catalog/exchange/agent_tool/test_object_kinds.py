"""The JSON Schemas of the standard's objects: valid, complete, and open to unknown fields."""

from importlib.resources import files
from typing import Any

import jsonschema_rs
import pytest

from deputize.catalog.exchange.agent_tool.object_kinds import ObjectKind, find_object_problems, load_object_schema
from deputize.catalog.schemas import DRAFT
from deputize.core.contract.contract import LifecycleState, ToolKind
from deputize.core.errors import list_problem_types
from deputize.core.states import State, ToolEvent


@pytest.mark.requirement("CON-3")
def test_each_of_the_19_objects_has_a_schema_of_its_own() -> None:
    folder = files("deputize.catalog.exchange.agent_tool").joinpath("schemas")
    assert {each.name for each in folder.iterdir()} == {f"{kind}.json" for kind in ObjectKind}
    assert len(ObjectKind) == 19


@pytest.mark.parametrize("kind", ObjectKind)
def test_a_schema_is_valid_and_describes_each_field(kind: ObjectKind) -> None:
    schema = load_object_schema(kind)
    jsonschema_rs.meta.validate(schema)
    assert schema["$schema"] == DRAFT
    assert schema["title"] == kind
    assert "additionalProperties" not in schema
    assert all(part.get("description") for part in schema["properties"].values())
    assert set(schema["required"]) <= set(schema["properties"])


def test_the_words_of_the_schemas_are_those_of_this_gateway() -> None:
    declaration = load_object_schema(ObjectKind.TOOL_DECLARATION)["properties"]
    assert declaration["tool_kind"]["enum"] == [each.value for each in ToolKind]
    assert declaration["lifecycle"]["enum"] == [each.value for each in LifecycleState]
    for kind in (ObjectKind.TOOL_INVOCATION, ObjectKind.TOOL_RESULT, ObjectKind.TOOL_EVENT):
        assert set(load_object_schema(kind)["properties"]["status"]["enum"]) == {each.value for each in State}
    events = load_object_schema(ObjectKind.TOOL_EVENT)["properties"]["event_class"]["enum"]
    assert set(events) == {each.value for each in ToolEvent}
    error_classes = load_object_schema(ObjectKind.TOOL_ERROR)["properties"]["error_class"]["enum"]
    assert len(error_classes) == 22
    assert {each.spec.error_class for each in list_problem_types()} <= set(error_classes)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"lifecycle": "asleep"}, "/tool_declaration/lifecycle"),
        ({"schema_version": "0.1.0"}, "/tool_declaration/schema_version"),
        ({"input_contract": {"strict": "yes"}}, "/tool_declaration/input_contract/strict"),
        ({"external_mappings": [{"server_id": 7}]}, "/tool_declaration/external_mappings/0/server_id"),
        ({"vendor": 2**60}, "/tool_declaration"),
    ],
    ids=["state", "version", "part", "mapping", "number"],
)
def test_an_invalid_object_is_explained_at_its_path_without_its_value(change: dict[str, Any], path: str) -> None:
    valid = {
        "schema_version": "0.2.0",
        "tool_id": "a",
        "namespace": "a",
        "name": "a",
        "description": "A tool.",
        "lifecycle": "available",
        "tool_kind": "custom",
        "unknown": {"kept": True},
    }
    assert find_object_problems(ObjectKind.TOOL_DECLARATION, valid) == []
    problems = find_object_problems(ObjectKind.TOOL_DECLARATION, {**valid, **change})
    assert [each.path for each in problems] == [path]
    assert "asleep" not in problems[0].reason


def test_a_deep_document_is_refused_before_it_is_walked() -> None:
    value: Any = {}
    for _ in range(5000):
        value = {"a": value}
    (problem,) = find_object_problems(ObjectKind.TOOL_NAMESPACE, value)
    assert problem.reason == "is nested deeper than 64 levels"
