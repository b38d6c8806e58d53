"""Build the contracts through which resources, prompts and completions of MCP servers are read.

A server with resources gets one contract `read_resource`, one with prompts `get_prompt`, and one with completions
`complete`. The protocol defines them as read-only. Only pinned resources and prompts can be read
(`core/mcp/resources.py`), and policies can decide by the facts `resource_uri` and `prompt_name`.
"""

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from deputize.catalog.importers.mcp import collect_read_fields, has_matching_glob, is_tool_served
from deputize.catalog.registration_rules import admit_contract
from deputize.core.contract.contract import Contract, Schema, ToolKind
from deputize.core.mcp.servers import (
    COMPLETE,
    GET_PROMPT,
    READ_RESOURCE,
    Definition,
    DefinitionKind,
    parse_item_kind,
    parse_item_name,
)
from deputize.core.mcp.uri_templates import MAX_URI_LENGTH
from deputize.core.settings import McpServerSettings

_NAME_SCHEMA: Final = {"type": "string", "minLength": 1, "maxLength": 128}
_TEXT_MAP_SCHEMA: Final = {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 100}
_OBJECT_LIST_SCHEMA: Final = {"type": "array", "items": {"type": "object"}}
_URI_SCHEMA: Final = {"type": "string", "minLength": 1, "maxLength": MAX_URI_LENGTH}


class _MethodTemplate(NamedTuple):
    name: str
    title: str
    description: str
    input_properties: Schema
    required_inputs: tuple[str, ...]
    output_properties: Schema
    required_output: str
    example: dict[str, Any]


METHODS: Final[dict[str, _MethodTemplate]] = {
    READ_RESOURCE: _MethodTemplate(
        name="read_resource",
        title="Read a resource",
        description="Read one resource of the server {server}, by its URI.",
        input_properties={"uri": {**_URI_SCHEMA, "description": "The resource's URI.", "x-policy": "resource_uri"}},
        required_inputs=("uri",),
        output_properties={"contents": _OBJECT_LIST_SCHEMA},
        required_output="contents",
        example={"uri": "file:///readme.md"},
    ),
    GET_PROMPT: _MethodTemplate(
        name="get_prompt",
        title="Get a prompt",
        description="Get one prompt of the server {server}, with its arguments filled in.",
        input_properties={
            "name": {**_NAME_SCHEMA, "description": "The prompt's name on its server.", "x-policy": "prompt_name"},
            "arguments": {**_TEXT_MAP_SCHEMA, "description": "The prompt's arguments by name, each a string."},
        },
        required_inputs=("name",),
        output_properties={"description": {"type": "string"}, "messages": _OBJECT_LIST_SCHEMA},
        required_output="messages",
        example={"name": "summary"},
    ),
    COMPLETE: _MethodTemplate(
        name="complete",
        title="Complete an argument",
        description="Ask the server {server} for completions of an argument of a prompt or resource template.",
        input_properties={
            "ref": {
                "type": "object",
                "description": "The prompt by its name, or the resource template by its URI template.",
                "properties": {
                    "type": {"type": "string", "enum": ["ref/prompt", "ref/resource"]},
                    "name": _NAME_SCHEMA,
                    "uri": _URI_SCHEMA,
                },
                "required": ["type"],
                "additionalProperties": False,
            },
            "argument": {
                "type": "object",
                "description": "The argument's name and the beginning of its value.",
                "properties": {"name": _NAME_SCHEMA, "value": {"type": "string", "maxLength": 4096}},
                "required": ["name", "value"],
                "additionalProperties": False,
            },
            "context": {
                "type": "object",
                "description": "The values of other arguments so far.",
                "properties": {"arguments": _TEXT_MAP_SCHEMA},
                "additionalProperties": False,
            },
        },
        required_inputs=("ref", "argument"),
        output_properties={"completion": {"type": "object"}},
        required_output="completion",
        example={"ref": {"type": "ref/prompt", "name": "summary"}, "argument": {"name": "city", "value": "Par"}},
    ),
}


def is_item_served(server: McpServerSettings, item: str) -> bool:
    """Tell whether the settings serve this item. Instructions are always included."""
    kind, name = parse_item_kind(item), parse_item_name(item)
    match kind:
        case None:
            return True
        case DefinitionKind.TOOL:
            return is_tool_served(server, name)
        case DefinitionKind.PROMPT:
            return has_matching_glob(server.prompts, name)
        case DefinitionKind.METHOD if name == GET_PROMPT:
            return bool(server.prompts)
        case DefinitionKind.METHOD if name == COMPLETE:
            return bool(server.prompts or server.resources)
        case DefinitionKind.METHOD:
            return name == READ_RESOURCE and bool(server.resources)
        case _:
            return has_matching_glob(server.resources, name)


def choose_method_name(method: str, names_in_use: Collection[str]) -> str:
    """Choose the name of a method's contract; it gets a number if a tool of the server has the name."""
    name, number = METHODS[method].name, 1
    while name in names_in_use:
        number += 1
        name = f"{METHODS[method].name}_{number}"
    return name


def build_method_contract(
    server: McpServerSettings, definition: Definition, *, registered_name: str, version: str
) -> Contract:
    """Build the contract of one method, or raise `ToolNotAdmitted`."""
    template = METHODS[definition.name]
    fields: dict[str, Any] = {
        "namespace": server.name,
        "name": registered_name,
        "version": version,
        "title": template.title,
        "description": template.description.format(server=server.name),
        "kind": ToolKind.MCP_TOOL,
        "handler": {"driver": "mcp", "target": f"{server.name}:{definition.name}", "pin": definition.digest},
        "input_schema": {
            "type": "object",
            "properties": template.input_properties,
            "required": list(template.required_inputs),
            "additionalProperties": False,
        },
        "output_schema": {
            "type": "object",
            "properties": template.output_properties,
            "required": [template.required_output],
        },
        "examples": (template.example,),
        "external_mappings": {"mcp": {"method": definition.name}},
        **collect_read_fields(server, template.name),
    }
    contract = Contract.model_validate(fields)
    admit_contract(contract)
    return contract
