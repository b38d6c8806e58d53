"""Normalize a server's definition of a tool, so that pins compare its meaning and not its formatting.

Only `_meta` is left out, which is for other clients. Parts that have no order in JSON or JSON Schema are sorted, so
that equal definitions have equal digests. Every other difference changes the digest.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from deputize.core.canonical import NotCanonical, canonicalize, compute_digest

_META_FIELDS = frozenset({"_meta"})
_SCHEMA_FIELDS = frozenset({"inputSchema", "outputSchema"})
# Deeper parts are not sorted: no admitted schema is this deep, and a hostile server could make sorting slow.
MAX_SORT_DEPTH = 64
_MAX_SAFE_INTEGER = 2**53 - 1
_ESCAPE_MARK = "\0"


class Shape(Enum):
    """The kind of a part of a definition, which says whether its own parts have an order."""

    TOOL = auto()
    SCHEMA = auto()
    # Lists without order: of values, and of schemas.
    SET = auto()
    SET_OF_SCHEMAS = auto()
    # Objects by name: of schemas, and of schemas or sets of names.
    SCHEMAS = auto()
    SETS = auto()
    # Everything else: its lists have an order.
    VALUE = auto()


_SHAPE_BY_KEYWORD = {
    **dict.fromkeys(("required", "type", "enum"), Shape.SET),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), Shape.SET_OF_SCHEMAS),
    **dict.fromkeys(("dependentRequired", "dependencies"), Shape.SETS),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"), Shape.SCHEMAS),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "propertyNames", "contentSchema"), Shape.SCHEMA),
    **dict.fromkeys(("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"), Shape.SCHEMA),
    **dict.fromkeys(("not", "if", "then", "else"), Shape.SCHEMA),
}
UNORDERED_SHAPES = frozenset({Shape.SET, Shape.SET_OF_SCHEMAS})


def strip_meta(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Remove `_meta`, which is for clients that know its keys; the gateway neither reads it nor passes it on."""
    return {name: value for name, value in definition.items() if name not in _META_FIELDS}


def strip_volatile_fields(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Remove fields of a resource that change with its content, not with its definition."""
    stable_fields = {name: value for name, value in definition.items() if name != "size"}
    annotations = stable_fields.get("annotations")
    if isinstance(annotations, dict):
        stable_fields["annotations"] = {name: value for name, value in annotations.items() if name != "lastModified"}
    return stable_fields


def compute_definition_digest(definition: Mapping[str, Any]) -> str:
    """Digest the meaning of a definition. Raise `NotCanonical` for values that JSON cannot represent."""
    try:
        return compute_digest(normalize_value(strip_meta(definition), Shape.TOOL))
    except RecursionError as error:
        raise NotCanonical("it nests too deep") from error


def normalize_value(value: Any, shape: Shape, level: int = 0) -> Any:
    """Return the form that all values of the same meaning share. Integers without a canonical form become strings with
    a mark that no other string has.
    """
    if isinstance(value, dict):
        return {
            _escape_name(key): normalize_value(each, get_child_shape(shape, key, each), level + 1)
            for key, each in value.items()
        }
    if isinstance(value, list):
        each_shape = get_child_shape(shape, None, None)
        items = [normalize_value(each, each_shape, level + 1) for each in value]
        return sorted(items, key=canonicalize) if shape in UNORDERED_SHAPES and level <= MAX_SORT_DEPTH else items
    if isinstance(value, int | float) and abs(value) > _MAX_SAFE_INTEGER and value == value // 1:
        return {_ESCAPE_MARK: str(int(value))}
    return value


def get_child_shape(shape: Shape, key: str | None, value: Any) -> Shape:
    """Return the shape of the value under a key of an object, or, without a key, of an element of a list."""
    match shape:
        case Shape.TOOL if key in _SCHEMA_FIELDS:
            return Shape.SCHEMA
        case Shape.SCHEMA:
            return Shape.SCHEMA if key is None else _SHAPE_BY_KEYWORD.get(key, Shape.VALUE)
        case Shape.SCHEMAS if key is not None:
            return Shape.SCHEMA
        case Shape.SETS if key is not None:
            return Shape.SET if isinstance(value, list) else Shape.SCHEMA
        case Shape.SET_OF_SCHEMAS if key is None:
            return Shape.SCHEMA
        case _:
            return Shape.VALUE


def _escape_name(name: str) -> str:
    return _ESCAPE_MARK + name if name.startswith(_ESCAPE_MARK) else name
