"""Check that schemas can be enforced: closed, self-contained, shallow, described, with valid examples.

`registration_rules.py` uses these checks and adds the conditions that are not about schemas.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from deputize.catalog.schema_cost import MAX_EVALUATIONS, MAX_PARTS, MAX_PATTERN_COST, iterate_patterns, measure_schema
from deputize.catalog.schemas import (
    DRAFT,
    FORMATS,
    MAX_DEPTH,
    SENSITIVITIES,
    BadSchema,
    Validator,
    compile_schema,
    format_pointer,
    iterate_errors,
    measure_depth,
    resolve_refs,
    walk_schema,
)
from deputize.core.contract.contract import Schema
from deputize.core.contract.publication import has_placeholder
from deputize.core.patterns import InvalidPattern, compile_pattern

Path = tuple[str | int, ...]

# A schema under these keywords only adds to the schema around it; that one must be closed.
_PARTIAL_KEYWORDS = frozenset({"allOf", "if", "then", "else", "not", "dependentSchemas"})
# `$anchor` is allowed: it only names a place, and references by name are rejected anyway.
_FORBIDDEN_REFERENCES = ("$id", "$dynamicRef", "$dynamicAnchor", "$recursiveRef")
MOST_FAULTS = 5
LACKS_DESCRIPTION, LACKS_EXAMPLE = "has no description", "has no example"
NOT_CALLABLE = "is not a callable tool"
_ONLY_JSON = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_NULL = re.compile(rb"[:,\[]null[,\]}]")
# Digests of schemas without faults, so at most a few hundred kilobytes.
_MAX_REMEMBERED = 4_096
_correct_schemas: set[bytes] = set()
_META_SCHEMA = Validator({"$ref": DRAFT}, offline=True)
_TYPE_KEYWORDS = ("type", "enum", "const", "anyOf", "oneOf", "allOf")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """One reason why a tool is not admitted: the condition, the path, what is wrong and how to fix it."""

    conjunct: str
    path: str
    reason: str
    fix: str


def check_schema(where: str, schema: Schema) -> Iterator[Reason]:
    """Check any schema of a contract: it compiles, refers only to itself, and its `x-` marks are known.

    What was found to be correct is remembered: the operations of a service share most of their schemas.
    """
    key = _compute_key(schema)
    if key is not None and key in _correct_schemas:
        return
    reasons = list(_find_schema_faults(where, schema))
    if key is not None and not reasons:
        if len(_correct_schemas) >= _MAX_REMEMBERED:
            _correct_schemas.clear()
        _correct_schemas.add(key)
    yield from reasons


def _compute_key(schema: Schema) -> bytes | None:
    """Compute a digest that only equal JSON has; None for what has none, such as a number of more than 64 bits."""
    try:
        content = orjson.dumps(schema, option=_ONLY_JSON)
    except orjson.JSONEncodeError:
        return None
    # NaN, which no contract may have, is written as null.
    return None if _NULL.search(content) else hashlib.sha256(content).digest()


def _find_schema_faults(where: str, schema: Schema) -> Iterator[Reason]:
    structure = list(check_structure(where, schema))
    if structure:
        yield from structure
        return
    nodes = list(walk_schema(schema))
    details = [reason for path, node in nodes for reason in _check_node(where, path, node)]
    details += [] if details else _check_cost(where, schema, len(nodes))
    yield from details
    if not details:
        try:
            compile_schema(schema)
        except BadSchema as error:
            yield _make_reason(where, (), f"is not valid JSON Schema 2020-12: {error}", "correct the schema there")


def check_structure(where: str, schema: Schema) -> Iterator[Reason]:
    """Check what must hold before the schema can be checked any further: depth, draft and meta-schema."""
    if measure_depth(schema) > 2 * MAX_DEPTH:
        fix = "flatten it, or move parts to $defs"
        yield _make_reason(where, (), f"is nested deeper than {2 * MAX_DEPTH} levels", fix)
    elif schema.get("$schema", DRAFT) != DRAFT:
        yield _make_reason(where, ("$schema",), "is not JSON Schema 2020-12", f'remove "$schema", or write {DRAFT}')
    else:
        for error in islice(iterate_errors(_META_SCHEMA, schema), MOST_FAULTS):
            reason = f"is not valid JSON Schema 2020-12: {error.message}"
            yield _make_reason(where, tuple(error.instance_path), reason, "correct the schema there")


def _check_node(where: str, path: Path, node: Schema) -> Iterator[Reason]:
    reference = node.get("$ref")
    if reference is not None and not (isinstance(reference, str) and (reference + "/").startswith("#/")):
        yield _make_reason(
            where, (*path, "$ref"), "points outside this schema", 'put the part under "$defs" and refer to it'
        )
    for keyword in _FORBIDDEN_REFERENCES:
        if keyword in node:
            yield _make_reason(
                where,
                (*path, keyword),
                "changes what references point to",
                f"remove {keyword}",
            )
    yield from _check_patterns(where, path, node)
    name = node.get("format")
    if isinstance(name, str) and name not in FORMATS:
        yield _make_reason(
            where, (*path, "format"), f"{name!r} is not a format that is enforced", "use a pattern, or remove it"
        )
    if str(node.get("x-sensitivity", "public")) not in SENSITIVITIES:
        choices = ", ".join(sorted(SENSITIVITIES))
        yield _make_reason(where, (*path, "x-sensitivity"), "is not a known level", f"write one of {choices}")
    cost = node.get("x-token-cost", 0)
    if type(cost) is not int or cost < 0:
        yield _make_reason(
            where, (*path, "x-token-cost"), "is not a number of tokens", "write a whole number, 0 or more"
        )


def _check_patterns(where: str, path: Path, node: Schema) -> Iterator[Reason]:
    for steps, pattern in iterate_patterns(node):
        try:
            compile_pattern(pattern)
        except InvalidPattern as error:
            fix = "write it without look-around, backreferences and long repetitions, or check the value in the tool"
            yield _make_reason(where, (*path, *steps), f"has a pattern that {error}", fix)


def _check_cost(where: str, schema: Schema, part_count: int) -> Iterator[Reason]:
    if part_count > MAX_PARTS:
        fix = "move parts that repeat to $defs, or use fewer properties"
        yield _make_reason(where, (), f"has more than {MAX_PARTS:,} parts", fix)
        return
    cost = measure_schema(schema)
    if cost.pattern_cost > MAX_PATTERN_COST:
        reason = f"has patterns that take {cost.pattern_cost:,} steps for each character; the limit is"
        yield _make_reason(where, (), f"{reason} {MAX_PATTERN_COST:,}", "use fewer or simpler patterns")
    if cost.evaluations > MAX_EVALUATIONS:
        reason = f"combines its parts so often that one value needs more than {MAX_EVALUATIONS:,} checks"
        yield _make_reason(where, (), reason, "refer to each part once, instead of in every branch")
    if cost.is_exponential:
        reason = "refers to itself and uses unevaluatedProperties or unevaluatedItems, which takes exponential time"
        yield _make_reason(where, (), reason, 'write "additionalProperties" or "items" instead')


def check_input_schema(schema: Schema) -> Iterator[Reason]:
    """Check the input schema: it is a closed object, every property has a type, and examples are valid."""
    where = "input_schema"
    root = resolve_refs(schema, schema)
    if root.get("type") != "object":
        yield _make_reason(where, (), "does not describe an object", 'write "type": "object"')
    for path, node in walk_schema(schema):
        if is_open(node) and not _PARTIAL_KEYWORDS.intersection(map(str, path)):
            fix = 'write "additionalProperties": false, or "x-open": true if any name is allowed'
            yield _make_reason(where, path, "accepts undeclared properties", fix)
        for steps, part in _iter_properties(path, node):
            yield from _check_property(schema, node, steps, part)


def check_descriptions(schema: Schema) -> Iterator[Reason]:
    """Check that every property has a description and an example, as tools written for this gateway must."""
    for path, node in walk_schema(schema):
        for steps, part in _iter_properties(path, node):
            full = resolve_refs(schema, part)
            full = full if isinstance(full, dict) else {}
            description = str(full.get("description", ""))
            if not description.strip() or has_placeholder(description):
                yield _make_reason("input_schema", steps, LACKS_DESCRIPTION, "describe it in one sentence")
            if not _has_example(schema, full):
                fix = 'add a valid one, as in "examples": ["Ana"]'
                yield _make_reason("input_schema", steps, LACKS_EXAMPLE, fix)


def has_type_constraint(node: Any) -> bool:
    """Tell whether a schema with resolved references restricts the type of its value."""
    return isinstance(node, dict) and any(keyword in node for keyword in _TYPE_KEYWORDS)


def _iter_properties(path: Path, node: Schema) -> Iterator[tuple[Path, Any]]:
    properties = node.get("properties")
    if isinstance(properties, dict):
        yield from (((*path, "properties", name), part) for name, part in properties.items())


def is_open(node: Schema) -> bool:
    """Tell whether an object accepts any property. A map whose values have a schema counts as closed."""
    kinds = node.get("type")
    if isinstance(node.get("allOf"), list) and kinds is None:
        kinds = [part.get("type") for part in node["allOf"] if isinstance(part, dict) and "$ref" not in part]
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        return False
    rest = node.get("additionalProperties", node.get("unevaluatedProperties", True))
    return (rest is True or rest == {}) and node.get("x-open") is not True


def _check_property(root: Schema, holder: Schema, path: Path, part: Any) -> Iterator[Reason]:
    where = "input_schema"
    full = resolve_refs(root, part)
    if not has_type_constraint(full):
        if not (isinstance(full, dict) and full.get("x-open") is True):
            yield _make_reason(where, path, "has no type", 'set "type", or "x-open": true if any value is allowed')
        full = full if isinstance(full, dict) else {}
    if full.get("x-internal") is True and path[-1] in holder.get("required", ()):
        yield _make_reason(
            where,
            path,
            "is internal and required, so no call could be valid",
            "remove it from required",
        )
    yield from _check_examples(root, path, full)


def _has_example(root: Schema, node: Schema) -> bool:
    """Tell whether a property shows what to write: by an example, a closed choice, or its own properties."""
    if any(key in node for key in ("examples", "enum", "const", "default", "properties")):
        return True
    if node.get("type") in ("boolean", "null"):
        return True
    for key in ("anyOf", "oneOf"):
        branches = [resolve_refs(root, branch) for branch in node.get(key, ())]
        if branches:
            return all(isinstance(branch, dict) and _has_example(root, branch) for branch in branches)
    inside = resolve_refs(root, node.get("items", node.get("additionalProperties")))
    return isinstance(inside, dict) and bool(inside) and _has_example(root, inside)


def _check_examples(root: Schema, path: Path, node: Schema) -> Iterator[Reason]:
    samples: list[tuple[Path, Any]] = [
        (("examples", place), value) for place, value in enumerate(node.get("examples", []))
    ]
    if "default" in node:
        samples.append((("default",), node["default"]))
    validator = _compile_part(root, node) if samples else None
    for step, value in samples:
        if validator is not None and not validator.is_valid(value):
            yield Reason(
                conjunct="contract_tests_passing",
                path=format_pointer(("input_schema", *path, *step)),
                reason="does not match the property's own schema",
                fix="correct the value or the schema",
            )


def _compile_part(root: Schema, node: Schema) -> Validator | None:
    """Compile a part of the schema; None if it is invalid, which `check_schema` reports."""
    try:
        return compile_schema({"$defs": root.get("$defs", {}), **node})
    except BadSchema:
        return None


def _make_reason(where: str, path: Path, reason: str, fix: str) -> Reason:
    return Reason(conjunct="schemas_valid", path=format_pointer((*where.split("/"), *path)), reason=reason, fix=fix)
