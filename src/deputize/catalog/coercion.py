"""Correct the type mistakes that models make in arguments, without loss and without guessing.

A plan is built once per schema. A string that spells exactly one value of the expected types becomes that value; a
list or object sent as JSON text is parsed; a single value becomes a list of one only if the schema says
`x-coerce: wrap`; a missing required property gets its default. If the result is still invalid, nothing is changed.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from deputize.catalog.schemas import MAX_DEPTH, format_pointer, measure_depth, resolve_refs
from deputize.core.call import Mutation
from deputize.core.canonical import canonicalize
from deputize.core.contract.contract import Schema
from deputize.core.json_values import MAX_VALUES, has_too_many_values

Path = tuple[str | int, ...]

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,15})(?:\.0+)?")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?")
_LARGEST_INTEGER = 2**53 - 1
_BOOLEANS = {"true": True, "True": True, "false": False, "False": False}
_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_MISSING = object()


@dataclass(slots=True)
class CoercionPlan:
    """The types expected at one place of the arguments, and the plans of its properties and items."""

    types: frozenset[str]
    can_wrap: bool = False
    default: Any = _MISSING
    required_names: tuple[str, ...] = ()
    properties: dict[str, "CoercionPlan"] = field(default_factory=dict)
    items: "CoercionPlan | None" = None


def build_plan(root: Schema) -> CoercionPlan:
    """Build the coercion plan of a schema."""
    return _build_node_plan(root, root, {}, 0)


def _build_node_plan(root: Schema, node: Any, plans_by_ref: dict[str, CoercionPlan], level: int) -> CoercionPlan:
    """Build the plan of one node; `plans_by_ref` holds each reference's plan, so that recursive schemas end."""
    reference = node.get("$ref") if isinstance(node, dict) else None
    if isinstance(reference, str) and reference in plans_by_ref:
        return plans_by_ref[reference]
    node = resolve_refs(root, node)
    if not isinstance(node, dict) or level > MAX_DEPTH:
        return CoercionPlan(types=_TYPES)
    branches = [resolve_refs(root, branch) for key in ("anyOf", "oneOf") for branch in node.get(key, ())]
    result = CoercionPlan(
        types=_list_types(node, branches),
        can_wrap=node.get("x-coerce") == "wrap",
        default=node.get("default", _MISSING),
    )
    if isinstance(reference, str):
        plans_by_ref[reference] = result
    inside = _find_only([node, *branches], "properties")
    if inside:
        result.required_names = tuple(inside.get("required", ()))
        result.properties = {
            name: _build_node_plan(root, part, plans_by_ref, level + 1) for name, part in inside["properties"].items()
        }
    inside = _find_only([node, *branches], "items")
    if inside:
        result.items = _build_node_plan(root, inside["items"], plans_by_ref, level + 1)
    return result


def _list_types(node: Schema, branches: list[Any]) -> frozenset[str]:
    """List the types a node allows; all of them if the schema names none, so that nothing is coerced."""
    type_keyword = node.get("type")
    if isinstance(type_keyword, str):
        return frozenset({type_keyword})
    if isinstance(type_keyword, list):
        return frozenset(type_keyword)
    if branches:
        return frozenset().union(*(_list_types(part, []) if isinstance(part, dict) else _TYPES for part in branches))
    values = node["enum"] if isinstance(node.get("enum"), list) else [node["const"]] if "const" in node else None
    return frozenset(map(get_json_type, values)) if values else _TYPES


def _find_only(nodes: list[Any], keyword: str) -> Schema | None:
    """Return the only alternative that has the keyword; None if several do, because choosing would be guessing."""
    matches = [node for node in nodes if isinstance(node, dict) and isinstance(node.get(keyword), dict)]
    return matches[0] if len(matches) == 1 else None


def get_json_type(value: Any) -> str:
    """Return the JSON Schema type of a value."""
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


def coerce_arguments(
    plan: CoercionPlan, arguments: dict[str, Any], is_valid: Callable[[Any], bool]
) -> tuple[dict[str, Any], tuple[Mutation, ...]]:
    """Return valid arguments and the changes that made them so, or the arguments unchanged."""
    changes: list[Mutation] = []
    result = _coerce_value(plan, arguments, (), changes)
    if changes and is_valid(result):
        return result, tuple(changes)
    return arguments, ()


def _coerce_value(plan: CoercionPlan, value: Any, path: Path, changes: list[Mutation]) -> Any:
    if not _is_of_type(plan.types, value):
        new_value = _parse_text(plan, value)
        if new_value is _MISSING:
            return value
        change = f"{get_json_type(value)}→{get_json_type(new_value)}"
        changes.append(Mutation(path=format_pointer(path), source="coercion", change=change))
        value = new_value
    if isinstance(value, dict):
        return _coerce_object(plan, value, path, changes)
    if isinstance(value, list) and plan.items is not None:
        items = plan.items
        return [_coerce_value(items, item, (*path, place), changes) for place, item in enumerate(value)]
    return value


def _coerce_object(plan: CoercionPlan, value: dict[str, Any], path: Path, changes: list[Mutation]) -> dict[str, Any]:
    properties = plan.properties
    result = {
        name: _coerce_value(properties[name], item, (*path, name), changes) if name in properties else item
        for name, item in value.items()
    }
    for name in plan.required_names:
        if name not in result and name in properties and properties[name].default is not _MISSING:
            result[name] = properties[name].default
            changes.append(Mutation(path=format_pointer((*path, name)), source="default", change="absent→default"))
    return result


def _is_of_type(types: frozenset[str], value: Any) -> bool:
    name = get_json_type(value)
    if name in types or (name == "integer" and "number" in types):
        return True
    return name == "number" and "integer" in types and isinstance(value, float) and value.is_integer()


def _parse_text(plan: CoercionPlan, value: Any) -> Any:
    """Parse a string as the one value it can mean among the plan's types; `_MISSING` if there is none or several."""
    parsed_values: list[Any] = []
    if isinstance(value, str):
        for reader in (_READERS[kind] for kind in sorted(plan.types) if kind in _READERS):
            parsed_value = reader(value)
            if parsed_value is not _MISSING and parsed_value not in parsed_values:
                parsed_values.append(parsed_value)
    if not parsed_values and plan.can_wrap and "array" in plan.types and not isinstance(value, dict):
        return [value]
    return parsed_values[0] if len(parsed_values) == 1 else _MISSING


def _read_integer(text: str) -> Any:
    if not _INTEGER.fullmatch(text):
        return _MISSING
    number = int(text.partition(".")[0])
    return number if abs(number) <= _LARGEST_INTEGER and text[:2] != "-0" else _MISSING


def _read_number(text: str) -> Any:
    """Parse a number; `_MISSING` if a float cannot represent it exactly."""
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
    """Parse a list or object sent as JSON text, with the same limits as a request body."""
    if text[:1] not in ("[", "{") or has_too_many_values(text.encode(errors="replace"), MAX_VALUES):
        return _MISSING
    try:
        value = json.loads(
            text,
            parse_int=_parse_exact_number,
            parse_float=_parse_exact_number,
            parse_constant=_parse_exact_number,
            object_pairs_hook=_build_unique_object,
        )
        if type(value) is not kind or measure_depth(value) > MAX_DEPTH or b"\\u0000" in canonicalize({"": value}):
            return _MISSING
    except (ValueError, RecursionError):
        return _MISSING
    return value


def _parse_exact_number(text: str) -> Any:
    number = _read_number(text)
    if number is _MISSING:
        raise ValueError("the number cannot be represented exactly")
    return number


def _build_unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a property name occurs twice")
    return result


_READERS: dict[str, Callable[[str], Any]] = {
    "integer": _read_integer,
    "number": _read_number,
    "boolean": _read_boolean,
    "array": lambda text: _read_json(text, list),
    "object": lambda text: _read_json(text, dict),
}
