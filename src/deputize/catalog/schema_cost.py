"""Measure what a schema can cost, before it is admitted and before a document is checked against it.

Validators match patterns in linear time and check each value once for each subschema that applies to it. Both factors
come from outside: the steps that the patterns take for each character, and the number of subschemas that apply to the
values on one path of a document, which `$ref` can multiply. Admission limits both, and `SchemaCost.estimate_steps`
tells whether a document can be validated on the event loop. Numbers are compared exactly, which makes an `enum` of 200
fractions, or a `multipleOf`, costly as well: `1e-300` takes up to 90 µs for each of them.

Validators remember what they know of each value and recursive reference, so that recursion adds nothing. Where a schema
also reads what was not evaluated (`unevaluatedProperties`, `unevaluatedItems`), they do not: 100 bytes of schema double
the time with every level of the document, and a schema of six parts that refer to each other doubles it when it is
compiled. No such schema is admitted.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import orjson

from deputize.catalog.schemas import resolve_pointer, walk_schema
from deputize.core.contract.contract import Schema
from deputize.core.json_values import count_values_in
from deputize.core.patterns import InvalidPattern, compile_pattern
from deputize.core.value_types import frozen

# Steps for each character, over all patterns of one schema.
MAX_PATTERN_COST: Final = 20_000
# Subschemas in all: compiling one takes some 4 µs, and cannot be interrupted.
MAX_PARTS: Final = 10_000
# Subschemas that apply to the values on one path of a document.
MAX_EVALUATIONS: Final = 10_000
_IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_IN_PLACE_SINGLES: Final = ("if", "then", "else", "not")
_MEMBER_SCHEMAS: Final = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_ITEM_SCHEMAS: Final = ("items", "unevaluatedItems", "contains")
# Checking one value against one subschema takes about as long as this many steps of a pattern.
_STEPS_PER_EVALUATION: Final = 5
# The same for comparing one value with one value of the schema: of any type, a fraction, and a very small or large one.
_STEPS_PER_COMPARISON: Final = 20
_STEPS_PER_FRACTION: Final = 60
_STEPS_PER_EXPONENT: Final = 3_000
# So many formats together take a step for each character.
_FORMATS_PER_STEP: Final = 8
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
_SMALL_BYTES: Final = 4_096
_MULTIPLIERS: Final = (b'"pattern"', b'"patternProperties"', b'"$ref"')
_UNLIMITED_STEPS: Final = 2**63
# References can double a count again and again.
_MAX_COUNT: Final = 2**32


@frozen
class SchemaCost:
    """The cost of a schema: `pattern_cost` for each character, `evaluations` for each value of a document.

    `comparisons` tells with how many numbers and constants of the schema each value is compared.

    A schema is recursive if one of its parts refers to itself, and `is_exponential` if it also reads what was not
    evaluated.
    """

    pattern_cost: int
    evaluations: int
    comparisons: int = 0
    is_recursive: bool = False
    is_exponential: bool = False

    def estimate_steps(self, *, size: int, values: int, fractions: int, exponents: int) -> int:
        """Estimate the steps that asking whether a document of `size` bytes and so many values is valid takes."""
        if self.is_exponential:
            return _UNLIMITED_STEPS
        steps = size * self.pattern_cost + values * self.evaluations * _STEPS_PER_EVALUATION
        return steps + self.comparisons * (
            values * _STEPS_PER_COMPARISON + fractions * _STEPS_PER_FRACTION + exponents * _STEPS_PER_EXPONENT
        )


def is_quick_to_check(payload: bytes) -> bool:
    """Tell whether the schemas in these bytes can be checked and compiled in a thread.

    That takes up to 30 ms for so many bytes, unless patterns or references multiply: 2 KB of patterns took 10 s.
    """
    return len(payload) <= _SMALL_BYTES and not any(keyword in payload for keyword in _MULTIPLIERS)


def measure_schema(schema: Schema | bool) -> SchemaCost:
    """Measure a schema. Patterns that are not admitted count as nothing."""
    if not isinstance(schema, dict):
        return SchemaCost(pattern_cost=0, evaluations=1)
    cost, format_count, reads_unevaluated = 0, 0, False
    for _, node in walk_schema(schema):
        format_count += "format" in node
        reads_unevaluated = reads_unevaluated or any(keyword in node for keyword in _UNEVALUATED)
        for _, pattern in iterate_patterns(node):
            try:
                cost += compile_pattern(pattern).cost
            except InvalidPattern:
                continue
    counter = _EvaluationCounter(schema, lambda _: 1)
    return SchemaCost(
        pattern_cost=cost + format_count // _FORMATS_PER_STEP,
        evaluations=min(counter.count(schema), MAX_EVALUATIONS + 1),
        comparisons=_EvaluationCounter(schema, _count_comparisons).count(schema),
        is_recursive=counter.is_recursive,
        is_exponential=counter.is_recursive and reads_unevaluated,
    )


def iterate_patterns(node: Schema) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the patterns of one subschema, each with its path inside it."""
    pattern = node.get("pattern")
    if isinstance(pattern, str):
        yield ("pattern",), pattern
    named_patterns = node.get("patternProperties")
    if isinstance(named_patterns, dict):
        yield from ((("patternProperties", each), each) for each in named_patterns)


def _count_comparisons(node: Schema) -> int:
    """Count the values that one subschema compares with, those that take longer as several."""
    options = node["enum"] if isinstance(node.get("enum"), list) else [node["const"]] if "const" in node else []
    if all(each is None or isinstance(each, str) for each in options):
        # Validators look texts up by their hash.
        options = []
    operands = [*options, *(node[keyword] for keyword in _BOUNDS if keyword in node)]
    if not operands:
        return 0
    text = orjson.dumps(operands)
    steps = 2 * text.count(b".") * _STEPS_PER_FRACTION + text.count(b"e-") * _STEPS_PER_EXPONENT
    return count_values_in(text) + steps // _STEPS_PER_COMPARISON


class _EvaluationCounter:
    """Counts how often subschemas apply along the most expensive path that a document can have, by their weight."""

    def __init__(self, root: Schema, weigh: Callable[[Schema], int]) -> None:
        self._root = root
        self._weigh = weigh
        self._counts: dict[int, int] = {}
        self.is_recursive = False

    def count(self, schema: Any) -> int:
        if not isinstance(schema, dict):
            return 0
        known_count = self._counts.get(id(schema))
        if known_count is not None:
            # A schema that is being counted has no count yet.
            self.is_recursive = self.is_recursive or known_count == 0
            return known_count
        # Validators check a recursive reference once for each value, so it adds nothing here.
        self._counts[id(schema)] = 0
        total = self._weigh(schema) + sum(map(self.count, self._iterate_in_place(schema)))
        total += max(self._count_members(schema), self._count_items(schema))
        self._counts[id(schema)] = total = min(total, _MAX_COUNT)
        return total

    def _iterate_in_place(self, schema: Schema) -> Iterator[Any]:
        for keyword in _IN_PLACE_LISTS:
            branches = schema.get(keyword)
            yield from branches if isinstance(branches, list) else ()
        yield from (schema[keyword] for keyword in _IN_PLACE_SINGLES if keyword in schema)
        dependents = schema.get("dependentSchemas")
        yield from dependents.values() if isinstance(dependents, dict) else ()
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield resolve_pointer(self._root, reference)

    def _count_members(self, schema: Schema) -> int:
        properties, patterns = schema.get("properties"), schema.get("patternProperties")
        count = max(map(self.count, properties.values()), default=0) if isinstance(properties, dict) else 0
        count += sum(map(self.count, patterns.values())) if isinstance(patterns, dict) else 0
        return count + sum(self.count(schema[keyword]) for keyword in _MEMBER_SCHEMAS if keyword in schema)

    def _count_items(self, schema: Schema) -> int:
        prefix = schema.get("prefixItems")
        count = max(map(self.count, prefix), default=0) if isinstance(prefix, list) else 0
        return count + sum(self.count(schema[keyword]) for keyword in _ITEM_SCHEMAS if keyword in schema)
