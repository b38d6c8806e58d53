"""Parse `key=value` words as a tool's arguments, each value by the type in the tool's schema.

A value that does not fit its type stays text, and the gateway then reports what it expects.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_MAX_DEPTH = 16


class ArgumentSyntaxError(ValueError):
    """Word that is not `key=value`, or invalid JSON; the message says how to write it."""


def parse_arguments(words: Iterable[str], schema: Mapping[str, Any], base_json: str | None = None) -> dict[str, Any]:
    """Parse the arguments of a call: start with the JSON object, if any, then set one argument per word.

    `tag=a tag=b` makes a list where the schema wants one; elsewhere the last word wins.
    """
    arguments = _parse_object(base_json) if base_json is not None else {}
    values_by_name: dict[str, list[str]] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise ArgumentSyntaxError(
                f"{word!r} is not an argument: write name=value, or use --args with a JSON object."
            )
        values_by_name.setdefault(name, []).append(value)
    for name, values in values_by_name.items():
        part = _find_property(schema, name)
        if "array" in _collect_types(schema, part) and (len(values) > 1 or not values[0].lstrip().startswith("[")):
            items = _resolve_reference(schema, part).get("items", {})
            arguments[name] = [_parse_value(schema, items, value) for value in values]
        else:
            arguments[name] = _parse_value(schema, part, values[-1])
    return arguments


def parse_tool_range(text: str) -> tuple[str, str]:
    """Parse `NAME[@RANGE]` into a tool's full name and a version range."""
    from deputize.catalog.versions import InvalidVersionRange, parse_range
    from deputize.core.contract.names import to_full_name

    name, _, versions = text.partition("@")
    try:
        parse_range(versions or "*")
    except InvalidVersionRange as error:
        raise ArgumentSyntaxError(f"--tool {text}: {error}.") from None
    return to_full_name(name), versions or "*"


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ArgumentSyntaxError(
            f'--args is not valid JSON ({error}): write it like --args \'{{"name": "Ana"}}\'.'
        ) from None
    if not isinstance(value, dict):
        raise ArgumentSyntaxError('--args must be a JSON object: write it like --args \'{"name": "Ana"}\'.')
    return value


def _find_property(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    properties = _resolve_reference(schema, schema).get("properties", {})
    part = properties.get(name, {}) if isinstance(properties, dict) else {}
    return part if isinstance(part, dict) else {}


def _parse_value(schema: Mapping[str, Any], part: Mapping[str, Any], text: str) -> Any:
    """Parse a value as a number, boolean or JSON where the schema allows that type; else keep the text."""
    types = _collect_types(schema, part)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        return text
    if value is None and "string" in types:
        return text  # a name may well be "null"
    return value if not isinstance(value, str) and _has_type(value, types) else text


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _has_type(value: Any, types: Sequence[str]) -> bool:
    match value:
        case bool():
            return "boolean" in types
        case int():
            return "integer" in types or "number" in types
        case float():
            return "number" in types or ("integer" in types and value.is_integer())
        case None:
            return "null" in types
        case list():
            return "array" in types
        case _:
            return "object" in types


def _collect_types(schema: Mapping[str, Any], part: Any, level: int = 0) -> list[str]:
    """Collect every type a value may have, through references, alternatives and enums."""
    part = _resolve_reference(schema, part)
    if level > _MAX_DEPTH:
        return []
    types: list[str] = []
    type_keyword = part.get("type")
    types += [type_keyword] if isinstance(type_keyword, str) else list(type_keyword or ())
    for value in (*part.get("enum", ()), *([part["const"]] if "const" in part else ())):
        types.append(_get_json_type(value))
    for key in ("anyOf", "oneOf", "allOf"):
        for branch in part.get(key, ()):
            types += _collect_types(schema, branch, level + 1)
    return types


def _get_json_type(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _resolve_reference(schema: Mapping[str, Any], part: Any) -> Mapping[str, Any]:
    """Resolve local references; return other schemas unchanged."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(part, Mapping):
            return {}
        reference = part.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return part
        target: Any = schema
        for step in reference.removeprefix("#").strip("/").split("/"):
            if step:
                target = target.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        part = target
    return {}
