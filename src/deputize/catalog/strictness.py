"""What a schema must be before anyone is held to it: closed, local, shallow, explained, its examples true.

Used by `admission.py`, which adds what is not about schemas.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from deputize.catalog.schemas import (
    DRAFT,
    FORMATS,
    MAX_DEPTH,
    SENSITIVITIES,
    BadSchema,
    Validator,
    compile_schema,
    depth,
    follow,
    pointer,
    walk,
)
from deputize.core.contract import Schema

Path = tuple[str | int, ...]

# Under these a schema only adds to another one, which is the one that has to be closed.
_PARTIAL = frozenset({"allOf", "if", "then", "else", "not", "dependentSchemas"})
# `$anchor` is not among them: it only names a place, and no reference by name is admitted.
_ELSEWHERE = ("$id", "$dynamicRef", "$dynamicAnchor", "$recursiveRef")
MOST_FAULTS = 5
_META = Validator({"$ref": DRAFT}, offline=True)
_SAYS_WHAT = ("type", "enum", "const", "anyOf", "oneOf", "allOf")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """One thing that keeps a tool out, where it is, and what to do about it."""

    conjunct: str
    path: str
    reason: str
    fix: str


def schema_reasons(where: str, schema: Schema) -> Iterator[Reason]:
    """What any schema of a contract owes: it compiles, stays inside itself, and its marks mean something."""
    structure = list(structure_reasons(where, schema))
    if structure:
        yield from structure
        return
    details = [reason for path, node in walk(schema) for reason in _node_reasons(where, path, node)]
    yield from details
    if not details:
        try:
            compile_schema(schema)
        except BadSchema as error:
            yield _bad(where, (), f"is not valid JSON Schema 2020-12: {error}", "mend it at that place")


def structure_reasons(where: str, schema: Schema) -> Iterator[Reason]:
    """Faults so plain that nothing else about the schema can be asked."""
    if depth(schema) > 2 * MAX_DEPTH:
        yield _bad(where, (), f"nests deeper than {2 * MAX_DEPTH} levels", "flatten it, or move parts to $defs")
    elif schema.get("$schema", DRAFT) != DRAFT:
        yield _bad(where, ("$schema",), "is not JSON Schema 2020-12", f'leave "$schema" out, or write {DRAFT}')
    else:
        for error in islice(_META.iter_errors(schema), MOST_FAULTS):
            reason = f"is not valid JSON Schema 2020-12: {error.message}"
            yield _bad(where, tuple(error.instance_path), reason, "mend it at that place")


def _node_reasons(where: str, path: Path, node: Schema) -> Iterator[Reason]:
    reference = node.get("$ref")
    if reference is not None and not (isinstance(reference, str) and (reference + "/").startswith("#/")):
        yield _bad(where, (*path, "$ref"), "points outside this schema", 'put the part under "$defs" and refer to it')
    for keyword in _ELSEWHERE:
        if keyword in node:
            yield _bad(
                where,
                (*path, keyword),
                "lets references mean something else elsewhere",
                f"leave {keyword} out",
            )
    name = node.get("format")
    if isinstance(name, str) and name not in FORMATS:
        yield _bad(where, (*path, "format"), f"{name!r} is not enforced by anyone", "use a pattern, or leave it out")
    if str(node.get("x-sensitivity", "public")) not in SENSITIVITIES:
        known = ", ".join(sorted(SENSITIVITIES))
        yield _bad(where, (*path, "x-sensitivity"), "is not a known mark", f"write one of {known}")
    cost = node.get("x-token-cost", 0)
    if type(cost) is not int or cost < 0:
        yield _bad(where, (*path, "x-token-cost"), "is not a number of tokens", "write a whole number, 0 or more")


def input_reasons(schema: Schema) -> Iterator[Reason]:
    """What the input schema owes besides: an object, closed, each property of some kind, its examples true."""
    where = "input_schema"
    root = follow(schema, schema)
    if root.get("type") != "object":
        yield _bad(where, (), "does not describe an object", 'write "type": "object"')
    for path, node in walk(schema):
        if is_open(node) and not _PARTIAL.intersection(map(str, path)):
            fix = 'write "additionalProperties": false, or "x-open": true if any name will do'
            yield _bad(where, path, "lets in properties nobody declared", fix)
        for steps, part in _properties(path, node):
            yield from _property_reasons(schema, node, steps, part)


def explained_reasons(schema: Schema) -> Iterator[Reason]:
    """What whoever writes a tool for this gateway owes its callers: each property explained, with an example."""
    for path, node in walk(schema):
        for steps, part in _properties(path, node):
            full = follow(schema, part)
            full = full if isinstance(full, dict) else {}
            if not str(full.get("description", "")).strip():
                yield _bad("input_schema", steps, "has no description", "say in one sentence what it means")
            if not _speaks(schema, full):
                fix = 'give one that works, as in "examples": ["Ana"]'
                yield _bad("input_schema", steps, "has no example", fix)


def says_what(node: Any) -> bool:
    """Whether a schema, references followed, says what kind of value may stand there."""
    return isinstance(node, dict) and any(keyword in node for keyword in _SAYS_WHAT)


def _properties(path: Path, node: Schema) -> Iterator[tuple[Path, Any]]:
    properties = node.get("properties")
    if isinstance(properties, dict):
        yield from (((*path, "properties", name), part) for name, part in properties.items())


def is_open(node: Schema) -> bool:
    """An object that takes any property. A map whose values have a schema of their own is closed enough."""
    kinds = node.get("type")
    if isinstance(node.get("allOf"), list) and kinds is None:
        kinds = [part.get("type") for part in node["allOf"] if isinstance(part, dict) and "$ref" not in part]
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        return False
    rest = node.get("additionalProperties", node.get("unevaluatedProperties", True))
    return (rest is True or rest == {}) and node.get("x-open") is not True


def _property_reasons(root: Schema, holder: Schema, path: Path, part: Any) -> Iterator[Reason]:
    where = "input_schema"
    full = follow(root, part)
    if not says_what(full):
        if not (isinstance(full, dict) and full.get("x-open") is True):
            yield _bad(where, path, "may be anything at all", 'say its type, or "x-open": true if it is so')
        full = full if isinstance(full, dict) else {}
    if full.get("x-internal") is True and path[-1] in holder.get("required", ()):
        yield _bad(
            where,
            path,
            "is internal and required, so no call could be made",
            "take it out of required",
        )
    yield from _example_reasons(root, path, full)


def _speaks(root: Schema, node: Schema) -> bool:
    """Whether a reader sees what to write here: by example, by a closed choice, or by the parts inside."""
    if any(key in node for key in ("examples", "enum", "const", "default", "properties")):
        return True
    if node.get("type") in ("boolean", "null"):
        return True
    for key in ("anyOf", "oneOf"):
        branches = [follow(root, branch) for branch in node.get(key, ())]
        if branches:
            return all(isinstance(branch, dict) and _speaks(root, branch) for branch in branches)
    inside = follow(root, node.get("items", node.get("additionalProperties")))
    return isinstance(inside, dict) and bool(inside) and _speaks(root, inside)


def _example_reasons(root: Schema, path: Path, node: Schema) -> Iterator[Reason]:
    told: list[tuple[Path, Any]] = [
        (("examples", place), value) for place, value in enumerate(node.get("examples", []))
    ]
    if "default" in node:
        told.append((("default",), node["default"]))
    validator = _validator_of(root, node) if told else None
    for step, value in told:
        if validator is not None and not validator.is_valid(value):
            yield Reason(
                conjunct="contract_tests_passing",
                path=pointer(("input_schema", *path, *step)),
                reason="does not fit the property's own schema",
                fix="mend the value or the schema",
            )


def _validator_of(root: Schema, node: Schema) -> Validator | None:
    """A part of the schema compiled alone; what is wrong with it is told elsewhere."""
    try:
        return compile_schema({"$defs": root.get("$defs", {}), **node})
    except BadSchema:
        return None


def _bad(where: str, path: Path, reason: str, fix: str) -> Reason:
    return Reason(conjunct="schemas_valid", path=pointer((*where.split("/"), *path)), reason=reason, fix=fix)
