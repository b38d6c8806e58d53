"""Render tools as MCP definitions: names without dots, annotations from the contract, and an output schema.

Any call may wait for approval or in a queue, or be refused. So a tool's output schema is a union of its own result, the
form of a pending call and the form of a failure: many clients validate error results against the schema too, and would
show the model a validation error instead of the reason. Each tool version is rendered once.
"""

from typing import Any, Final

from deputize.core.contract.contract import (
    Contract,
    Effects,
    MutationClass,
    Schema,
    UpstreamIdempotency,
)
from deputize.core.contract.deprecation import format_time
from deputize.core.contract.names import to_outward_name
from deputize.core.mcp.constants import DEPRECATION
from deputize.core.mcp.servers import parse_mcp_method
from deputize.operations.gateway import ToolView, extract_structured_schema, list_references

KEY_ARGUMENT: Final = "idempotency_key"
_KEY_SCHEMA: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "pattern": r"^[\x21-\x7e]+$",
    "description": (
        "Makes this action happen once: choose a new key for each new action, and repeat a key only to repeat a call "
        "whose response was lost."
    ),
}
PENDING_STATES: Final = ("awaiting_approval", "queued", "running", "partial_result", "yielded")
PENDING_SCHEMA: Final[Schema] = {
    "type": "object",
    "description": "The call is pending; poll it with calls_get.",
    "properties": {
        "status": {"type": "string", "enum": list(PENDING_STATES)},
        "call_id": {"type": "string"},
        "approval_url": {"type": ["string", "null"]},
        "retry_after_ms": {"type": "integer"},
        "message": {"type": "string"},
    },
    "required": ["status", "call_id", "retry_after_ms"],
}
FAILURE_SCHEMA: Final[Schema] = {
    "type": "object",
    "description": "The call failed or was refused: what went wrong, and what to do next.",
    "properties": {"status": {"type": "string"}, "call_id": {"type": "string"}, "error": {"type": "object"}},
    "required": ["status", "call_id", "error"],
}
REFERENCE_SCHEMA: Final[Schema] = {
    "type": "object",
    "description": "The result is long or sensitive: a part of it, and how to read on with results_read.",
    "properties": {
        "reference": {"type": ["string", "null"]},
        "level": {"type": "string", "enum": ["L1", "L2", "L3", "L4"]},
        "shape": {"type": "string"},
        "bytes": {"type": "integer"},
        "expires_at": {"type": ["string", "null"]},
        "read_on": {"type": "string"},
        "preview": {},
    },
    "required": ["reference", "level", "shape", "bytes", "expires_at", "read_on", "preview"],
}
_DEFS_PREFIX: Final = "#/$defs/"


def render_tool(tool_version: ToolView, *, modern: bool, is_key_optional: bool = False) -> dict[str, Any]:
    """Render a tool version for `tools/list`. Its idempotency key may be optional while policies observe."""
    contract = tool_version.contract
    output = build_output_schema(contract, modern=modern)
    return {
        "name": to_outward_name(contract.full_name),
        **({"title": contract.title} if contract.title else {}),
        "description": _build_description(tool_version),
        "inputSchema": build_input_schema(contract, tool_version.input_schema, is_key_optional=is_key_optional),
        **({} if output is None else {"outputSchema": output}),
        "annotations": build_annotations(contract),
        **({} if tool_version.deprecation is None else {"_meta": {DEPRECATION: tool_version.deprecation.to_meta()}}),
    }


def build_annotations(contract: Contract) -> dict[str, Any]:
    """Build the annotations from the contract; a server's own annotations are not trusted."""
    return {
        **({"title": contract.title} if contract.title else {}),
        "readOnlyHint": contract.effects is Effects.READ,
        "destructiveHint": contract.effects is Effects.DESTRUCTIVE,
        "idempotentHint": contract.effects is Effects.READ
        or contract.idempotency.upstream is not UpstreamIdempotency.CANNOT,
        "openWorldHint": contract.is_open_world,
    }


def is_tool_of_server(contract: Contract) -> bool:
    """Tell whether a contract's results are content blocks of an MCP server. Other methods have their own form."""
    handler = contract.handler
    return handler.driver == "mcp" and parse_mcp_method(handler.driver, handler.target) is None


def can_take_key(contract: Contract) -> bool:
    """Tell whether the key may be an extra argument: where a call needs one, and models have no other place for it."""
    return (
        contract.mutation_class is MutationClass.WRITE_IRREVERSIBLE
        and contract.idempotency.key_argument is None
        and KEY_ARGUMENT not in contract.input_schema.get("properties", {})
    )


def build_input_schema(contract: Contract, schema: Schema, *, is_key_optional: bool = False) -> Schema:
    """Build the schema of the arguments, with the key if it may be one."""
    input_schema = {"type": "object", **schema}
    if can_take_key(contract):
        input_schema["properties"] = {**input_schema.get("properties", {}), KEY_ARGUMENT: _KEY_SCHEMA}
        if not is_key_optional:
            input_schema["required"] = [*input_schema.get("required", ()), KEY_ARGUMENT]
    return input_schema


def build_output_schema(contract: Contract, *, modern: bool) -> Schema | None:
    """Build the schema of `structuredContent`; None if nothing can be promised about it."""
    if is_tool_of_server(contract):
        own_schema = extract_structured_schema(contract.output_schema)
        if own_schema is None or (not modern and own_schema.get("type") != "object"):
            return None
    else:
        own_schema = contract.output_schema
        if not is_object_schema(own_schema):
            own_schema = {"type": "object", "properties": {"result": own_schema}, "required": ["result"]}
    return _build_union(own_schema, contract.output_schema, has_references=contract.max_inline is not None)


def is_object_schema(schema: Schema) -> bool:
    """Tell whether every result is an object, and so needs no wrapping."""
    return schema.get("type") == "object"


def _build_union(own_schema: Schema, full_schema: Schema, *, has_references: bool) -> Schema | None:
    """Unite the schemas. References start at the root, so definitions move there; None if one leads elsewhere."""
    references = list_references(own_schema)
    if any(not each.startswith(_DEFS_PREFIX) for each in references):
        return None
    definitions = {**full_schema.get("$defs", {}), **own_schema.get("$defs", {})} if references else {}
    inner = {name: value for name, value in own_schema.items() if name not in ("$defs", "$schema")}
    root = {"type": "object"} if is_object_schema(own_schema) else {}
    forms = [inner, *([REFERENCE_SCHEMA] if has_references else []), PENDING_SCHEMA, FAILURE_SCHEMA]
    return {**root, "anyOf": forms, **({"$defs": definitions} if definitions else {})}


def _build_description(tool_version: ToolView) -> str:
    contract = tool_version.contract
    notice = tool_version.deprecation
    if notice is None:
        return contract.description
    until = "" if notice.removal_at is None else f" Calls are refused from {format_time(notice.removal_at)} on."
    instead = f" Use {to_outward_name(notice.successor)} instead." if notice.successor else ""
    return f"{contract.description}\n\nDeprecated.{until}{instead}"
