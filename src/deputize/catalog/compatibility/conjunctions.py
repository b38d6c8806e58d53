"""Read what several schemas that all apply to one value say about it together."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from math import ceil, floor, inf
from typing import Any, Final, NamedTuple

from deputize.catalog.compatibility.json_equality import ALL_KINDS, NUMBER_KINDS, get_kind, read_kinds
from deputize.catalog.compatibility.schema_parts import SchemaDocument, SchemaPart, StepBudget
from deputize.catalog.compatibility.value_checks import check_scalar, is_valid

MOST_VALUES: Final = 1_000
_MAX_PARTS: Final = 200
_LENGTH_LIMITS: Final = frozenset({"minLength", "minItems", "minProperties", "maxLength", "maxItems", "maxProperties"})
UNLIMITED: Final = StepBudget(inf)
_TRUE: Final = SchemaDocument(True, UNLIMITED).root
# One schema for each kind of value, to look at one kind at a time.
KIND_PARTS: Final = {
    name: SchemaDocument({"type": name}, UNLIMITED).root
    for name in ("null", "boolean", "object", "array", "string", "number")
}
_IN_PLACE: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas"})


class Bound(NamedTuple):
    """A lower or upper limit of a number."""

    value: float
    is_exclusive: bool


class Conjunction:
    """Schemas that all apply to one value, with `$ref` and `allOf` followed.

    What it reads is never stricter than the schemas are: a keyword that is not understood here is left out.
    """

    def __init__(self, parts: Iterable[SchemaPart]) -> None:
        self.given_parts = tuple({part.key: part for part in parts}.values())
        self.key = tuple(sorted(part.key for part in self.given_parts))
        self.is_impossible = False
        self.parts = self._flatten()

    def add(self, *parts: SchemaPart) -> "Conjunction":
        return Conjunction((*self.given_parts, *parts))

    def _flatten(self) -> tuple[SchemaPart, ...]:
        parts_by_key: dict[tuple[int, int], SchemaPart] = {}
        stack = list(reversed(self.given_parts))
        while stack and len(parts_by_key) < _MAX_PARTS:
            part = stack.pop()
            if part.schema is False:
                self.is_impossible = True
            if not isinstance(part.schema, dict) or part.key in parts_by_key:
                continue
            part.document.budget.spend()
            parts_by_key[part.key] = part
            target = part.resolve() if "$ref" in part.schema else None
            stack += [] if target is None else [target]
            stack += [part.get_part(each) for each in part.schema.get("allOf", ())]
        return tuple(parts_by_key.values())

    def iterate_values(self, keyword: str) -> Iterator[Any]:
        """Yield what the schemas say under a keyword."""
        return (part.schema[keyword] for part in self.parts if keyword in part.schema)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of value that are possible."""
        kinds = ALL_KINDS
        for types in self.iterate_values("type"):
            kinds &= read_kinds(types)
        if self.values is not None:
            kinds &= {get_kind(value) for value in self.values}
        if any(get_kind(each) == "integer" for each in self.iterate_values("multipleOf")):
            kinds -= {"fraction"}
        return frozenset() if self.is_impossible else kinds

    @cached_property
    def values(self) -> list[Any] | None:
        """The only values that are possible; None if they are not enumerated, or are too many."""
        lists = [list(each) for each in self.iterate_values("enum")] + [[each] for each in self.iterate_values("const")]
        if not lists:
            return None
        shortest = min(lists, key=len)
        if len(shortest) > MOST_VALUES:
            return None
        return [value for value in shortest if all(is_valid(value, part) is not False for part in self.parts)]

    @cached_property
    def finite_values(self) -> list[Any] | None:
        """The only values that are possible, also those of booleans and null."""
        if self.values is not None:
            return self.values
        if self.kinds <= {"boolean", "null"}:
            values = [value for value in (True, False, None) if get_kind(value) in self.kinds]
            return [value for value in values if all(is_valid(value, part) is not False for part in self.parts)]
        return None

    def get_limit(self, keyword: str) -> float | None:
        """Return the strictest limit of a length: the least for `max…`, the greatest for `min…`."""
        assert keyword in _LENGTH_LIMITS
        limits: list[float] = list(self.iterate_values(keyword))
        if keyword == "minProperties":
            limits.append(len(self.required_names))
        if keyword == "maxProperties":
            limits += [len(part.schema.get("properties", {})) for part in self.parts if _is_closed(part.schema)]
        if not limits:
            return None
        return max(limits) if keyword.startswith("min") else min(limits)

    @cached_property
    def lower(self) -> Bound | None:
        """The strictest lower limit of a number."""
        bounds = [Bound(each, False) for each in self.iterate_values("minimum")]
        bounds += [Bound(each, True) for each in self.iterate_values("exclusiveMinimum")]
        bound = max(bounds, key=lambda each: (each.value, each.is_exclusive), default=None)
        if bound is None or "fraction" in self.kinds:
            return bound
        least = ceil(bound.value)
        return Bound(least + 1 if bound.is_exclusive and least == bound.value else least, False)

    @cached_property
    def upper(self) -> Bound | None:
        """The strictest upper limit of a number."""
        bounds = [Bound(each, False) for each in self.iterate_values("maximum")]
        bounds += [Bound(each, True) for each in self.iterate_values("exclusiveMaximum")]
        bound = min(bounds, key=lambda each: (each.value, not each.is_exclusive), default=None)
        if bound is None or "fraction" in self.kinds:
            return bound
        greatest = floor(bound.value)
        return Bound(greatest - 1 if bound.is_exclusive and greatest == bound.value else greatest, False)

    @property
    def has_numbers(self) -> bool:
        return not self.kinds.isdisjoint(NUMBER_KINDS)

    @cached_property
    def required_names(self) -> frozenset[str]:
        """The properties that an object must have."""
        return frozenset(name for names in self.iterate_values("required") for name in names)

    @cached_property
    def has_unique_items(self) -> bool:
        return any(each is True for each in self.iterate_values("uniqueItems"))

    def describe_property(self, name: str) -> "Conjunction":
        """Return what is said about one property of an object."""
        return Conjunction(each for part in self.parts for each in _list_property_parts(part, name))

    def describe_item(self, place: int) -> "Conjunction":
        """Return what is said about the item at a place of a list."""
        return Conjunction(get_item_part(part, place) for part in self.parts)

    def describe_further_items(self, place: int) -> "Conjunction":
        """Return what is said about every item from a place on that no schema describes by its place."""
        return Conjunction(
            get_further_item_part(part) for part in self.parts if len(part.schema.get("prefixItems", ())) <= place
        )

    @cached_property
    def described_places(self) -> int:
        """How many places of a list are described one by one."""
        return max((len(each) for each in self.iterate_values("prefixItems")), default=0)


def get_further_item_part(part: SchemaPart) -> SchemaPart:
    """Return what an object schema says about items after those it describes by their place."""
    return part.get_part(part.schema["items"]) if "items" in part.schema else _TRUE


def get_item_part(part: SchemaPart, place: int) -> SchemaPart:
    """Return what an object schema says about the item at a place."""
    prefix = part.schema.get("prefixItems", ())
    return part.get_part(prefix[place]) if place < len(prefix) else get_further_item_part(part)


def get_additional_part(part: SchemaPart) -> SchemaPart:
    """Return what an object schema says about properties that it does not name.

    `unevaluatedProperties` says the same, if no other schema applies in the same place.
    """
    if "additionalProperties" in part.schema:
        return part.get_part(part.schema["additionalProperties"])
    if "unevaluatedProperties" in part.schema and not has_in_place_schemas(part.schema):
        return part.get_part(part.schema["unevaluatedProperties"])
    return _TRUE


def has_in_place_schemas(schema: dict[str, Any]) -> bool:
    """Tell whether an object schema applies other schemas to the same value."""
    return not _IN_PLACE.isdisjoint(schema)


def matches(pattern: str, name: str) -> bool | None:
    """Tell whether a pattern matches a name; None if that is not decided here."""
    return check_scalar(name, "pattern", pattern)


def _list_property_parts(part: SchemaPart, name: str) -> Iterator[SchemaPart]:
    properties, patterns = part.schema.get("properties", {}), part.schema.get("patternProperties", {})
    results = {pattern: matches(pattern, name) for pattern in patterns}
    if name in properties:
        yield part.get_part(properties[name])
    yield from (part.get_part(patterns[pattern]) for pattern, result in results.items() if result)
    if name not in properties and all(result is False for result in results.values()):
        yield get_additional_part(part)


def _is_closed(schema: dict[str, Any]) -> bool:
    return schema.get("additionalProperties") is False and not schema.get("patternProperties")
