"""Render the reference of the tool standard's objects from their JSON Schemas and from the mapping of contracts."""

from collections.abc import Iterator
from typing import Any

from deputize.catalog.exchange.agent_tool.contract_mapping import HOME_MAPPINGS
from deputize.catalog.exchange.agent_tool.object_kinds import ObjectKind, load_object_schema

INTRODUCTION = (
    "A tool is exported as objects of Agent Tool 0.2.0 and read from them: "
    "[Export and import tools](../how-to/export-and-import-tools.md) says how, "
    "[Tools and contracts](../explanation/tools.md#documents-of-others) why. These are our JSON "
    "Schemas of the objects (JSON Schema 2020-12); they are in the package, under "
    "`deputize/catalog/exchange/agent_tool/schemas/`. Unknown fields are allowed in every object, and kept. Fields "
    "that are not of the standard are marked with *."
)
# Fields of ours in the standard's objects, beyond those that it names.
_OWN_FIELDS = {
    ObjectKind.TOOL_DECLARATION: {"version", "tags", "publication"},
    ObjectKind.TOOL_SURFACE: {"next_after"},
    ObjectKind.TOOL_INPUT_CONTRACT: {"recipient_argument"},
    ObjectKind.TOOL_OUTPUT_CONTRACT: {"error_schema", "predicates", "verifies", "labels"},
    ObjectKind.TOOL_PERMISSION_DECISION: {"approval"},
    ObjectKind.TOOL_INVOCATION: {"input_mutations", "mutation_class", "error_ref", "tool_ref"},
    ObjectKind.DEFERRED_TOOL_REF: {"version"},
    ObjectKind.TOOL_PROGRESS: {"partial_result", "redactions"},
    ObjectKind.TOOL_RESULT: {"provenance", "pagination", "execution", "warnings", "context", "error"},
    ObjectKind.TOOL_ERROR: {"number", "slug", "advice", "details", "telemetry_refs"},
    ObjectKind.TOOL_EXTERNAL_MAPPING: {"source", "declared"},
}


def render_objects() -> Iterator[str]:
    for kind in ObjectKind:
        schema = load_object_schema(kind)
        yield from (
            "",
            f"## {kind}",
            "",
            schema["description"].removesuffix(" Unknown fields are allowed and kept."),
            "",
        )
        yield from ("| field | type | what it is |", "|---|---|---|")
        for name, part in schema["properties"].items():
            mark = "\\*" if name in _OWN_FIELDS.get(kind, ()) else ""
            is_required = ", required" if name in schema["required"] else ""
            yield f"| `{name}`{mark} | {_format_type(part)}{is_required} | {part['description']} |"
    yield from ("", "## Where the fields of a contract are", "")
    yield from ("| field of a contract | object | field |", "|---|---|---|")
    homes = [
        (each.ours, str(object_mapping.kind), each.theirs)
        for object_mapping in HOME_MAPPINGS
        for each in object_mapping.fields
        if each.ours != "lifecycle"
    ]
    ids = [(name, str(ObjectKind.TOOL_EXTERNAL_MAPPING), "") for name in ("external_mappings", "native_ids")]
    for ours, kind_name, theirs in sorted([*homes, *ids]):
        yield f"| `{ours}` | {kind_name} | {f'`{theirs}`' if theirs else 'one object for each protocol'} |"


def _format_type(part: dict[str, Any]) -> str:
    if "$ref" in part:
        return str(part["$ref"]).rpartition(":")[2]
    if "const" in part:
        return f"`{part['const']}`"
    if "enum" in part:
        return ", ".join(f"`{each}`" for each in part["enum"] if each is not None)
    types = part.get("type", "any")
    if types == "array" and "$ref" in part.get("items", {}):
        return f"list of {_format_type(part['items'])}"
    return " or ".join(types) if isinstance(types, list) else str(types)
