"""What every part of this room knows about JSON Schema: walking one, following its references, compiling it.

Compiled validators enforce formats, never reach for the network, match patterns in linear time, and leave the
values they judge out of their messages.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs

from deputize.core.contract import Schema

Validator = jsonschema_rs.Draft202012Validator
DRAFT = "https://json-schema.org/draft/2020-12/schema"
MAX_DEPTH = 32

# Formats the validators enforce. Any other would be an annotation that looks like a promise.
FORMATS = frozenset(
    {"date", "date-time", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4",
     "ipv6", "uri", "uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer",
     "relative-json-pointer", "regex"}
)  # fmt: skip
SENSITIVITIES = frozenset({"public", "internal", "pii", "secret"})
# What must not appear in messages, audit scopes or examples shown to others.
HIDDEN_SENSITIVITIES = frozenset({"pii", "secret"})

_ONE = (
    "additionalProperties", "unevaluatedProperties", "propertyNames", "items", "unevaluatedItems", "contains",
    "not", "if", "then", "else", "contentSchema",
)  # fmt: skip
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs")


class BadSchema(ValueError):
    """The schema cannot be used; the message says why, without a stack."""


def compile_schema(schema: Schema | bool) -> Validator:
    try:
        return Validator(
            schema,
            validate_formats=True,
            ignore_unknown_formats=False,
            offline=True,
            mask="the value",
            pattern_options=jsonschema_rs.RegexOptions(),
        )
    except jsonschema_rs.ValidationError as error:
        raise BadSchema(f"{pointer(error.instance_path)}: {error.message}") from error
    except (jsonschema_rs.ReferencingError, ValueError, TypeError, UnicodeError) as error:
        raise BadSchema(str(error).partition("\n")[0]) from error


def pointer(path: Iterator[str | int] | list[str | int] | tuple[str | int, ...]) -> str:
    """A JSON pointer (RFC 6901); the whole document is the empty one."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def children(node: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every schema that stands directly inside this one, with the way to it."""
    for keyword in _ONE:
        if keyword in node:
            yield (keyword,), node[keyword]
    for keyword in _MANY:
        branches = node.get(keyword)
        if isinstance(branches, list):
            yield from (((keyword, place), branch) for place, branch in enumerate(branches))
    for keyword in _NAMED:
        named = node.get(keyword)
        if isinstance(named, dict):
            yield from (((keyword, name), branch) for name, branch in named.items())


def walk(schema: Any) -> Iterator[tuple[tuple[str | int, ...], Schema]]:
    """Every object schema in a document, each with its path; deeper than anyone may write is not entered."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), schema)]
    while waiting:
        path, node = waiting.pop()
        if isinstance(node, dict) and len(path) <= 2 * MAX_DEPTH:
            yield path, node
            waiting.extend((path + step, child) for step, child in reversed(list(children(node))))


def depth(value: Any) -> int:
    """How deep lists and objects nest, found without recursion so that no document can exhaust the stack."""
    deepest, level = 0, [value]
    while level:
        nested = [item for item in level if isinstance(item, dict | list)]
        if not nested or deepest > 4 * MAX_DEPTH:
            return deepest
        deepest += 1
        level = [child for item in nested for child in (item.values() if isinstance(item, dict) else item)]
    return deepest


def follow(root: Schema, node: Any) -> Any:
    """The schema a node stands for: local references resolved (siblings win), a lone `allOf` unwrapped."""
    for _ in range(MAX_DEPTH):
        if not isinstance(node, dict):
            return node
        reference = node.get("$ref")
        if isinstance(reference, str):
            target = _at(root, reference)
            beside = {key: value for key, value in node.items() if key != "$ref"}
        elif isinstance(node.get("allOf"), list) and len(node["allOf"]) == 1:
            target = node["allOf"][0]
            beside = {key: value for key, value in node.items() if key != "allOf"}
        else:
            return node
        if not isinstance(target, dict):
            return beside
        node = {**target, **beside}
    return {}


def _at(root: Schema, reference: str) -> Any:
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    found: Any = root
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


def without_internal(schema: Schema) -> Schema:
    """The schema as callers may know it: properties marked `x-internal` are gone, and demands for them too.

    Returns the same object when nothing is internal, so that nothing is compiled twice.
    """
    if not any(_is_internal(node) for _, node in walk(schema)):
        return schema
    public = _prune(schema)
    return public if isinstance(public, dict) else {}


def _is_internal(node: Any) -> bool:
    return isinstance(node, dict) and node.get("x-internal") is True


def _prune(node: Any) -> Any:
    if isinstance(node, list):
        return [_prune(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _prune(value) for key, value in node.items() if key != "properties"}
    properties, required = node.get("properties", {}), node.get("required")
    if not isinstance(properties, dict):
        # No schema at all; who compiles it says so.
        return {**kept, "properties": properties}
    gone = {name for name, part in properties.items() if _is_internal(part)}
    if "properties" in node:
        kept["properties"] = {name: _prune(part) for name, part in properties.items() if name not in gone}
    if isinstance(required, list):
        kept["required"] = [name for name in required if not isinstance(name, str) or name not in gone]
    return kept
