"""Prove the keywords of lists: what the item at each place can be, and how many items are of a kind."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from deputize.catalog.compatibility.breaks import Path, SchemaBreak, make_unproven
from deputize.catalog.compatibility.conjunctions import Conjunction
from deputize.catalog.compatibility.object_rules import ChildProof
from deputize.catalog.compatibility.schema_parts import SchemaPart

ArrayRule = Callable[[ChildProof, Conjunction, SchemaPart, Path], Iterator[SchemaBreak]]


def _check_places(prove: ChildProof, source: Conjunction, target: SchemaPart, path: Path) -> Iterator[SchemaBreak]:
    for place, schema in enumerate(target.schema["prefixItems"]):
        if _can_have_place(source, place):
            yield from prove(source.describe_item(place), target.get_part(schema), (*path, "prefixItems", place))


def _check_items(prove: ChildProof, source: Conjunction, target: SchemaPart, path: Path) -> Iterator[SchemaBreak]:
    yield from _check_items_from(
        prove, source, target.get_part(target.schema["items"]), (*path, "items"),
        len(target.schema.get("prefixItems", ())),
    )  # fmt: skip


def _check_items_from(
    prove: ChildProof, source: Conjunction, target: SchemaPart, path: Path, start: int
) -> Iterator[SchemaBreak]:
    """Check every item from a place on."""
    end = max(start, source.described_places)
    for place in range(start, end):
        if _can_have_place(source, place):
            yield from prove(source.describe_item(place), target, path)
    if _can_have_place(source, end):
        yield from prove(source.describe_further_items(end), target, path)


def _check_contains(prove: ChildProof, source: Conjunction, target: SchemaPart, path: Path) -> Iterator[SchemaBreak]:
    part, where = target.get_part(target.schema["contains"]), (*path, "contains")
    least, most = target.schema.get("minContains", 1), target.schema.get("maxContains")
    known_parts = [each for each in source.parts if "contains" in each.schema]
    if least and not (
        any(
            each.schema.get("minContains", 1) >= least
            and not prove(Conjunction([each.get_part(each.schema["contains"])]), part, where)
            for each in known_parts
        )
        or ((source.get_limit("minItems") or 0) >= least and not list(_check_items_from(prove, source, part, where, 0)))
    ):
        yield make_unproven(where, f"at least {least} such items are needed")
    if most is None:
        return
    most_items = source.get_limit("maxItems")
    if not (
        (most_items is not None and most_items <= most)
        or any(
            each.schema.get("maxContains", most + 1) <= most
            and not prove(Conjunction([part]), each.get_part(each.schema["contains"]), where)
            for each in known_parts
        )
    ):
        yield make_unproven(where, f"at most {most} such items are allowed")


def _can_have_place(source: Conjunction, place: int) -> bool:
    most = source.get_limit("maxItems")
    return most is None or place < most


ARRAY_RULES: Final[Mapping[str, ArrayRule]] = {
    "prefixItems": _check_places,
    "items": _check_items,
    "contains": _check_contains,
}
