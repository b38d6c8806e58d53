"""Schemas as MCP servers write them, made into what this gateway enforces on every call.

Servers write for many clients and in several drafts. What can be said in JSON Schema 2020-12 is said in it; what cannot
be enforced here (a format nobody checks, a pattern that takes more than linear time) is left to the server and listed;
what would let a schema mean something else tomorrow (references out of it) stays, and is refused by admission.
References by the name of an `$anchor` are written as the way to it, where there is exactly one. Marks of our own
(`x-internal` and the like) are the operator's to set, so a server's are dropped.

Above: `mcp.py`. Below: `catalog/schemas.py`, `catalog/strictness.py`.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from deputize.catalog.exposed import MARK
from deputize.catalog.schemas import DRAFT, FORMATS, BadSchema, children, compile_schema, follow, pointer, walk
from deputize.catalog.strictness import Path, is_open, says_what
from deputize.core.canonical import NotCanonical, canonical
from deputize.core.contract import Schema
from deputize.core.frozen import frozen

STRUCTURED: Final = ("properties", "structured")
_OURS = frozenset({MARK, "x-internal", "x-sensitivity", "x-token-cost", "x-open"})
_LARGEST = 2**53 - 1
_UPPER = frozenset({"maximum", "exclusiveMaximum"})
_LOWER = frozenset({"minimum", "exclusiveMinimum"})
_ONE = frozenset(
    {"additionalProperties", "unevaluatedProperties", "propertyNames", "items", "additionalItems", "unevaluatedItems",
     "contains", "not", "if", "then", "else", "contentSchema"}
)  # fmt: skip
_MANY = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
# A schema under these, or beside them, says only a part of what may stand there: alone it cannot be closed.
_PARTS = frozenset({"allOf", "if", "then", "else", "not", "dependentSchemas"})
_BRANCHES = frozenset({"anyOf", "oneOf"})
_IN_PLACE = _PARTS | _BRANCHES | {"$ref"}
# A way that reads the same as part of an address and as a pointer.
_PLAIN_WAY = re.compile(r"[A-Za-z0-9$_./~-]*")
# Defaults and examples are hints. Each is checked by compiling its schema, and all definitions with it: there is a most
# of them, and of parts compiled for them.
_MOST_HINTS = 200
_MOST_COMPILED = 10_000


@frozen
class Taken:
    """A schema to hold calls to, and pointers to what its server said that is not enforced here."""

    schema: Schema
    unenforced: tuple[str, ...] = ()


def input_of(said: Schema) -> Taken:
    """The arguments. An object that names properties takes those alone, unless it says otherwise."""
    reader = _Reader(older=said.get("$schema", DRAFT) != DRAFT, place=("inputSchema",))
    schema = reader.read(said)
    if "$ref" not in schema:
        schema.setdefault("type", "object")
    _close(schema)
    _open_what_says_nothing(schema)
    _drop_false_hints(schema)
    return Taken(schema=schema, unenforced=tuple(reader.left))


def output_of(said: Schema | None) -> Taken:
    """The envelope a result comes in: content blocks, and structured as well what the server promises to structure."""
    content = {"type": "array", "items": {"type": "object"}}
    if said is None:
        schema = {"type": "object", "properties": {"content": content, "structured": {}}, "required": ["content"]}
        return Taken(schema=schema)
    reader = _Reader(older=said.get("$schema", DRAFT) != DRAFT, place=("outputSchema",))
    inner = moved({key: value for key, value in reader.read(said).items() if key != "$schema"}, "", pointer(STRUCTURED))
    parts = {"content": content, "structured": inner}
    schema = {"type": "object", "properties": parts, "required": ["content", "structured"]}
    return Taken(schema=schema, unenforced=tuple(reader.left))


def moved(schema: Schema, before: str, after: str) -> Schema:
    """A copy of a schema that stood at one place of a document, to stand at another: its references follow it."""
    old, new = f"#{before}", f"#{after}"

    def at(node: Schema) -> Schema:
        reference = node.get("$ref")
        if isinstance(reference, str) and (reference == old or reference.startswith(old + "/")):
            return {**node, "$ref": new + reference.removeprefix(old)}
        return node

    return _mapped(schema, at)


def _by_the_way(schema: Schema) -> Schema:
    """References by name as references by the way from the root. A name that stands twice, or inside a part with an
    address of its own, may mean another place: such a reference stays as it is, which nobody admits.
    """
    nodes = list(walk(schema))
    if any("$id" in node for _, node in nodes):
        return schema
    places: dict[str, list[str]] = {}
    for path, node in nodes:
        for name in (node.get("$anchor"), node.get("$dynamicAnchor")):
            if isinstance(name, str):
                places.setdefault(f"#{name}", []).append(pointer(path))

    def at(node: Schema) -> Schema:
        reference = node.get("$ref")
        found = places.get(reference, []) if isinstance(reference, str) else []
        return {**node, "$ref": f"#{found[0]}"} if len(found) == 1 and _PLAIN_WAY.fullmatch(found[0]) else node

    return _mapped(schema, at) if places else schema


def _mapped(node: Schema, at: Callable[[Schema], Schema]) -> Schema:
    """A copy with `at` applied to every object schema, and to nothing that only looks like one."""
    made = dict(at(node))
    for keyword, value in node.items():
        if keyword in _NAMED and isinstance(value, dict):
            made[keyword] = {name: _inside(each, at) for name, each in value.items()}
        elif keyword in _MANY and isinstance(value, list):
            made[keyword] = [_inside(each, at) for each in value]
        elif keyword in _ONE:
            made[keyword] = _inside(value, at)
    return made


def _inside(value: Any, at: Callable[[Schema], Schema]) -> Any:
    return _mapped(value, at) if isinstance(value, dict) else value


class _Reader:
    """Copies a schema into the draft that is enforced here, and notes what it leaves out."""

    def __init__(self, *, older: bool, place: Path) -> None:
        self._older = older
        self._place = place
        self.left: list[str] = []

    def read(self, said: Schema) -> Schema:
        made = self._node(said, ())
        # Before 2019 nothing was named this way, so there the word means nothing.
        return made if self._older else _by_the_way(made)

    def _any(self, value: Any, path: Path) -> Any:
        return self._node(value, path) if isinstance(value, dict) else value

    def _node(self, node: Schema, path: Path) -> Schema:
        made: Schema = {}
        for keyword, value in node.items():
            if keyword in _OURS or self._names_itself(keyword, value, path):
                continue
            if self._is_beyond(keyword, value):
                self.left.append(pointer((*self._place, *path, keyword)))
            else:
                made[keyword] = self._held(keyword, value, (*path, keyword))
        return self._today(made)

    def _names_itself(self, keyword: str, value: Any, path: Path) -> bool:
        """Where a schema lives and how it is written; of use to nobody here. Inside, an `$id` moves references."""
        return (keyword == "$id" and not path) or (keyword == "$schema" and (bool(path) or value != DRAFT))

    def _is_beyond(self, keyword: str, value: Any) -> bool:
        if keyword == "format":
            return isinstance(value, str) and value not in FORMATS
        if keyword == "pattern":
            return isinstance(value, str) and not _compiles({"pattern": value})
        # No call carries larger whole numbers, so bounds beyond them bound nothing.
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and ((keyword in _UPPER and value > _LARGEST) or (keyword in _LOWER and value < -_LARGEST))

    def _held(self, keyword: str, value: Any, path: Path) -> Any:
        if keyword in _NAMED and isinstance(value, dict):
            return {name: self._any(each, (*path, name)) for name, each in value.items()}
        if keyword in _MANY and isinstance(value, list):
            return [self._any(each, (*path, place)) for place, each in enumerate(value)]
        if keyword in _ONE:
            return self._any(value, path)
        if keyword == "dependencies" and self._older and isinstance(value, dict):
            return {name: self._any(each, (*path, name)) for name, each in value.items()}
        return value

    def _today(self, node: Schema) -> Schema:
        """What earlier drafts spelt otherwise."""
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
        if self._older and isinstance(node.get("dependencies"), dict):
            wanted = node.pop("dependencies")
            names = {name: each for name, each in wanted.items() if isinstance(each, list)}
            schemas = {name: each for name, each in wanted.items() if not isinstance(each, list)}
            node.update({"dependentRequired": names} if names else {})
            node.update({"dependentSchemas": schemas} if schemas else {})
        return node


def _close(schema: Schema) -> None:
    """What a server did not declare nobody agreed to: objects that name their properties take no others. Where other
    schemas speak of the same object, that would forbid what they allow, so it is left open and marked as such.
    """
    shared = any(
        "$ref" in node and (len(node.keys() & {"properties", "required"}) > 0 or _PARTS.intersection(map(str, path)))
        for path, node in walk(schema)
    )
    waiting: list[tuple[Path, Any, bool]] = [((), schema, True)]
    while waiting:
        path, node, whole = waiting.pop()
        if not isinstance(node, dict):
            continue
        if is_open(node):
            said = "additionalProperties" in node or "unevaluatedProperties" in node
            names = bool(node.get("properties")) or ("properties" in node and not path)
            if whole and names and not said and not _IN_PLACE.intersection(node):
                node["additionalProperties"] = False
            elif not _PARTS.intersection(map(str, path)):
                node["x-open"] = True
        beside = "properties" in node or bool(_IN_PLACE.intersection(node) - _BRANCHES)
        for step, child in children(node):
            inside = True
            if step[0] in _PARTS:
                inside = False
            elif step[0] in _BRANCHES:
                inside = whole and not beside
            elif step[0] == "$defs":
                inside = not shared
            waiting.append((path + step, child, inside))


def _open_what_says_nothing(schema: Schema) -> None:
    """A property that may be anything is marked as such; one that may not be at all stays so."""
    for _, node in walk(schema):
        properties = node.get("properties")
        if not isinstance(properties, dict):
            continue
        for name, part in properties.items():
            if isinstance(part, bool):
                properties[name] = {"x-open": True} if part else {"not": {}, "x-open": True}
            elif isinstance(part, dict) and not says_what(follow(schema, part)):
                part["x-open"] = True


def _drop_false_hints(schema: Schema) -> None:
    """Defaults and examples that the schema itself would refuse; `null` for a text that may be left out is a habit."""
    nodes = [node for _, node in walk(schema)]
    most = min(_MOST_HINTS, _MOST_COMPILED // len(nodes))
    holders = [node for node in nodes if "default" in node or "examples" in node]
    for count, node in enumerate(holders):
        fits = _fitting(schema, node) if count < most else None
        if fits is None or ("default" in node and not fits(node["default"])):
            node.pop("default", None)
        examples = node.pop("examples", None)
        if fits is not None and isinstance(examples, list):
            kept = [each for each in examples if fits(each)]
            node.update({"examples": kept} if kept else {})


def _fitting(schema: Schema, node: Schema) -> Callable[[Any], bool] | None:
    try:
        validator = compile_schema({"$defs": schema.get("$defs", {}), **node})
    except BadSchema:
        return None

    def fits(value: Any) -> bool:
        try:
            canonical({"value": value})
        except NotCanonical:
            return False
        return validator.is_valid(value)

    return fits


def _compiles(schema: Schema) -> bool:
    try:
        compile_schema(schema)
    except BadSchema:
        return False
    return True
