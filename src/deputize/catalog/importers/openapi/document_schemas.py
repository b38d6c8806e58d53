"""Convert the schemas of an OpenAPI document to JSON Schema 2020-12, with the definitions that they refer to.

Each definition is converted once and kept for all operations. In a request, properties that only the service sets
(`readOnly`) are left out; in a response, required properties that it never sends (`writeOnly`) are not required.
"""

import re
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Literal

import orjson

from deputize.catalog.importers.openapi.document import Json, OpenApiDocument, UnsupportedOperation
from deputize.core.value_types import frozen

Direction = Literal["request", "response"]
# What a result is validated against besides its nearest definitions is cut off here, and listed as not enforced.
MAX_RESPONSE_SCHEMA_BYTES: Final = 16_384
_MAX_SCHEMA_DEPTH: Final = 50
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
# Keywords that say nothing about values.
_DROPPED: Final = frozenset(
    {"discriminator", "xml", "externalDocs", "nullable", "example", "readOnly", "writeOnly", "deprecated", "$schema"}
)
# Texts that help to write a request, and only take space in a response.
_DROPPED_IN_RESPONSES: Final = frozenset({"title", "description", "examples", "default", "$comment"})
# Formats that OpenAPI defines: no further rule for a JSON value, or the rule beside it.
_FORMATS: Final[Mapping[str, Json]] = {
    "int32": {"minimum": -(2**31), "maximum": 2**31 - 1},
    "int64": {}, "float": {}, "double": {}, "password": {}, "binary": {}, "byte": {"contentEncoding": "base64"},
}  # fmt: skip
_SCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMA_MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs"})
_SCHEMAS: Final = frozenset(
    {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedProperties",
     "unevaluatedItems", "contentSchema"}
)  # fmt: skip


@frozen
class _ConvertedDefinition:
    schema: Any
    references: tuple[str, ...]
    size: int


class SchemaConverter:
    """Converts schemas of one document in one direction, and remembers the definitions."""

    def __init__(self, document: OpenApiDocument, direction: Direction) -> None:
        self._document = document
        self._direction = direction
        self._definitions: dict[str, _ConvertedDefinition] = {}
        self._names: dict[str, str] = {}

    def convert(self, schema: Any) -> tuple[Any, list[str]]:
        """Convert a schema, and list the references in it; they point to `#/$defs/…`."""
        references: list[str] = []
        return self._convert_node(schema, references, 0), references

    def collect_definitions(self, references: list[str]) -> Json:
        """Collect everything that the references reach, by the names in `$defs`."""
        definitions: Json = {}
        queue = deque(references)
        while queue:
            reference = queue.popleft()
            name = self._names[reference]
            if name not in definitions:
                definition = self._load_definition(reference)
                definitions[name] = definition.schema
                queue.extend(definition.references)
        return definitions

    def collect_nearest_definitions(self, references: list[str], max_bytes: int) -> tuple[Json, list[str]]:
        """Collect the nearest definitions up to a size. The others accept anything; their names are returned too."""
        definitions: Json = {}
        cut_names: list[str] = []
        queue, size = deque(references), 0
        while queue:
            reference = queue.popleft()
            name = self._names[reference]
            if name in definitions:
                continue
            definition = self._load_definition(reference)
            size += definition.size
            if size > max_bytes:
                definitions[name] = {}
                cut_names.append(name)
            else:
                definitions[name] = definition.schema
                queue.extend(definition.references)
        return definitions, cut_names

    def _load_definition(self, reference: str) -> _ConvertedDefinition:
        definition = self._definitions.get(reference)
        if definition is None:
            references: list[str] = []
            schema = self._convert_node(self._document.find(reference), references, 0)
            size = len(orjson.dumps(schema))
            definition = _ConvertedDefinition(schema=schema, references=tuple(dict.fromkeys(references)), size=size)
            self._definitions[reference] = definition
        return definition

    def _name_definition(self, reference: str) -> str:
        if reference not in self._names:
            last = _UNSAFE.sub("_", reference.rpartition("/")[2].replace("~1", "_"))[:80] or "schema"
            in_use, name, number = set(self._names.values()), last, 1
            while name in in_use:
                number += 1
                name = f"{last}_{number}"
            self._names[reference] = name
        return self._names[reference]

    def _convert_node(self, node: Any, references: list[str], depth: int) -> Any:
        if not isinstance(node, dict):
            return node if isinstance(node, bool) else {}
        if depth > _MAX_SCHEMA_DEPTH:
            raise UnsupportedOperation(f"a schema is nested deeper than {_MAX_SCHEMA_DEPTH} levels")
        reference = node.get("$ref")
        if isinstance(reference, str):
            return self._convert_reference(node, reference, references, depth)
        result: Json = {}
        for keyword, value in node.items():
            if not isinstance(keyword, str) or keyword.startswith("x-") or keyword in _DROPPED:
                continue
            if self._direction == "response" and keyword in _DROPPED_IN_RESPONSES:
                continue
            result[keyword] = self._convert_keyword(keyword, value, references, depth)
        self._apply_direction(node, result)
        _apply_format(result)
        if self._direction == "request" and "example" in node and "examples" not in result:
            result["examples"] = [node["example"]]
        return _apply_nullable(result) if self._document.is_version_30 and node.get("nullable") is True else result

    def _convert_reference(self, node: Json, reference: str, references: list[str], depth: int) -> Json:
        self._document.find(reference)
        references.append(reference)
        result: Json = {"$ref": f"#/$defs/{self._name_definition(reference)}"}
        if self._document.is_version_30:
            # Siblings of a reference have no meaning in 3.0, but a description is often written there.
            siblings = {key: node[key] for key in ("description",) if key in node and self._direction == "request"}
        else:
            siblings = self._convert_node({k: v for k, v in node.items() if k != "$ref"}, references, depth + 1)
        result = {**siblings, **result}
        return _apply_nullable(result) if self._document.is_version_30 and node.get("nullable") is True else result

    def _convert_keyword(self, keyword: str, value: Any, references: list[str], depth: int) -> Any:
        if keyword in _SCHEMA_MAPS and isinstance(value, dict):
            return {name: self._convert_node(each, references, depth + 1) for name, each in value.items()}
        if keyword in _SCHEMA_LISTS and isinstance(value, list):
            return [self._convert_node(each, references, depth + 1) for each in value]
        if keyword in _SCHEMAS:
            return self._convert_node(value, references, depth + 1)
        return value

    def _apply_direction(self, node: Json, result: Json) -> None:
        """Leave out what only the service sets from a request, and do not require what it never sends."""
        properties = node.get("properties")
        if not isinstance(properties, dict):
            return
        mark = "readOnly" if self._direction == "request" else "writeOnly"
        hidden_names = {name for name, each in properties.items() if isinstance(each, dict) and each.get(mark) is True}
        if not hidden_names:
            return
        result["properties"] = {name: each for name, each in result["properties"].items() if name not in hidden_names}
        if isinstance(result.get("required"), list):
            result["required"] = [name for name in result["required"] if name not in hidden_names]


def _apply_format(schema: Json) -> None:
    """Replace a format that OpenAPI defines by what it means."""
    rule = _FORMATS.get(str(schema.get("format")))
    if rule is not None:
        del schema["format"]
        for keyword, value in rule.items():
            schema.setdefault(keyword, value)


def _apply_nullable(schema: Json) -> Json:
    """Write `nullable` of OpenAPI 3.0 as a type."""
    kind = schema.get("type")
    if isinstance(kind, str) and "enum" not in schema:
        return {**schema, "type": [kind, "null"]}
    if isinstance(kind, str):
        values = schema["enum"] if isinstance(schema["enum"], list) else []
        return {**schema, "type": [kind, "null"], "enum": [*values, *([] if None in values else [None])]}
    return {"anyOf": [schema, {"type": "null"}]}
