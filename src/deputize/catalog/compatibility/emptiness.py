"""Prove that no value satisfies some schemas together, which tells the alternatives of a `oneOf` apart."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from deputize.catalog.compatibility.conjunctions import Bound, Conjunction
from deputize.catalog.compatibility.json_equality import NUMBER_KINDS
from deputize.catalog.compatibility.schema_parts import SchemaPart

_DEEPEST: Final = 6
_MAX_PLACES: Final = 8


def is_empty(source: Conjunction, depth: int = 0) -> bool:
    """Tell whether it is certain that no value satisfies the schemas; False also if it cannot be told."""
    if source.is_impossible or not source.kinds or source.finite_values == []:
        return True
    if depth > _DEEPEST:
        return False
    if all(_is_kind_empty(source, kind, depth) for kind in source.kinds):
        return True
    return any(
        all(is_empty(source.add(branch), depth + 1) for branch in branches) for _, branches in list_alternatives(source)
    )


def list_alternatives(source: Conjunction) -> Iterator[tuple[int, list[SchemaPart]]]:
    """Yield the alternatives among which a value has to choose, each list with its identity."""
    for part in source.parts:
        for keyword in ("anyOf", "oneOf"):
            branches = part.schema.get(keyword)
            if branches and not any(
                each.key == part.get_part(branch).key for branch in branches for each in source.given_parts
            ):
                yield id(branches), [part.get_part(each) for each in branches]


def _is_kind_empty(source: Conjunction, kind: str, depth: int) -> bool:
    if kind in NUMBER_KINDS:
        return _is_range_empty(source.lower, source.upper)
    match kind:
        case "string":
            return _is_size_impossible(source, "Length")
        case "array":
            places = range(min(int(source.get_limit("minItems") or 0), _MAX_PLACES))
            return _is_size_impossible(source, "Items") or any(
                is_empty(source.describe_item(place), depth + 1) for place in places
            )
        case "object":
            names = islice(sorted(source.required_names), 64)
            return _is_size_impossible(source, "Properties") or any(
                is_empty(source.describe_property(name), depth + 1) for name in names
            )
        case _:
            return False


def _is_range_empty(lower: Bound | None, upper: Bound | None) -> bool:
    if lower is None or upper is None:
        return False
    return lower.value > upper.value or (lower.value == upper.value and (lower.is_exclusive or upper.is_exclusive))


def _is_size_impossible(source: Conjunction, what: str) -> bool:
    least, most = source.get_limit(f"min{what}"), source.get_limit(f"max{what}")
    return least is not None and most is not None and least > most
