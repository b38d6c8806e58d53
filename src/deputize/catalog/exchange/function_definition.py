"""Write a contract as the function definition that a model API takes.

A definition tells a model how to call a tool; the gateway checks every call against the contract all the same. So a
definition may be looser than the contract where an API cannot express it, and says so in a warning, and it is never
stricter.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from deputize.catalog.exchange.strict_schema import STRICT_DROPPED_KEYWORDS, is_strict_schema
from deputize.catalog.importers.server_schemas import OWN_KEYWORDS
from deputize.catalog.schemas import DRAFT, resolve_refs, walk_schema
from deputize.core.contract.contract import Contract, Schema
from deputize.core.contract.export_format import ExportFormat

# OpenAI's APIs refuse longer descriptions.
_MAX_OPENAI_DESCRIPTION: Final = 1024
# Keywords that the APIs refuse at the top level of the arguments.
_ROOT_COMBINATIONS: Final = ("oneOf", "anyOf", "allOf", "not", "enum", "if", "then", "else")


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionDefinition:
    """A tool as a model API takes it; `warnings` say where the definition is looser or shorter than the contract."""

    definition: dict[str, Any]
    warnings: tuple[str, ...] = ()


def build_function_definition(contract: Contract, model_schema: Schema, form: ExportFormat) -> FunctionDefinition:
    """Build the definition of a tool for one API. `model_schema` has no internal properties."""
    return _BUILDERS[form](contract, _clean_schema(model_schema, OWN_KEYWORDS))


def _build_openai_function(contract: Contract, schema: Schema) -> FunctionDefinition:
    parameters, warnings = _simplify_root(schema)
    strict_parameters = _clean_schema(parameters, STRICT_DROPPED_KEYWORDS)
    is_strict = not warnings and is_strict_schema(strict_parameters)
    description = contract.description
    if len(description) > _MAX_OPENAI_DESCRIPTION:
        description = description[: _MAX_OPENAI_DESCRIPTION - 1] + "…"
        warnings += (
            f"the description is cut to {_MAX_OPENAI_DESCRIPTION} characters, the longest that the API accepts",
        )
    definition = {
        "name": contract.outward_name,
        "description": description,
        "parameters": strict_parameters if is_strict else parameters,
        "strict": is_strict,
    }
    return FunctionDefinition(definition=definition, warnings=warnings)


def _build_openai_chat(contract: Contract, schema: Schema) -> FunctionDefinition:
    function = _build_openai_function(contract, schema)
    return FunctionDefinition(
        definition={"type": "function", "function": function.definition}, warnings=function.warnings
    )


def _build_openai_responses(contract: Contract, schema: Schema) -> FunctionDefinition:
    function = _build_openai_function(contract, schema)
    return FunctionDefinition(definition={"type": "function", **function.definition}, warnings=function.warnings)


def _build_anthropic(contract: Contract, schema: Schema) -> FunctionDefinition:
    input_schema, warnings = _simplify_root(schema)
    definition = {"name": contract.outward_name, "description": contract.description, "input_schema": input_schema}
    return FunctionDefinition(definition=definition, warnings=warnings)


def _build_gemini(contract: Contract, schema: Schema) -> FunctionDefinition:
    parameters, warnings = _simplify_root(schema)
    definition = {
        "name": contract.outward_name,
        "description": contract.description,
        "parametersJsonSchema": parameters,
    }
    return FunctionDefinition(definition=definition, warnings=warnings)


def _build_json_schema(contract: Contract, schema: Schema) -> FunctionDefinition:
    title = {"title": contract.outward_name, "description": contract.description}
    return FunctionDefinition(definition={"$schema": DRAFT, **title, **schema})


_BUILDERS: Final[Mapping[ExportFormat, Callable[[Contract, Schema], FunctionDefinition]]] = {
    ExportFormat.OPENAI_CHAT: _build_openai_chat,
    ExportFormat.OPENAI_RESPONSES: _build_openai_responses,
    ExportFormat.ANTHROPIC: _build_anthropic,
    ExportFormat.GEMINI: _build_gemini,
    ExportFormat.JSON_SCHEMA: _build_json_schema,
}


def _simplify_root(schema: Schema) -> tuple[Schema, tuple[str, ...]]:
    """Make the root a plain object, as the APIs require, and say what had to be left out."""
    root_schema = resolve_refs(schema, schema)
    root: Schema = dict(root_schema) if isinstance(root_schema, dict) else {}
    if "$defs" in schema:
        root.setdefault("$defs", schema["$defs"])
    dropped_keywords = [keyword for keyword in _ROOT_COMBINATIONS if root.pop(keyword, None) is not None]
    root["type"] = "object"
    root.setdefault("properties", {})
    if not dropped_keywords:
        return root, ()
    return root, (
        f"the API does not accept {', '.join(dropped_keywords)} at the top level of the arguments, so the "
        "model is not told of it; the gateway still refuses arguments that violate it",
    )


def _clean_schema(schema: Schema, keywords: frozenset[str]) -> Schema:
    """Copy a schema without some keywords; properties that have such a name stay."""
    clean: Schema = orjson.loads(orjson.dumps(schema))
    for _, node in walk_schema(clean):
        for keyword in keywords.intersection(node):
            del node[keyword]
    return clean
