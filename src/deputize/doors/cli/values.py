"""`key=value` words as a tool's arguments: each value is read as what the tool's schema says it is.

What cannot be read that way stays the text it is; the gateway then says what it would have taken. Pure.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_DEEPEST = 16


class NotAnArgument(ValueError):
    """The word is no `key=value`, or a value is no JSON; the message says how to write it."""


def arguments_from(words: Iterable[str], schema: Mapping[str, Any], whole: str | None = None) -> dict[str, Any]:
    """The arguments of a call: `whole` is a JSON object to start from, each word sets one of them.

    `tag=a tag=b` makes a list where the schema wants one; elsewhere the last word wins.
    """
    arguments = _object(whole) if whole is not None else {}
    given: dict[str, list[str]] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise NotAnArgument(f"{word!r} is no argument: write name=value, or --args with a JSON object.")
        given.setdefault(name, []).append(value)
    for name, values in given.items():
        part = _property(schema, name)
        if "array" in _types(schema, part) and (len(values) > 1 or not values[0].lstrip().startswith("[")):
            items = _followed(schema, part).get("items", {})
            arguments[name] = [_read(schema, items, value) for value in values]
        else:
            arguments[name] = _read(schema, part, values[-1])
    return arguments


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise NotAnArgument(f'--args is no JSON ({error}): write it like --args \'{{"name": "Ana"}}\'.') from None
    if not isinstance(value, dict):
        raise NotAnArgument('--args must be a JSON object: write it like --args \'{"name": "Ana"}\'.')
    return value


def _property(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    properties = _followed(schema, schema).get("properties", {})
    part = properties.get(name, {}) if isinstance(properties, dict) else {}
    return part if isinstance(part, dict) else {}


def _read(schema: Mapping[str, Any], part: Mapping[str, Any], text: str) -> Any:
    """Numbers, booleans and JSON where the schema has them; text where it does not, or where nothing else fits."""
    types = _types(schema, part)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        return text
    if value is None and "string" in types:
        return text  # a name may well be "null"
    return value if not isinstance(value, str) and _is_one_of(value, types) else text


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _is_one_of(value: Any, types: Sequence[str]) -> bool:
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


def _types(schema: Mapping[str, Any], part: Any, level: int = 0) -> list[str]:
    """Every type a value may have here, through references and alternatives; an enum speaks by its values."""
    part = _followed(schema, part)
    if level > _DEEPEST:
        return []
    found: list[str] = []
    declared = part.get("type")
    found += [declared] if isinstance(declared, str) else list(declared or ())
    for value in (*part.get("enum", ()), *([part["const"]] if "const" in part else ())):
        found.append(_type_of(value))
    for key in ("anyOf", "oneOf", "allOf"):
        for branch in part.get(key, ()):
            found += _types(schema, branch, level + 1)
    return found


def _type_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _followed(schema: Mapping[str, Any], part: Any) -> Mapping[str, Any]:
    """The part itself, or what its local references lead to."""
    for _ in range(_DEEPEST):
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
