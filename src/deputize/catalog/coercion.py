"""Safe corrections of the type slips models make: planned once from a schema, never lossy, never a guess.

A text that spells exactly one value of the wanted types becomes that value; a list or object that came as
JSON text is read; a single value becomes a list of one only where the schema says `x-coerce: wrap`; a
required property with a default is filled. The whole either fits the schema afterwards or is left as it was.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from deputize.catalog.schemas import MAX_DEPTH, depth, follow, pointer
from deputize.core.call import Mutation
from deputize.core.canonical import canonical
from deputize.core.contract import Schema

Path = tuple[str | int, ...]

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,15})(?:\.0+)?")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?")
_LARGEST = 2**53 - 1
_BOOLEANS = {"true": True, "True": True, "false": False, "False": False}
_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_MISSING = object()


@dataclass(slots=True)
class Plan:
    """What may stand at one place of the arguments, and what lies inside it."""

    types: frozenset[str]
    wraps: bool = False
    default: Any = _MISSING
    required: tuple[str, ...] = ()
    properties: dict[str, "Plan"] = field(default_factory=dict)
    items: "Plan | None" = None


def plan(root: Schema) -> Plan:
    return _plan(root, root, {}, 0)


def _plan(root: Schema, node: Any, known: dict[str, Plan], level: int) -> Plan:
    """`known` holds the plan of each reference, so that a schema that contains itself has a finite plan."""
    reference = node.get("$ref") if isinstance(node, dict) else None
    if isinstance(reference, str) and reference in known:
        return known[reference]
    node = follow(root, node)
    if not isinstance(node, dict) or level > MAX_DEPTH:
        return Plan(types=_TYPES)
    branches = [follow(root, branch) for key in ("anyOf", "oneOf") for branch in node.get(key, ())]
    made = Plan(
        types=_types(node, branches),
        wraps=node.get("x-coerce") == "wrap",
        default=node.get("default", _MISSING),
    )
    if isinstance(reference, str):
        known[reference] = made
    inside = _the_one([node, *branches], "properties")
    if inside:
        made.required = tuple(inside.get("required", ()))
        made.properties = {name: _plan(root, part, known, level + 1) for name, part in inside["properties"].items()}
    inside = _the_one([node, *branches], "items")
    if inside:
        made.items = _plan(root, inside["items"], known, level + 1)
    return made


def _types(node: Schema, branches: list[Any]) -> frozenset[str]:
    """The types that may stand here; where the schema leaves it open, all of them, so nothing changes."""
    declared = node.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(declared)
    if branches:
        return frozenset().union(*(_types(part, []) if isinstance(part, dict) else _TYPES for part in branches))
    values = node["enum"] if isinstance(node.get("enum"), list) else [node["const"]] if "const" in node else None
    return frozenset(map(type_name, values)) if values else _TYPES


def _the_one(nodes: list[Any], keyword: str) -> Schema | None:
    """The only alternative that says what lies inside; between two of them, choosing would be guessing."""
    having = [node for node in nodes if isinstance(node, dict) and isinstance(node.get(keyword), dict)]
    return having[0] if len(having) == 1 else None


def type_name(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def coerce(
    plan: Plan, arguments: dict[str, Any], is_valid: Callable[[Any], bool]
) -> tuple[dict[str, Any], tuple[Mutation, ...]]:
    """The arguments as the schema wants them with every change recorded, or exactly what came in."""
    changes: list[Mutation] = []
    changed = _coerce(plan, arguments, (), changes)
    if changes and is_valid(changed):
        return changed, tuple(changes)
    return arguments, ()


def _coerce(plan: Plan, value: Any, path: Path, changes: list[Mutation]) -> Any:
    if not _fits(plan.types, value):
        found = _read(plan, value)
        if found is _MISSING:
            return value
        changes.append(Mutation(path=pointer(path), source="coercion", change=f"{type_name(value)}→{type_name(found)}"))
        value = found
    if isinstance(value, dict):
        return _inside_object(plan, value, path, changes)
    if isinstance(value, list) and plan.items is not None:
        items = plan.items
        return [_coerce(items, item, (*path, place), changes) for place, item in enumerate(value)]
    return value


def _inside_object(plan: Plan, value: dict[str, Any], path: Path, changes: list[Mutation]) -> dict[str, Any]:
    properties = plan.properties
    made = {
        name: _coerce(properties[name], item, (*path, name), changes) if name in properties else item
        for name, item in value.items()
    }
    for name in plan.required:
        if name not in made and name in properties and properties[name].default is not _MISSING:
            made[name] = properties[name].default
            changes.append(Mutation(path=pointer((*path, name)), source="default", change="absent→default"))
    return made


def _fits(types: frozenset[str], value: Any) -> bool:
    name = type_name(value)
    if name in types or (name == "integer" and "number" in types):
        return True
    return name == "number" and "integer" in types and isinstance(value, float) and value.is_integer()


def _read(plan: Plan, value: Any) -> Any:
    """The one value the text can mean among the wanted types, or `_MISSING` when it is none or several."""
    meanings: list[Any] = []
    if isinstance(value, str):
        for reader in (_READERS[wanted] for wanted in sorted(plan.types) if wanted in _READERS):
            found = reader(value)
            if found is not _MISSING and found not in meanings:
                meanings.append(found)
    if not meanings and plan.wraps and "array" in plan.types and not isinstance(value, dict):
        return [value]
    return meanings[0] if len(meanings) == 1 else _MISSING


def _read_integer(text: str) -> Any:
    if not _INTEGER.fullmatch(text):
        return _MISSING
    number = int(text.partition(".")[0])
    return number if abs(number) <= _LARGEST and text[:2] != "-0" else _MISSING


def _read_number(text: str) -> Any:
    """A float only where it is exactly the number that was spelt, as reading it back shows."""
    whole = _read_integer(text)
    if whole is not _MISSING:
        return whole
    if not _NUMBER.fullmatch(text):
        return _MISSING
    number = float(text)
    return number if Decimal(repr(number)) == Decimal(text) else _MISSING


def _read_boolean(text: str) -> Any:
    return _BOOLEANS.get(text, _MISSING)


def _read_json(text: str, kind: type) -> Any:
    """A list or object that came as JSON text, held to what a door would have accepted as a body."""
    if text[:1] not in ("[", "{"):
        return _MISSING
    try:
        value = json.loads(text, parse_int=_exact, parse_float=_exact, parse_constant=_exact, object_pairs_hook=_unique)
        if type(value) is not kind or depth(value) > MAX_DEPTH or b"\\u0000" in canonical({"": value}):
            return _MISSING
    except (ValueError, RecursionError):
        return _MISSING
    return value


def _exact(text: str) -> Any:
    number = _read_number(text)
    if number is _MISSING:
        raise ValueError("a number that cannot be kept as it was written")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name that is given twice")
    return made


_READERS: dict[str, Callable[[str], Any]] = {
    "integer": _read_integer,
    "number": _read_number,
    "boolean": _read_boolean,
    "array": lambda text: _read_json(text, list),
    "object": lambda text: _read_json(text, dict),
}
