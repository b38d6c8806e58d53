"""Compare JSON values as JSON Schema does: 1 and 1.0 are the same number, and true is no number."""

from typing import Any

NUMBER_KINDS = frozenset({"integer", "fraction"})
ALL_KINDS = frozenset({"null", "boolean", "object", "array", "string"}) | NUMBER_KINDS


def get_kind(value: Any) -> str:
    """Return the kind of a value; numbers are integers or fractions."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case dict():
            return "object"
        case list() | tuple():
            return "array"
        case float():
            return "integer" if value.is_integer() else "fraction"
        case _:
            return "integer"


def read_kinds(types: Any) -> frozenset[str]:
    """Read the keyword `type` as kinds."""
    names = types if isinstance(types, list) else [types]
    kinds = {name for name in names if isinstance(name, str) and name in ALL_KINDS}
    return frozenset(kinds | NUMBER_KINDS if "number" in names else kinds)


def are_equal(one: Any, other: Any) -> bool:
    """Tell whether two JSON values are the same."""
    kind = get_kind(one)
    if kind != get_kind(other):
        return False
    if kind == "array":
        return len(one) == len(other) and all(map(are_equal, one, other))
    if kind == "object":
        return one.keys() == other.keys() and all(are_equal(value, other[name]) for name, value in one.items())
    return bool(one == other)
