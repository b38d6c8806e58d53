"""Show interfaces the tools of a caller's surface, read-only: what a list or a call needs, and nothing that runs.

`surface.py` makes these views; `operations/gateway.py` re-exports them to interfaces.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from deputize.catalog.importers.server_schemas import STRUCTURED_PATH, move_schema
from deputize.catalog.schemas import format_pointer, walk_schema
from deputize.catalog.snapshot import ToolVersion
from deputize.core.contract.contract import Contract, LifecycleState, Schema
from deputize.core.contract.deprecation import DeprecationNotice
from deputize.core.mcp.resources import PinnedResources


class ToolView:
    """One version of a tool: its contract, its digest and its state. Everything else is derived when it is read."""

    __slots__ = ("_version", "deprecation", "digest", "state")

    def __init__(self, version: ToolVersion) -> None:
        self._version = version
        self.digest: str = version.digest
        self.state: LifecycleState = version.state
        self.deprecation: DeprecationNotice | None = version.deprecation

    @property
    def contract(self) -> Contract:
        return self._version.contract

    @property
    def input_schema(self) -> Schema:
        """The schema of the arguments that a caller may send: without internal properties."""
        return self._version.tool.model_schema


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerMethodView:
    """A method of an MCP server, such as `resources/read`, that is called through a contract of its own.

    `is_loaded` says whether this caller can use it now. `present_items` is what the server declared when it was last
    probed; None before the first probe.
    """

    server: str
    method: str
    tool: str
    is_loaded: bool
    pins: PinnedResources
    present_items: Mapping[str, str] | None


def extract_structured_schema(schema: Schema) -> Schema | None:
    """Return the schema of a server tool's structured content; None if its results need not have any."""
    if "structured" not in schema.get("required", ()):
        return None
    structured_schema = schema.get("properties", {}).get("structured")
    if not isinstance(structured_schema, dict):
        return None
    return move_schema(structured_schema, format_pointer(STRUCTURED_PATH), "")


def list_references(schema: Schema) -> list[str]:
    """List the `$ref` values in a schema."""
    return [str(node["$ref"]) for _, node in walk_schema(schema) if "$ref" in node]
