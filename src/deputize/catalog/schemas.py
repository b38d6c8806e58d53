"""Walk, resolve and compile JSON Schemas for the whole catalog.

Compiled validators enforce formats, never use the network, match patterns in linear time, and keep the values they
check out of their messages.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import jsonschema_rs

from deputize.core.contract.contract import Schema
from deputize.core.json_values import has_more_values

Validator = jsonschema_rs.Draft202012Validator
DRAFT = "https://json-schema.org/draft/2020-12/schema"
MAX_DEPTH = 32
# Documents with more values get one error instead of a list.
_MAX_LISTED_VALUES = 500

# The formats that validators enforce. Any other would look like a rule and have no effect.
FORMATS = frozenset(
    {"date", "date-time", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4",
     "ipv6", "uri", "uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer",
     "relative-json-pointer", "regex"}
)  # fmt: skip
SENSITIVITIES = frozenset({"public", "internal", "pii", "secret"})
# Values of these levels must not appear in messages, audit scopes or examples.
HIDDEN_SENSITIVITIES = frozenset({"pii", "secret"})

_SINGLE_SCHEMA_KEYWORDS = (
    "additionalProperties", "unevaluatedProperties", "propertyNames", "items", "unevaluatedItems", "contains",
    "not", "if", "then", "else", "contentSchema",
)  # fmt: skip
_SCHEMA_LIST_KEYWORDS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMA_MAP_KEYWORDS = ("properties", "patternProperties", "dependentSchemas", "$defs")


class BadSchema(ValueError):
    """The schema cannot be compiled; the message says why."""


def compile_schema(schema: Schema | bool) -> Validator:
    """Compile a schema into a validator; raise `BadSchema` if it is invalid."""
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
        raise BadSchema(f"{format_pointer(error.instance_path)}: {error.message}") from error
    except (jsonschema_rs.ReferencingError, ValueError, TypeError, UnicodeError) as error:
        raise BadSchema(str(error).partition("\n")[0]) from error


def iterate_errors(validator: Validator, value: Any) -> Iterable[jsonschema_rs.ValidationError]:
    """Iterate over the errors of a small document; of a larger one, return only the first.

    The validator finds all errors before it returns the first: 300,000 wrong items took 14 s.
    """
    if not has_more_values(value, _MAX_LISTED_VALUES):
        return validator.iter_errors(value)
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        return (error,)
    return ()


def format_pointer(path: Iterator[str | int] | list[str | int] | tuple[str | int, ...]) -> str:
    """Format a path as a JSON pointer (RFC 6901); the whole document is the empty string."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def iter_subschemas(node: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the direct subschemas of a schema, each with its path."""
    for keyword in _SINGLE_SCHEMA_KEYWORDS:
        if keyword in node:
            yield (keyword,), node[keyword]
    for keyword in _SCHEMA_LIST_KEYWORDS:
        branches = node.get(keyword)
        if isinstance(branches, list):
            yield from (((keyword, place), branch) for place, branch in enumerate(branches))
    for keyword in _SCHEMA_MAP_KEYWORDS:
        subschemas = node.get(keyword)
        if isinstance(subschemas, dict):
            yield from (((keyword, name), branch) for name, branch in subschemas.items())


def walk_schema(schema: Any) -> Iterator[tuple[tuple[str | int, ...], Schema]]:
    """Yield every object schema in a document with its path, down to twice the greatest allowed depth."""
    stack: list[tuple[tuple[str | int, ...], Any]] = [((), schema)]
    while stack:
        path, node = stack.pop()
        if isinstance(node, dict) and len(path) <= 2 * MAX_DEPTH:
            yield path, node
            stack.extend((path + step, child) for step, child in reversed(list(iter_subschemas(node))))


def measure_depth(value: Any) -> int:
    """Measure how deep lists and objects nest, without recursion, so that no document can exhaust the stack."""
    deepest, level = 0, [value]
    while level:
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers or deepest > 4 * MAX_DEPTH:
            return deepest
        deepest += 1
        level = [child for item in containers for child in (item.values() if isinstance(item, dict) else item)]
    return deepest


def resolve_refs(root: Schema, node: Any) -> Any:
    """Resolve a node's local references (siblings win) and unwrap an `allOf` with one branch."""
    for _ in range(MAX_DEPTH):
        if not isinstance(node, dict):
            return node
        reference = node.get("$ref")
        if isinstance(reference, str):
            target = resolve_pointer(root, reference)
            siblings = {key: value for key, value in node.items() if key != "$ref"}
        elif isinstance(node.get("allOf"), list) and len(node["allOf"]) == 1:
            target = node["allOf"][0]
            siblings = {key: value for key, value in node.items() if key != "allOf"}
        else:
            return node
        if not isinstance(target, dict):
            return siblings
        node = {**target, **siblings}
    return {}


def get_properties(schema: Schema) -> Mapping[str, Any]:
    """Return the named properties of a schema, following references; empty if it has none."""
    properties = resolve_refs(schema, schema).get("properties")
    return properties if isinstance(properties, dict) else {}


def resolve_pointer(root: Schema, reference: str) -> Any:
    """Follow a reference within the schema; None if there is nothing."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    target: Any = root
    # A reference is a URI, so that validators read `%24defs` as `$defs`.
    for part in unquote(reference[2:]).split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target.get(name)
        elif isinstance(target, list) and name.isdigit() and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
    return target


def strip_internal(schema: Schema) -> Schema:
    """Remove properties marked `x-internal`, also from `required`: the schema that callers see.

    Returns the same object if nothing is internal, so that no schema is compiled twice.
    """
    if not any(_is_internal(node) for _, node in walk_schema(schema)):
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
    result = {key: _prune(value) for key, value in node.items() if key != "properties"}
    properties, required_names = node.get("properties", {}), node.get("required")
    if not isinstance(properties, dict):
        # An invalid schema stays as it is; `compile_schema` rejects it.
        return {**result, "properties": properties}
    internal_names = {name for name, part in properties.items() if _is_internal(part)}
    if "properties" in node:
        result["properties"] = {name: _prune(part) for name, part in properties.items() if name not in internal_names}
    if isinstance(required_names, list):
        result["required"] = [
            name for name in required_names if not isinstance(name, str) or name not in internal_names
        ]
    return result
