"""What a server's definition of a tool means, apart from how it was written: the ground that pins stand on.

Nothing that a server declares is left out but its asides to other clients (`_meta`). What JSON or JSON Schema says
has no order gets one, so that two ways to write one thing have one digest; whatever else differs, differs.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from deputize.core.canonical import NotCanonical, canonical, digest

_ASIDES = frozenset({"_meta"})
_SCHEMAS = frozenset({"inputSchema", "outputSchema"})
# Deeper than any schema that is admitted, order counts: sorting takes time, and whoever sends this much gets none.
DEEPEST = 64
_LARGEST = 2**53 - 1
_MARK = "\0"


class Shape(Enum):
    """What a part of a definition is, which says what the order of its own parts means."""

    TOOL = auto()
    SCHEMA = auto()
    # Lists whose order says nothing about what is valid: of values, and of schemas.
    SET = auto()
    SET_OF_SCHEMAS = auto()
    # By name: schemas, and either of schemas and sets of names.
    SCHEMAS = auto()
    SETS = auto()
    # All else: its lists have an order.
    VALUE = auto()


_KEYWORDS = {
    **dict.fromkeys(("required", "type", "enum"), Shape.SET),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), Shape.SET_OF_SCHEMAS),
    **dict.fromkeys(("dependentRequired", "dependencies"), Shape.SETS),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"), Shape.SCHEMAS),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "propertyNames", "contentSchema"), Shape.SCHEMA),
    **dict.fromkeys(("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"), Shape.SCHEMA),
    **dict.fromkeys(("not", "if", "then", "else"), Shape.SCHEMA),
}
UNORDERED = frozenset({Shape.SET, Shape.SET_OF_SCHEMAS})


def without_asides(said: Mapping[str, Any]) -> dict[str, Any]:
    """What was said to everybody. `_meta` is for clients that know its keys; nobody here does, nor passes it on."""
    return {name: value for name, value in said.items() if name not in _ASIDES}


def without_what_passes(said: Mapping[str, Any]) -> dict[str, Any]:
    """Of a resource, what is told of its content at the moment: that changes without anybody saying something else."""
    kept = {name: value for name, value in said.items() if name != "size"}
    annotations = kept.get("annotations")
    if isinstance(annotations, dict):
        kept["annotations"] = {name: value for name, value in annotations.items() if name != "lastModified"}
    return kept


def digest_of(said: Mapping[str, Any]) -> str:
    """Names what a definition means. Raises `NotCanonical` for what JSON cannot say."""
    try:
        return digest(meant(without_asides(said), Shape.TOOL))
    except RecursionError as error:
        raise NotCanonical("it nests too deep") from error


def meant(value: Any, shape: Shape, level: int = 0) -> Any:
    """A value in the one form of all that mean the same. Whole numbers that have no canonical form become texts, marked
    so that no text means the same.
    """
    if isinstance(value, dict):
        return {_name(key): meant(each, within(shape, key, each), level + 1) for key, each in value.items()}
    if isinstance(value, list):
        each_shape = within(shape, None, None)
        several = [meant(each, each_shape, level + 1) for each in value]
        return sorted(several, key=canonical) if shape in UNORDERED and level <= DEEPEST else several
    if isinstance(value, int | float) and abs(value) > _LARGEST and value == value // 1:
        return {_MARK: str(int(value))}
    return value


def within(shape: Shape, key: str | None, value: Any) -> Shape:
    """What stands under a key of an object of this shape, or, without a key, in a list of it."""
    match shape:
        case Shape.TOOL if key in _SCHEMAS:
            return Shape.SCHEMA
        case Shape.SCHEMA:
            return Shape.SCHEMA if key is None else _KEYWORDS.get(key, Shape.VALUE)
        case Shape.SCHEMAS if key is not None:
            return Shape.SCHEMA
        case Shape.SETS if key is not None:
            return Shape.SET if isinstance(value, list) else Shape.SCHEMA
        case Shape.SET_OF_SCHEMAS if key is None:
            return Shape.SCHEMA
        case _:
            return Shape.VALUE


def _name(name: str) -> str:
    return _MARK + name if name.startswith(_MARK) else name
