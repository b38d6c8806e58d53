"""Prove the keywords of objects: what each property of a value can be, and which properties it can have."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from deputize.catalog.compatibility.breaks import BreakKind, Path, SchemaBreak, make_unproven
from deputize.catalog.compatibility.conjunctions import (
    KIND_PARTS,
    UNLIMITED,
    Conjunction,
    get_additional_part,
    matches,
)
from deputize.catalog.compatibility.schema_parts import SchemaDocument, SchemaPart
from deputize.catalog.compatibility.value_checks import is_valid

# Find the breaks between what is said about a value inside another one and a schema for it.
ChildProof = Callable[[Conjunction, SchemaPart, Path], list[SchemaBreak]]
_ANYTHING: Final = SchemaDocument({}, UNLIMITED).root
ObjectRule = Callable[[ChildProof, Conjunction, SchemaPart, Path], Iterator[SchemaBreak]]


def _check_required(prove: ChildProof, source: Conjunction, target: SchemaPart, path: Path) -> Iterator[SchemaBreak]:
    for name in target.schema["required"]:
        if name not in source.required_names:
            yield SchemaBreak(path=(*path, "properties", name), kind=BreakKind.REQUIRED)


def _check_properties(prove: ChildProof, source: Conjunction, target: SchemaPart, path: Path) -> Iterator[SchemaBreak]:
    for name, schema in target.schema["properties"].items():
        yield from prove(source.describe_property(name), target.get_part(schema), (*path, "properties", name))


def _check_additional(prove: ChildProof, source: Conjunction, target: SchemaPart, path: Path) -> Iterator[SchemaBreak]:
    """Check the properties that the target does not name: whatever the source says about them must satisfy it."""
    properties, patterns = target.schema.get("properties", {}), target.schema.get("patternProperties", {})
    names = {name for each in source.iterate_values("properties") for name in each}
    allowed_part = get_additional_part(target)
    for name in sorted(names - properties.keys()):
        if not any(matches(pattern, name) for pattern in patterns):
            breaks = prove(source.describe_property(name), allowed_part, (*path, "properties", name))
            is_excluded = allowed_part.schema is False and breaks
            yield from [_make_extra((*path, "properties", name))] if is_excluded else breaks
    where = (*path, "additionalProperties")
    yield from _choose_breaks(
        [list(_check_unnamed(prove, part, allowed_part, patterns, where)) for part in _list_parts(source)]
    )


def _check_patterns(prove: ChildProof, source: Conjunction, target: SchemaPart, path: Path) -> Iterator[SchemaBreak]:
    names = {name for each in source.iterate_values("properties") for name in each}
    for pattern, schema in target.schema["patternProperties"].items():
        where, part = (*path, "patternProperties", pattern), target.get_part(schema)
        for name in sorted(names):
            if matches(pattern, name) is not False:
                yield from prove(source.describe_property(name), part, (*path, "properties", name))
        yield from _choose_breaks([_check_pattern(prove, each, pattern, part, where) for each in _list_parts(source)])


def _check_pattern(
    prove: ChildProof, source: SchemaPart, pattern: str, target: SchemaPart, path: Path
) -> list[SchemaBreak]:
    """Check the unnamed properties of one schema that match a pattern."""
    patterns = source.schema.get("patternProperties", {})
    if pattern in patterns:
        return prove(Conjunction([source.get_part(patterns[pattern])]), target, path)
    return list(_check_unnamed(prove, source, target, {}, path))


def _check_unnamed(
    prove: ChildProof, source: SchemaPart, target: SchemaPart, skipped_patterns: Mapping[str, Any], path: Path
) -> Iterator[SchemaBreak]:
    """Check every property that one schema of the source does not name, except those that match a pattern."""
    patterns = source.schema.get("patternProperties", {})
    for pattern in patterns.keys() - skipped_patterns.keys():
        yield from prove(Conjunction([source.get_part(patterns[pattern])]), target, path)
    # A property that matches one of these patterns is not additional, and was checked.
    yield from prove(Conjunction([get_additional_part(source)]), target, path)


def _check_names(prove: ChildProof, source: Conjunction, target: SchemaPart, path: Path) -> Iterator[SchemaBreak]:
    where, part = (*path, "propertyNames"), target.get_part(target.schema["propertyNames"])
    name_parts = [
        each.get_part(each.schema["propertyNames"]) for each in source.parts if "propertyNames" in each.schema
    ]
    is_closed = any(
        get_additional_part(each).schema is False
        and not each.schema.get("patternProperties")
        and all(is_valid(name, part) is True for name in each.schema.get("properties", ()))
        for each in source.parts
    )
    yield from [] if is_closed else prove(Conjunction([*name_parts, KIND_PARTS["string"]]), part, where)


def _check_dependent_names(
    prove: ChildProof, source: Conjunction, target: SchemaPart, path: Path
) -> Iterator[SchemaBreak]:
    for name, needs in target.schema["dependentRequired"].items():
        known_needs = {need for each in source.iterate_values("dependentRequired") for need in each.get(name, ())}
        is_absent = source.describe_property(name).is_impossible
        if not is_absent and not set(needs) <= source.required_names | known_needs:
            yield make_unproven((*path, "dependentRequired", name), "it requires more properties")


def _list_parts(source: Conjunction) -> tuple[SchemaPart, ...]:
    """List the schemas of the source; one that allows everything if there is none."""
    return source.parts or (_ANYTHING,)


def _choose_breaks(results: list[list[SchemaBreak]]) -> list[SchemaBreak]:
    """Choose the fewest breaks: each schema of the source applies, so that one without breaks is enough."""
    return min(results, key=len)


def _make_extra(path: Path) -> SchemaBreak:
    return SchemaBreak(path=path, kind=BreakKind.EXTRA)


OBJECT_RULES: Final[dict[str, ObjectRule]] = {
    "required": _check_required,
    "properties": _check_properties,
    "additionalProperties": _check_additional,
    "patternProperties": _check_patterns,
    "propertyNames": _check_names,
    "dependentRequired": _check_dependent_names,
}
