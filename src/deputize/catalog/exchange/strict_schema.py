"""Decide whether a schema of arguments fits the strict mode of OpenAI's APIs, which guarantees valid arguments.

Strict mode knows a part of JSON Schema: every object is closed and requires all of its properties. The numbers here are
the oldest and smallest published limits, so that every model accepts the definition.
"""

from typing import Any, Final

from deputize.catalog.schemas import walk_schema
from deputize.core.contract.contract import Schema

# Hints that strict mode rejects and that no validation needs.
STRICT_DROPPED_KEYWORDS: Final = frozenset({"examples", "$schema", "$comment"})
_KEYWORDS: Final = frozenset(
    {"type", "title", "description", "properties", "required", "additionalProperties", "items", "enum", "const",
     "anyOf", "$ref", "$defs", "pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum",
     "exclusiveMaximum", "minItems", "maxItems"}
)  # fmt: skip
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)  # fmt: skip
_MAX_PROPERTIES: Final = 100
_MAX_LEVELS: Final = 5
_MAX_ENUM_VALUES: Final = 500


def is_strict_schema(schema: Schema) -> bool:
    """Tell whether strict mode accepts a schema and means the same by it."""
    if schema.get("type") != "object" or "anyOf" in schema:
        return False
    property_count = enum_count = 0
    for path, node in walk_schema(schema):
        property_count += len(_get_properties(node))
        enum_count += len(node.get("enum", ()))
        levels = sum(step in ("properties", "items") for step in path)
        if levels >= _MAX_LEVELS or not _is_strict_node(node):
            return False
    return property_count <= _MAX_PROPERTIES and enum_count <= _MAX_ENUM_VALUES


def _is_strict_node(node: Schema) -> bool:
    if not node.keys() <= _KEYWORDS or node.get("format", "date") not in _FORMATS:
        return False
    types = node.get("type")
    if "object" not in (types if isinstance(types, list) else [types]) and "properties" not in node:
        return True
    is_closed = node.get("additionalProperties") is False
    return is_closed and set(node.get("required", ())) == set(_get_properties(node))


def _get_properties(node: Schema) -> dict[str, Any]:
    properties = node.get("properties")
    return properties if isinstance(properties, dict) else {}
