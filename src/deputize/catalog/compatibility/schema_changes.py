"""Compare two versions of a schema: of an input, which must accept at least as much, or of a result."""

import json
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

from deputize.catalog.compatibility.breaks import BreakView, SchemaBreak, make_unproven
from deputize.catalog.compatibility.changes import ChangeLevel, ContractChange
from deputize.catalog.compatibility.conjunctions import Conjunction
from deputize.catalog.compatibility.schema_parts import SchemaDocument, StepBudget, TooComplex
from deputize.catalog.compatibility.subset import SubsetProof
from deputize.catalog.schemas import MAX_DEPTH, format_pointer, measure_depth, walk_schema
from deputize.core.contract.contract import Schema

# The steps of one proof; the largest schemas that are admitted take less, and 100,000 take half a second.
MAX_STEPS: Final = 100_000
_MAX_CHANGES: Final = 50


class Direction(Enum):
    """Who depends on a schema: callers send an input, and receive a result."""

    INPUT = (BreakView.ACCEPTS_LESS, BreakView.ACCEPTS_MORE)
    RESULT = (BreakView.RETURNS_MORE, BreakView.RETURNS_LESS)


def compare_schemas(where: str, old: Schema, new: Schema, direction: Direction) -> list[ContractChange]:
    """List the changes of a schema: its breaks, or else what it has more, or else that it is written differently."""
    if _write(old) == _write(new):
        return []
    first, second = (old, new) if direction is Direction.INPUT else (new, old)
    breaks = find_breaks(first, second)
    break_view, other_view = direction.value
    if breaks:
        return _list_changes(ChangeLevel.MAJOR, where, breaks, break_view)
    if differences := find_breaks(second, first):
        return _list_changes(ChangeLevel.MINOR, where, differences, other_view)
    defaults = list(_compare_defaults(where, old, new)) if direction is Direction.INPUT else []
    return defaults or [_make_change(ChangeLevel.PATCH, where, "is written differently, and means the same")]


def find_breaks(first: Any, second: Any) -> list[SchemaBreak]:
    """Find where the second schema may refuse a value that the first one allows; nothing if that is impossible."""
    if max(measure_depth(first), measure_depth(second)) > 2 * MAX_DEPTH:
        return [make_unproven((), f"it is nested deeper than {2 * MAX_DEPTH} levels")]
    budget = StepBudget(MAX_STEPS)
    try:
        source, target = SchemaDocument(first, budget), SchemaDocument(second, budget)
        if source.has_redirections or target.has_redirections:
            return [make_unproven((), "it changes what references point to, with $id, $dynamicRef or the like")]
        if source.is_same(target):
            return []
        source.share_definitions(target)
        return SubsetProof(budget).find_breaks(Conjunction([source.root]), target.root, ())
    except TooComplex:
        return [make_unproven((), f"the comparison takes more than {MAX_STEPS:,} steps")]
    except (TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        # A schema that is not valid, which only files that were never registered can contain.
        return [make_unproven((), "it is not a valid JSON Schema 2020-12")]


def _write(schema: Schema) -> str:
    """Write a schema as text, which tells true from 1."""
    return json.dumps(schema, sort_keys=True, default=repr)


def _compare_defaults(where: str, old: Schema, new: Schema) -> Iterator[ContractChange]:
    """Compare what happens if an argument is left out."""
    old_defaults, new_defaults = _collect_defaults(old), _collect_defaults(new)
    for path in sorted(old_defaults.keys() | new_defaults.keys()):
        if path not in old_defaults or path not in new_defaults or old_defaults[path] != new_defaults[path]:
            yield _make_change(ChangeLevel.MINOR, f"{where}{path}/default", "changes what leaving it out means")


def _collect_defaults(schema: Schema) -> dict[str, str]:
    return {format_pointer(path): repr(node["default"]) for path, node in walk_schema(schema) if "default" in node}


def _list_changes(level: ChangeLevel, where: str, breaks: list[SchemaBreak], view: BreakView) -> list[ContractChange]:
    changes = {
        (path := where + format_pointer(each.path), reason := each.explain(view)): _make_change(level, path, reason)
        for each in breaks[:_MAX_CHANGES]
    }
    return list(changes.values())


def _make_change(level: ChangeLevel, path: str, reason: str) -> ContractChange:
    return ContractChange(level=level, path=path, reason=reason)
