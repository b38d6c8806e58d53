"""Convert the schemas of MCP servers into schemas that this gateway enforces on every call.

Servers use several drafts of JSON Schema; everything is converted to 2020-12. What cannot be enforced here (an unknown
format, a pattern that needs more than linear time) is left to the server and listed as unenforced. References to other
documents stay, so that admission rejects them. A reference to an `$anchor` becomes a JSON pointer if the anchor is
unique. The gateway's own keywords (`x-internal` and the like) are dropped, because only the operator may set them.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from deputize.catalog.policy_facts import POLICY_KEYWORD
from deputize.catalog.schema_rules import Path, has_type_constraint, is_open
from deputize.catalog.schemas import (
    DRAFT,
    FORMATS,
    BadSchema,
    compile_schema,
    format_pointer,
    iter_subschemas,
    resolve_refs,
    walk_schema,
)
from deputize.core.canonical import NotCanonical, canonicalize
from deputize.core.contract.contract import Schema
from deputize.core.patterns import InvalidPattern, compile_pattern
from deputize.core.value_types import frozen

STRUCTURED_PATH: Final = ("properties", "structured")
OWN_KEYWORDS = frozenset({POLICY_KEYWORD, "x-internal", "x-sensitivity", "x-token-cost", "x-open"})
_LARGEST_INTEGER = 2**53 - 1
_UPPER_BOUNDS = frozenset({"maximum", "exclusiveMaximum"})
_LOWER_BOUNDS = frozenset({"minimum", "exclusiveMinimum"})
_SINGLE_SCHEMA_KEYWORDS = frozenset(
    {"additionalProperties", "unevaluatedProperties", "propertyNames", "items", "additionalItems", "unevaluatedItems",
     "contains", "not", "if", "then", "else", "contentSchema"}
)  # fmt: skip
_SCHEMA_LIST_KEYWORDS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_SCHEMA_MAP_KEYWORDS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
# A schema under these keywords, or beside them, describes only a part of the value, so it cannot be closed alone.
_PARTIAL_KEYWORDS = frozenset({"allOf", "if", "then", "else", "not", "dependentSchemas"})
_BRANCH_KEYWORDS = frozenset({"anyOf", "oneOf"})
_COMBINING_KEYWORDS = _PARTIAL_KEYWORDS | _BRANCH_KEYWORDS | {"$ref"}
# A pointer whose characters need no escaping in a URI fragment.
_PLAIN_POINTER = re.compile(r"[A-Za-z0-9$_./~-]*")
# Defaults and examples are hints. Checking one compiles its schema with all definitions, so both numbers are limited.
_MAX_HINTS = 200
_MAX_COMPILED = 10_000


@frozen
class EnforcedSchema:
    """A schema to enforce, and JSON pointers to the server's keywords that are not enforced."""

    schema: Schema
    unenforced_paths: tuple[str, ...] = ()


def convert_input_schema(server_schema: Schema) -> EnforcedSchema:
    """Convert an input schema. An object with named properties is closed unless it declares other properties."""
    converter = _SchemaConverter(
        is_older_draft=server_schema.get("$schema", DRAFT) != DRAFT, base_path=("inputSchema",)
    )
    schema = converter.convert(server_schema)
    if "$ref" not in schema:
        schema.setdefault("type", "object")
    close_objects(schema)
    _mark_open_properties(schema)
    _drop_invalid_hints(schema)
    return EnforcedSchema(schema=schema, unenforced_paths=tuple(converter.unenforced_paths))


def convert_schema(schema: Schema, *, base_path: Path) -> EnforcedSchema:
    """Convert any schema of JSON Schema 2020-12 or a later form of it, without closing its objects."""
    converter = _SchemaConverter(is_older_draft=False, base_path=base_path)
    result = converter.convert(schema)
    return EnforcedSchema(schema=result, unenforced_paths=tuple(converter.unenforced_paths))


def convert_output_schema(server_schema: Schema | None) -> EnforcedSchema:
    """Build the schema of a result: content blocks, and `structured` if the server declares an output schema."""
    content = {"type": "array", "items": {"type": "object"}}
    if server_schema is None:
        schema = {"type": "object", "properties": {"content": content, "structured": {}}, "required": ["content"]}
        return EnforcedSchema(schema=schema)
    converter = _SchemaConverter(
        is_older_draft=server_schema.get("$schema", DRAFT) != DRAFT, base_path=("outputSchema",)
    )
    inner = move_schema(
        {key: value for key, value in converter.convert(server_schema).items() if key != "$schema"},
        "",
        format_pointer(STRUCTURED_PATH),
    )
    parts = {"content": content, "structured": inner}
    schema = {"type": "object", "properties": parts, "required": ["content", "structured"]}
    return EnforcedSchema(schema=schema, unenforced_paths=tuple(converter.unenforced_paths))


def move_schema(schema: Schema, before: str, after: str) -> Schema:
    """Copy a schema from one place of a document to another, and rewrite its references."""
    old, new = f"#{before}", f"#{after}"

    def rewrite_node(node: Schema) -> Schema:
        reference = node.get("$ref")
        if isinstance(reference, str) and (reference == old or reference.startswith(old + "/")):
            return {**node, "$ref": new + reference.removeprefix(old)}
        return node

    return _map_schema(schema, rewrite_node)


def _resolve_anchors(schema: Schema) -> Schema:
    """Rewrite references to anchors as JSON pointers from the root.

    An anchor that occurs twice, or inside a part with its own `$id`, is ambiguous: its references stay as they are, and
    admission rejects them.
    """
    nodes = list(walk_schema(schema))
    if any("$id" in node for _, node in nodes):
        return schema
    pointers_by_anchor: dict[str, list[str]] = {}
    for path, node in nodes:
        for name in (node.get("$anchor"), node.get("$dynamicAnchor")):
            if isinstance(name, str):
                pointers_by_anchor.setdefault(f"#{name}", []).append(format_pointer(path))

    def rewrite_node(node: Schema) -> Schema:
        reference = node.get("$ref")
        pointers = pointers_by_anchor.get(reference, []) if isinstance(reference, str) else []
        return (
            {**node, "$ref": f"#{pointers[0]}"}
            if len(pointers) == 1 and _PLAIN_POINTER.fullmatch(pointers[0])
            else node
        )

    return _map_schema(schema, rewrite_node) if pointers_by_anchor else schema


def _map_schema(node: Schema, transform: Callable[[Schema], Schema]) -> Schema:
    """Copy a schema and apply `transform` to every object schema in it, but not to other objects."""
    result = dict(transform(node))
    for keyword, value in node.items():
        if keyword in _SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
            result[keyword] = {name: _map_value(each, transform) for name, each in value.items()}
        elif keyword in _SCHEMA_LIST_KEYWORDS and isinstance(value, list):
            result[keyword] = [_map_value(each, transform) for each in value]
        elif keyword in _SINGLE_SCHEMA_KEYWORDS:
            result[keyword] = _map_value(value, transform)
    return result


def _map_value(value: Any, transform: Callable[[Schema], Schema]) -> Any:
    return _map_schema(value, transform) if isinstance(value, dict) else value


class _SchemaConverter:
    """A converter to JSON Schema 2020-12 that records the paths of keywords it leaves out."""

    def __init__(self, *, is_older_draft: bool, base_path: Path) -> None:
        self._is_older_draft = is_older_draft
        self._base_path = base_path
        self.unenforced_paths: list[str] = []

    def convert(self, server_schema: Schema) -> Schema:
        """Convert a whole schema."""
        schema = self._convert_node(server_schema, ())
        # Drafts before 2019-09 have no `$anchor`.
        return schema if self._is_older_draft else _resolve_anchors(schema)

    def _convert_value(self, value: Any, path: Path) -> Any:
        return self._convert_node(value, path) if isinstance(value, dict) else value

    def _convert_node(self, node: Schema, path: Path) -> Schema:
        result: Schema = {}
        for keyword, value in node.items():
            if keyword in OWN_KEYWORDS or self._is_identity_keyword(keyword, value, path):
                continue
            if self._is_unenforceable(keyword, value):
                self.unenforced_paths.append(format_pointer((*self._base_path, *path, keyword)))
            else:
                result[keyword] = self._convert_keyword(keyword, value, (*path, keyword))
        return self._modernize(result)

    def _is_identity_keyword(self, keyword: str, value: Any, path: Path) -> bool:
        """Tell whether a keyword is the root's `$id` or a `$schema`, which are dropped. A nested `$id` is kept."""
        return (keyword == "$id" and not path) or (keyword == "$schema" and (bool(path) or value != DRAFT))

    def _is_unenforceable(self, keyword: str, value: Any) -> bool:
        if keyword == "format":
            return isinstance(value, str) and value not in FORMATS
        if keyword == "pattern":
            return isinstance(value, str) and not _is_enforceable_pattern(value)
        # Arguments cannot contain larger integers, so such bounds have no effect.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and (
            (keyword in _UPPER_BOUNDS and value > _LARGEST_INTEGER)
            or (keyword in _LOWER_BOUNDS and value < -_LARGEST_INTEGER)
        )

    def _convert_keyword(self, keyword: str, value: Any, path: Path) -> Any:
        if keyword in _SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
            return {name: self._convert_value(each, (*path, name)) for name, each in value.items()}
        if keyword in _SCHEMA_LIST_KEYWORDS and isinstance(value, list):
            return [self._convert_value(each, (*path, place)) for place, each in enumerate(value)]
        if keyword in _SINGLE_SCHEMA_KEYWORDS:
            return self._convert_value(value, path)
        if keyword == "dependencies" and self._is_older_draft and isinstance(value, dict):
            return {name: self._convert_value(each, (*path, name)) for name, each in value.items()}
        return value

    def _modernize(self, node: Schema) -> Schema:
        """Replace keywords of earlier drafts by those of 2020-12."""
        reference = node.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/definitions/"):
            node["$ref"] = "#/$defs/" + reference.removeprefix("#/definitions/")
        if isinstance(node.get("definitions"), dict) and isinstance(node.get("$defs", {}), dict):
            node["$defs"] = {**node.pop("definitions"), **node.get("$defs", {})}
        if isinstance(node.get("items"), list):
            node["prefixItems"] = node.pop("items")
            if "additionalItems" in node:
                node["items"] = node.pop("additionalItems")
        for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(node.get(exclusive), bool) and node.pop(exclusive) and bound in node:
                node[exclusive] = node.pop(bound)
        if self._is_older_draft and isinstance(node.get("dependencies"), dict):
            dependencies = node.pop("dependencies")
            names = {name: each for name, each in dependencies.items() if isinstance(each, list)}
            schemas = {name: each for name, each in dependencies.items() if not isinstance(each, list)}
            node.update({"dependentRequired": names} if names else {})
            node.update({"dependentSchemas": schemas} if schemas else {})
        return node


def close_objects(schema: Schema) -> None:
    """Close objects with named properties, because undeclared properties were not reviewed.

    An object that several schemas describe is left open and marked `x-open`, because closing one of them would forbid
    what the others allow.
    """
    has_shared_refs = any(
        "$ref" in node
        and (len(node.keys() & {"properties", "required"}) > 0 or _PARTIAL_KEYWORDS.intersection(map(str, path)))
        for path, node in walk_schema(schema)
    )
    stack: list[tuple[Path, Any, bool]] = [((), schema, True)]
    while stack:
        path, node, is_whole = stack.pop()
        if not isinstance(node, dict):
            continue
        if is_open(node):
            is_explicit = "additionalProperties" in node or "unevaluatedProperties" in node
            has_names = bool(node.get("properties")) or ("properties" in node and not path)
            if is_whole and has_names and not is_explicit and not _COMBINING_KEYWORDS.intersection(node):
                node["additionalProperties"] = False
            elif not _PARTIAL_KEYWORDS.intersection(map(str, path)):
                node["x-open"] = True
        has_siblings = "properties" in node or bool(_COMBINING_KEYWORDS.intersection(node) - _BRANCH_KEYWORDS)
        for step, child in iter_subschemas(node):
            is_child_whole = True
            if step[0] in _PARTIAL_KEYWORDS:
                is_child_whole = False
            elif step[0] in _BRANCH_KEYWORDS:
                is_child_whole = is_whole and not has_siblings
            elif step[0] == "$defs":
                is_child_whole = not has_shared_refs
            stack.append((path + step, child, is_child_whole))


def _mark_open_properties(schema: Schema) -> None:
    """Mark properties without a type as `x-open`; a property that is `false` stays forbidden."""
    for _, node in walk_schema(schema):
        properties = node.get("properties")
        if not isinstance(properties, dict):
            continue
        for name, part in properties.items():
            if isinstance(part, bool):
                properties[name] = {"x-open": True} if part else {"not": {}, "x-open": True}
            elif isinstance(part, dict) and not has_type_constraint(resolve_refs(schema, part)):
                part["x-open"] = True


def _drop_invalid_hints(schema: Schema) -> None:
    """Drop defaults and examples that do not match their schema; servers often write `null` for an optional string."""
    nodes = [node for _, node in walk_schema(schema)]
    most = min(_MAX_HINTS, _MAX_COMPILED // len(nodes))
    holders = [node for node in nodes if "default" in node or "examples" in node]
    for count, node in enumerate(holders):
        is_valid = _build_hint_check(schema, node) if count < most else None
        if is_valid is None or ("default" in node and not is_valid(node["default"])):
            node.pop("default", None)
        examples = node.pop("examples", None)
        if is_valid is not None and isinstance(examples, list):
            valid_examples = [each for each in examples if is_valid(each)]
            node.update({"examples": valid_examples} if valid_examples else {})


def _build_hint_check(schema: Schema, node: Schema) -> Callable[[Any], bool] | None:
    try:
        validator = compile_schema({"$defs": schema.get("$defs", {}), **node})
    except BadSchema:
        return None

    def is_valid(value: Any) -> bool:
        try:
            canonicalize({"value": value})
        except NotCanonical:
            return False
        return validator.is_valid(value)

    return is_valid


def _is_enforceable_pattern(pattern: str) -> bool:
    try:
        compile_pattern(pattern)
        compile_schema({"pattern": pattern})
    except (InvalidPattern, BadSchema):
        return False
    return True
