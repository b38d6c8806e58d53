"""Our tools as MCP clients are shown them: names without dots, our own word on what they do, and what they answer.

A call may have to wait for people or for its turn, or be refused, whatever its tool; so what a tool declares to answer
is a union of its own result, the form that waiting has, and the form of a failure: many clients hold results that are
errors to the schema too, and would show their model a complaint about it in place of the reason. Rendered once per
version of a tool. Above: `listing.py`, `results.py`. Below: the contract.
"""

from typing import Any, Final

from deputize.catalog.importers.server_schemas import STRUCTURED, moved
from deputize.catalog.schemas import pointer, walk
from deputize.catalog.snapshot import ToolVersion
from deputize.core.contract import Contract, Effects, LifecycleState, MutationClass, Schema, Upstream, outward
from deputize.core.servers import method_of

KEY_ARGUMENT: Final = "idempotency_key"
_KEY_SCHEMA: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "pattern": r"^[\x21-\x7e]+$",
    "description": (
        "Names this one action, so that it happens once: make up a new one for each new action, and give the same one "
        "again only to repeat a call whose answer was lost."
    ),
}
WAITING: Final = ("awaiting_approval", "queued", "running", "partial_result", "yielded")
PENDING: Final[Schema] = {
    "type": "object",
    "description": "The call is not at its end yet; calls_get tells what became of it.",
    "properties": {
        "status": {"type": "string", "enum": list(WAITING)},
        "call_id": {"type": "string"},
        "approval_url": {"type": ["string", "null"]},
        "retry_after_ms": {"type": "integer"},
        "message": {"type": "string"},
    },
    "required": ["status", "call_id", "retry_after_ms"],
}
FAILED: Final[Schema] = {
    "type": "object",
    "description": "The call failed or was refused: what went wrong, and what to do next.",
    "properties": {"status": {"type": "string"}, "call_id": {"type": "string"}, "error": {"type": "object"}},
    "required": ["status", "call_id", "error"],
}
_DEFS: Final = "#/$defs/"


def tool_shown(found: ToolVersion, *, modern: bool) -> dict[str, Any]:
    contract = found.contract
    output = output_shown(contract, modern=modern)
    return {
        "name": outward(contract.full_name),
        **({"title": contract.title} if contract.title else {}),
        "description": _described(found),
        "inputSchema": input_shown(contract, found.tool.model_schema),
        **({} if output is None else {"outputSchema": output}),
        "annotations": annotations(contract),
    }


def annotations(contract: Contract) -> dict[str, Any]:
    """From what was declared here; what a server says of its own tools counts for nothing."""
    reaches_out = (
        contract.handler.driver == "mcp" or contract.external_service is not None or contract.network.allowed_domains
    )
    return {
        **({"title": contract.title} if contract.title else {}),
        "readOnlyHint": contract.effects is Effects.READ,
        "destructiveHint": contract.effects is Effects.DESTRUCTIVE,
        "idempotentHint": contract.effects is Effects.READ or contract.idempotency.upstream is not Upstream.CANNOT,
        "openWorldHint": bool(reaches_out),
    }


def is_tool_of_server(contract: Contract) -> bool:
    """Whether its results are a server's content blocks. Other methods of servers answer in their own form."""
    handler = contract.handler
    return handler.driver == "mcp" and method_of(handler.driver, handler.target) is None


def takes_key(contract: Contract) -> bool:
    """Whether the key can be given as an argument of ours: where a call is refused without one, and most clients leave
    models no other place for it.
    """
    return (
        contract.mutation_class is MutationClass.WRITE_IRREVERSIBLE
        and contract.idempotency.key_argument is None
        and KEY_ARGUMENT not in contract.input_schema.get("properties", {})
    )


def input_shown(contract: Contract, schema: Schema) -> Schema:
    shown = {"type": "object", **schema}
    if takes_key(contract):
        shown["properties"] = {**shown.get("properties", {}), KEY_ARGUMENT: _KEY_SCHEMA}
    return shown


def output_shown(contract: Contract, *, modern: bool) -> Schema | None:
    """What `structuredContent` holds; None where nothing can be promised about it."""
    if is_tool_of_server(contract):
        own = _structured(contract)
        if own is None or (not modern and own.get("type") != "object"):
            return None
    else:
        own = contract.output_schema
        if not is_object(own):
            own = {"type": "object", "properties": {"result": own}, "required": ["result"]}
    return _union(own, contract.output_schema)


def is_object(schema: Schema) -> bool:
    """Whether every result is an object, and so needs no wrapping."""
    return schema.get("type") == "object"


def _structured(contract: Contract) -> Schema | None:
    """The part of a server's answer that its own schema speaks of."""
    schema = contract.output_schema
    if "structured" not in schema.get("required", ()):
        return None
    found = schema.get("properties", {}).get("structured")
    return moved(found, pointer(STRUCTURED), "") if isinstance(found, dict) else None


def _union(own: Schema, whole: Schema) -> Schema | None:
    """References lead from the root, so definitions go there; one that leads elsewhere would lead nowhere."""
    references = [node["$ref"] for _, node in walk(own) if "$ref" in node]
    if any(not str(each).startswith(_DEFS) for each in references):
        return None
    defined = {**whole.get("$defs", {}), **own.get("$defs", {})} if references else {}
    inner = {name: value for name, value in own.items() if name not in ("$defs", "$schema")}
    root = {"type": "object"} if is_object(own) else {}
    return {**root, "anyOf": [inner, PENDING, FAILED], **({"$defs": defined} if defined else {})}


def _described(found: ToolVersion) -> str:
    contract = found.contract
    if found.state is not LifecycleState.DEPRECATED:
        return contract.description
    instead = f" Use {outward(contract.life.replacement)} instead." if contract.life.replacement else ""
    return f"{contract.description}\n\nDeprecated.{instead}"
