"""Map the fields of our records to fields of the standard's objects, and back, by tables.

A field that is not set is absent in an object. What an object has beyond its table is not lost: `foreign_fields.py`
keeps it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from deputize.catalog.exchange.agent_tool.object_kinds import SCHEMA_VERSION, ObjectKind

Record = dict[str, Any]
# Stands for a field that is not set; JSON's null is a value.
MISSING: Final = object()


def keep_value(value: Any) -> Any:
    """Return a value as it is."""
    return value


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """One field on both sides, each as a path with slashes. A value that equals `default` is left out of objects.

    `restore` returns MISSING for a value of the object that has no counterpart here.
    """

    ours: str
    theirs: str
    export: Callable[[Any], Any] = keep_value
    restore: Callable[[Any], Any] = keep_value
    default: Any = MISSING


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectMapping:
    """One kind of object: the fields it shares with a record, and those that are computed from the record."""

    kind: ObjectKind
    fields: tuple[FieldMapping, ...]
    computations: Mapping[str, Callable[[Record], Any]] = field(default_factory=dict)

    def export_object(self, record: Record) -> Record:
        """Write the object of a record."""
        document: Record = {"schema_version": SCHEMA_VERSION}
        for path, compute in self.computations.items():
            value = compute(record)
            if value is not None:
                set_path(document, path, value)
        for each in self.fields:
            value = get_path(record, each.ours)
            if value is not MISSING and value is not None and value != each.default:
                set_path(document, each.theirs, each.export(value))
        return document

    def restore_record(self, document: Record) -> Record:
        """Read from an object what a record has; computed fields are not read."""
        record: Record = {}
        for each in self.fields:
            value = get_path(document, each.theirs)
            value = value if value is MISSING else each.restore(value)
            if value is not MISSING:
                set_path(record, each.ours, value)
        return record


def get_path(value: Any, path: str) -> Any:
    """Return the value at a path; MISSING if there is none."""
    for step in path.split("/"):
        if not isinstance(value, dict) or step not in value:
            return MISSING
        value = value[step]
    return value


def set_path(value: Record, path: str, new: Any) -> None:
    """Set the value at a path, with the objects around it. A value that is no object is replaced by one."""
    *steps, last = path.split("/")
    for step in steps:
        if not isinstance(value.get(step), dict):
            value[step] = {}
        value = value[step]
    value[last] = new
