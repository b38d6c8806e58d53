"""Function definitions: what each model API takes, generated from one contract and never stricter than it."""

from typing import Any

import pytest

from deputize.catalog.exchange.function_definition import FunctionDefinition, build_function_definition
from deputize.catalog.schemas import compile_schema, strip_internal
from deputize.core.contract.contract import Schema
from deputize.core.contract.export_format import ExportFormat
from tests.support.contracts import make_contract, make_input_schema

FUNCTION_FORMATS = (
    ExportFormat.OPENAI_CHAT,
    ExportFormat.OPENAI_RESPONSES,
    ExportFormat.ANTHROPIC,
    ExportFormat.GEMINI,
    ExportFormat.JSON_SCHEMA,
)
STRICT_INPUT: Schema = {
    "type": "object",
    "additionalProperties": False,
    "required": ["id", "plan"],
    "properties": {
        "id": {"type": "integer", "description": "Number of the user", "examples": [7]},
        "plan": {"type": "string", "enum": ["free", "pro"], "x-sensitivity": "internal"},
    },
}


def export(form: ExportFormat, input_schema: Schema, **changes: Any) -> FunctionDefinition:
    contract = make_contract(input_schema=input_schema, **changes)
    return build_function_definition(contract, strip_internal(input_schema), form)


def get_parameters(form: ExportFormat, definition: dict[str, Any]) -> Schema:
    """The schema of the arguments, where the API expects it."""
    match form:
        case ExportFormat.OPENAI_CHAT:
            return dict(definition["function"]["parameters"])
        case ExportFormat.OPENAI_RESPONSES:
            return dict(definition["parameters"])
        case ExportFormat.ANTHROPIC:
            return dict(definition["input_schema"])
        case ExportFormat.GEMINI:
            return dict(definition["parametersJsonSchema"])
        case _:
            return definition


@pytest.mark.requirement("CON-3")
def test_each_api_gets_the_form_it_takes() -> None:
    schema = make_input_schema(id={"type": "integer", "description": "Number of the user"})
    shape = {"type": "object", "additionalProperties": False, "properties": schema["properties"]}
    name, description = "crm__get_user", "Look up one user by number."
    function = {"name": name, "description": description, "parameters": shape, "strict": False}
    assert export(ExportFormat.OPENAI_CHAT, schema).definition == {"type": "function", "function": function}
    assert export(ExportFormat.OPENAI_RESPONSES, schema).definition == {"type": "function", **function}
    assert export(ExportFormat.ANTHROPIC, schema).definition == {
        "name": name,
        "description": description,
        "input_schema": shape,
    }
    assert export(ExportFormat.GEMINI, schema).definition == {
        "name": name,
        "description": description,
        "parametersJsonSchema": shape,
    }
    assert export(ExportFormat.JSON_SCHEMA, schema).definition == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        "description": description,
        **shape,
    }


@pytest.mark.parametrize("form", FUNCTION_FORMATS)
def test_internal_properties_and_the_gateways_keywords_are_left_out(form: ExportFormat) -> None:
    schema = make_input_schema(
        id={"type": "integer", "x-policy": True, "x-sensitivity": "pii"},
        tenant={"type": "string", "x-internal": True},
        **{"x-open": {"type": "string", "description": "A property with the name of a keyword"}},
    )
    parameters = get_parameters(form, export(form, schema).definition)
    assert set(parameters["properties"]) == {"id", "x-open"}
    assert parameters["properties"]["id"] == {"type": "integer"}


def test_strict_mode_is_used_where_the_schema_fits_it() -> None:
    definition = export(ExportFormat.OPENAI_RESPONSES, STRICT_INPUT).definition
    assert definition["strict"] is True
    assert definition["parameters"]["properties"]["id"] == {"type": "integer", "description": "Number of the user"}


@pytest.mark.parametrize(
    "change",
    [
        {"required": ["id"]},
        {"additionalProperties": True},
        {"properties": {**STRICT_INPUT["properties"], "plan": {"type": "string", "minLength": 1}}},
        {"properties": {**STRICT_INPUT["properties"], "plan": {"type": "string", "format": "uri"}}},
        {"properties": {**STRICT_INPUT["properties"], "plan": {"type": "object", "additionalProperties": {}}}},
        {"properties": {"id": {"type": "integer"}, "plan": {"$ref": "#/$defs/plan"}}, "$defs": {"plan": {"not": {}}}},
    ],
    ids=["optional", "open", "min-length", "format", "map", "definition"],
)
def test_strict_mode_is_off_where_it_would_change_the_meaning(change: Schema) -> None:
    definition = export(ExportFormat.OPENAI_CHAT, {**STRICT_INPUT, **change}).definition["function"]
    assert definition["strict"] is False
    assert definition["parameters"]["properties"]["id"].get("examples") in ([7], None)


@pytest.mark.parametrize("form", FUNCTION_FORMATS)
def test_a_definition_is_never_stricter_than_the_contract(form: ExportFormat) -> None:
    schema: Schema = {
        "$ref": "#/$defs/order",
        "$defs": {
            "order": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"id": {"type": "integer"}, "email": {"$ref": "#/$defs/email"}},
                "oneOf": [{"required": ["id"]}, {"required": ["email"]}],
            },
            "email": {"type": "string", "format": "email"},
        },
    }
    export_of_schema = export(form, schema)
    validator = compile_schema(get_parameters(form, export_of_schema.definition))
    contract_validator = compile_schema(schema)
    for arguments in ({"id": 7}, {"email": "a@example.org"}, {}, {"id": "x"}, {"other": 1}):
        assert validator.is_valid(arguments) or not contract_validator.is_valid(arguments), arguments
    is_looser = validator.is_valid({})
    assert bool(export_of_schema.warnings) == is_looser
    assert is_looser or form is ExportFormat.JSON_SCHEMA


def test_a_long_description_is_cut_for_openai_and_the_cut_is_announced() -> None:
    contract_text = "Long enough. " * 100
    short = export(ExportFormat.OPENAI_CHAT, STRICT_INPUT, description=contract_text)
    assert len(short.definition["function"]["description"]) == 1024
    assert short.warnings == ("the description is cut to 1024 characters, the longest that the API accepts",)
    assert short.definition["function"]["strict"] is True
    whole = export(ExportFormat.ANTHROPIC, STRICT_INPUT, description=contract_text)
    assert (whole.definition["description"], whole.warnings) == (contract_text, ())


def test_a_tool_without_arguments_still_has_an_object_schema() -> None:
    definition = export(ExportFormat.ANTHROPIC, {"type": "object", "additionalProperties": False}).definition
    assert definition["input_schema"] == {"type": "object", "additionalProperties": False, "properties": {}}
