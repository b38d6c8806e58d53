"""Read JSON Schemas for comparison: parts of a document, their references, and their text without explanations."""

import re
from collections.abc import Iterator
from typing import Any, Final, Self

import orjson

from deputize.catalog.schemas import resolve_pointer

# Keywords that only explain a value; validators ignore them.
_NOTES: Final = frozenset(
    {
        "title", "description", "examples", "default", "deprecated", "readOnly", "writeOnly", "$comment", "$schema",
        "$anchor", "contentEncoding", "contentMediaType", "contentSchema",
    }
)  # fmt: skip
# Where parts wait to be referred to.
_DEFINITIONS: Final = frozenset({"$defs", "definitions"})
# Keywords that change what references mean. Admission refuses them; a file that is only compared can have them.
_REDIRECTIONS: Final = frozenset({"$id", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"})
_SINGLE_SCHEMAS: Final = frozenset(
    {
        "additionalProperties", "unevaluatedProperties", "propertyNames", "items", "unevaluatedItems", "contains",
        "not", "if", "then", "else",
    }
)  # fmt: skip
_SCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMA_MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas"}) | _DEFINITIONS
# Their members have no order.
_SETS: Final = frozenset({"required", "enum", "type"})
_PLAIN_REFERENCE: Final = re.compile(r"#/\$defs/[^/%]+")
_ABSENT: Final = object()


class TooComplex(Exception):
    """A comparison took more steps than it may."""


class StepBudget:
    """The steps that a comparison may still take, so that no schema can make it take long."""

    __slots__ = ("_left",)

    def __init__(self, steps: float) -> None:
        self._left = steps

    def spend(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooComplex


def is_note(keyword: str) -> bool:
    """Tell whether a keyword restricts nothing: it explains a value, marks it for this gateway or holds definitions."""
    return keyword in _NOTES or keyword in _DEFINITIONS or keyword.startswith("x-")


class SchemaPart:
    """A schema inside a document. Parts of one document at one place are equal as keys."""

    __slots__ = ("document", "key", "schema")

    def __init__(self, document: "SchemaDocument", schema: Any) -> None:
        self.document = document
        self.schema = schema
        # Objects of a document live as long as it does, so that their ids identify them.
        self.key: tuple[int, int] = (id(document), id(schema)) if isinstance(schema, dict) else (0, int(bool(schema)))

    def get_part(self, schema: Any) -> "SchemaPart":
        """Return another schema of the same document."""
        return SchemaPart(self.document, schema)

    def get_text(self, keyword: str | None = None) -> bytes | None:
        """Return the text of the part, or of one of its keywords; None if its meaning depends on its document."""
        value = self.schema if keyword is None else self.schema.get(keyword, _ABSENT)
        return None if value is _ABSENT else self.document.get_text(keyword, value)

    def resolve(self) -> Self | None:
        """Return the part that `$ref` points to; None if there is none."""
        target = self.document.resolve(self.schema["$ref"])
        return None if target is None else type(self)(self.document, target)


class SchemaDocument:
    """A whole schema. `text` is the same for two schemas that differ in explanations and order only."""

    def __init__(self, root: Any, budget: StepBudget) -> None:
        self.budget = budget
        self.root = SchemaPart(self, root)
        self._texts: dict[tuple[str | None, int], bytes | None] = {}
        self._references: list[Any] = []
        self.has_redirections = False
        self.text = _write(self._normalize(root, None, with_definitions=True))
        definitions = root.get("$defs", {}) if isinstance(root, dict) else {}
        # A reference to anything but a definition may lead to what the text leaves out.
        self.has_plain_references = all(
            isinstance(each, str) and _PLAIN_REFERENCE.fullmatch(each) for each in self._references
        )
        # Parts of two documents with the same definitions can be compared by their text, references included.
        self._definitions = _write(self._normalize(definitions, "$defs", with_definitions=True))
        self._is_shared = False

    def is_same(self, other: "SchemaDocument") -> bool:
        """Tell whether both documents mean the same because they say the same."""
        return self.text == other.text and self.has_plain_references and other.has_plain_references

    def share_definitions(self, other: "SchemaDocument") -> None:
        """Let both documents write references as text if their definitions are the same."""
        is_shared = self.has_plain_references and other.has_plain_references and self._definitions == other._definitions
        self._is_shared = other._is_shared = is_shared

    def resolve(self, reference: Any) -> Any:
        # Validators decode what is percent-encoded, which is not done here.
        if not isinstance(reference, str) or "%" in reference or self.has_redirections:
            return None
        target = resolve_pointer(self.root.schema, reference)
        if isinstance(target, dict):
            # What stands outside of the known keywords was not read yet, and may redirect references, too.
            self.get_text(None, target)
        return target if isinstance(target, dict | bool) and not self.has_redirections else None

    def get_text(self, keyword: str | None, value: Any) -> bytes | None:
        if self.has_redirections or (keyword == "$ref" and not self._is_shared):
            return None
        if not isinstance(value, dict | list):
            return _write(value)
        key = (keyword, id(value))
        if key not in self._texts:
            self._references = []
            text = _write(self._normalize(value, keyword, with_definitions=False))
            is_complete = not self._references or self._is_shared
            self._texts[key] = text if is_complete and not self.has_redirections else None
        return self._texts[key]

    def _normalize(self, value: Any, keyword: str | None, *, with_definitions: bool) -> Any:
        """Rewrite what stands under a keyword (a schema, if None) without explanations and without order of sets."""
        if keyword is None or keyword in _SINGLE_SCHEMAS:
            return self._normalize_schema(value, with_definitions=with_definitions)
        if keyword in _SCHEMA_LISTS and isinstance(value, list):
            return [self._normalize_schema(each, with_definitions=with_definitions) for each in value]
        if keyword in _SCHEMA_MAPS and isinstance(value, dict):
            return {
                name: self._normalize_schema(each, with_definitions=with_definitions) for name, each in value.items()
            }
        if keyword in _SETS and isinstance(value, list):
            return sorted(value, key=_write)
        return value

    def _normalize_schema(self, schema: Any, *, with_definitions: bool) -> Any:
        if not isinstance(schema, dict):
            return schema
        self.budget.spend()
        if "$ref" in schema:
            self._references.append(schema["$ref"])
        self.has_redirections = self.has_redirections or not _REDIRECTIONS.isdisjoint(schema)
        return {
            keyword: self._normalize(value, keyword, with_definitions=with_definitions)
            for keyword, value in schema.items()
            if not is_note(keyword) or (with_definitions and keyword in _DEFINITIONS)
        }


def list_keywords(part: SchemaPart) -> Iterator[tuple[str, Any]]:
    """Yield the keywords of an object schema that can restrict values, with what stands under them."""
    return ((keyword, value) for keyword, value in part.schema.items() if not is_note(keyword))


def _write(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
