"""Map the ids that a tool has in other protocols: a list of objects there, two fields of a contract here."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from deputize.catalog.exchange.agent_tool.field_mapping import Record
from deputize.catalog.exchange.agent_tool.object_kinds import SCHEMA_VERSION
from deputize.core.contract.native_ids import A2aIds, BrowserIds, CommandIds, FunctionCallingIds, McpIds, OpenApiIds
from deputize.core.contract.parts import SparsePart

# Where a contract keeps what a foreign document says beyond it.
FOREIGN_KEY: Final = "agent_tool"
_SOURCES: Final = {"command": "cli"}
# By their names in a contract; a test holds them to its fields.
_ID_PARTS: Final[Mapping[str, type[SparsePart]]] = {
    "mcp": McpIds,
    "openapi": OpenApiIds,
    "function_calling": FunctionCallingIds,
    "a2a": A2aIds,
    "command": CommandIds,
    "browser": BrowserIds,
}
_OWN_NAMES: Final = {source: name for name, source in _SOURCES.items()}


def export_external_mappings(record: Record) -> list[Record]:
    """Write one object for each protocol: the tool's ids in it, and what the source itself said."""
    native_ids: Record = record.get("native_ids") or {}
    declarations = {name: each for name, each in record["external_mappings"].items() if name != FOREIGN_KEY}
    return [
        {
            "schema_version": SCHEMA_VERSION,
            "source": _SOURCES.get(name, name),
            **native_ids.get(name, {}),
            **({"declared": declarations[name]} if name in declarations else {}),
        }
        for name in sorted(native_ids.keys() | declarations.keys())
    ]


def restore_external_mappings(mappings: Any) -> Record:
    """Read the contract fields of such a list. What they cannot hold is left to the foreign fields."""
    native_ids: Record = {}
    declarations: Record = {}
    for each in mappings if isinstance(mappings, list) else ():
        source = each.get("source")
        if not isinstance(source, str) or source == FOREIGN_KEY:
            continue
        name = _OWN_NAMES.get(source, source)
        ids = _read_ids(name, each)
        if ids is not None:
            native_ids[name] = ids
        if "declared" in each:
            declarations[name] = each["declared"]
    return {"external_mappings": declarations, **({"native_ids": native_ids} if native_ids else {})}


def _read_ids(name: str, external_mapping: Record) -> Record | None:
    """Read the ids of one protocol; None if those that identify the tool are missing or invalid."""
    part = _ID_PARTS.get(name)
    if part is None:
        return None
    try:
        ids = part.model_validate({key: value for key, value in external_mapping.items() if key in part.model_fields})
    except ValidationError:
        return None
    return ids.model_dump(mode="json")
