"""Keep what a foreign object says beyond our own records, and write it back when the object is exported again.

A difference has a JSON pointer, the digest of what we would write there, and what the object has there instead. It is
applied only where we would still write the same: if a new version changes a field, the new version's value is written.
What the gateway enforces is never replaced: a difference can remove such a statement, whose absence counts as the worse
one, and cannot change it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from deputize.catalog.exchange.agent_tool.field_mapping import MISSING
from deputize.catalog.schemas import format_pointer
from deputize.core.canonical import NotCanonical, compute_digest

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForeignField:
    """One difference: at a path, instead of what we would write there (None: nothing), a value (MISSING: nothing)."""

    path: Path
    instead_of: str | None
    value: Any

    def to_json(self) -> dict[str, Any]:
        return {
            "path": format_pointer(self.path),
            **({} if self.instead_of is None else {"instead_of": self.instead_of}),
            **({} if self.value is MISSING else {"value": self.value}),
        }


def find_differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[ForeignField]:
    """List where a foreign object differs from ours; lists are compared as a whole."""
    differences: list[ForeignField] = []
    stack: list[tuple[Path, Mapping[str, Any], Mapping[str, Any]]] = [((), ours, theirs)]
    while stack:
        path, own, foreign = stack.pop()
        for name in sorted(own.keys() | foreign.keys()):
            before, after = own.get(name, MISSING), foreign.get(name, MISSING)
            if isinstance(before, dict) and isinstance(after, dict):
                stack.append(((*path, name), before, after))
            elif (digest := _compute_value_digest(before)) != _compute_value_digest(after):
                differences.append(ForeignField((*path, name), digest, after))
    return sorted(differences, key=lambda each: each.path)


def apply_differences(document: dict[str, Any], differences: Iterable[ForeignField]) -> None:
    """Change our object into the foreign one, except where ours has changed since."""
    for each in differences:
        parent = _find_parent(document, each.path)
        if parent is None or _compute_value_digest(parent.get(each.path[-1], MISSING)) != each.instead_of:
            continue
        if each.value is MISSING:
            parent.pop(each.path[-1], None)
        else:
            parent[each.path[-1]] = each.value


def is_replacement(difference: ForeignField, paths: Iterable[Path]) -> bool:
    """Tell whether a difference sets a value at or below one of these paths, or replaces an object around them."""
    if difference.value is MISSING:
        return False
    return any(_starts_with(difference.path, path) or _starts_with(path, difference.path) for path in paths)


def parse_differences(value: Any) -> list[ForeignField]:
    """Parse stored differences; anything that is not one is left out, because authors can write there, too."""
    if not isinstance(value, list):
        return []
    return [each for each in map(_parse_difference, value) if each is not None]


def _parse_difference(value: Any) -> ForeignField | None:
    match value:
        case {"path": str(path)} if path.startswith("/"):
            steps = tuple(step.replace("~1", "/").replace("~0", "~") for step in path[1:].split("/"))
            digest = value.get("instead_of")
            is_digest = digest is None or isinstance(digest, str)
            return ForeignField(steps, digest, value.get("value", MISSING)) if is_digest else None
        case _:
            return None


def _find_parent(document: dict[str, Any], path: Path) -> dict[str, Any] | None:
    value: Any = document
    for step in path[:-1]:
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else None


def _starts_with(path: Path, prefix: Path) -> bool:
    return path[: len(prefix)] == prefix


def _compute_value_digest(value: Any) -> str | None:
    if value is MISSING:
        return None
    try:
        return compute_digest({"": value})
    except NotCanonical:
        return "not-canonical"
