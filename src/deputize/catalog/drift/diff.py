"""Show the differences between two declarations by path, with hidden characters made visible.

Differences are in meaning (`core/contract/normalized_definition.py`): there are some if and only if the digests differ.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from deputize.catalog.drift.hidden_text import reveal_hidden_text
from deputize.catalog.drift.lookalike_names import normalize_lookalikes
from deputize.catalog.schemas import format_pointer
from deputize.core.canonical import canonicalize
from deputize.core.contract.normalized_definition import (
    MAX_SORT_DEPTH,
    UNORDERED_SHAPES,
    Shape,
    get_child_shape,
    normalize_value,
)
from deputize.core.display_text import MAX_CHARACTERS, to_display_lines, to_display_text
from deputize.core.value_types import frozen

Path = tuple[str | int, ...]
MOST_DIFFERENCES: Final = 500
_CONTEXT_CHARACTERS: Final = 120
_ABSENT: Final = object()


@frozen
class Difference:
    """The values before and after at one JSON pointer, as lines of visible characters; None if there is no value.

    For members of a set, the pointer is that of the set.
    """

    where: str
    before: str | None
    after: str | None


def diff_definitions(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> tuple[Difference, ...]:
    """List the differences in meaning between two declarations, in document order.

    Changes of order alone are left out. Without `before` everything is new; without `after` everything is removed.
    """
    result: list[Difference] = []
    for each in _iter_differences(dict(before or {}), dict(after or {}), Shape.TOOL, ()):
        if len(result) == MOST_DIFFERENCES:
            return (*result, Difference(where="", before=None, after="⟨… more differences⟩"))
        result.append(each)
    return tuple(result)


def _iter_differences(before: Any, after: Any, shape: Shape, path: Path) -> Iterator[Difference]:
    if len(path) <= MAX_SORT_DEPTH:
        if isinstance(before, dict) and isinstance(after, dict):
            for key in (*after, *(key for key in before if key not in after)):
                old, new = before.get(key, _ABSENT), after.get(key, _ABSENT)
                yield from _iter_differences(
                    old, new, get_child_shape(shape, key, old if new is _ABSENT else new), (*path, key)
                )
            return
        if isinstance(before, list) and isinstance(after, list):
            inside = get_child_shape(shape, None, None)
            yield from (_diff_sets if shape in UNORDERED_SHAPES else _diff_lists)(before, after, inside, path)
            return
    if not _is_same(before, after, shape, len(path)):
        yield _make_difference(before, after, path)


def _diff_lists(before: list[Any], after: list[Any], inside: Shape, path: Path) -> Iterator[Difference]:
    for place in range(max(len(before), len(after))):
        old = before[place] if place < len(before) else _ABSENT
        new = after[place] if place < len(after) else _ABSENT
        yield from _iter_differences(old, new, inside, (*path, place))


def _diff_sets(before: list[Any], after: list[Any], inside: Shape, path: Path) -> Iterator[Difference]:
    """Compare two sets. Common members are skipped; if as many schemas were removed as added, compare them in pairs."""
    level = len(path) + 1
    old_members, new_members = (
        _subtract_members(before, after, inside, level),
        _subtract_members(after, before, inside, level),
    )
    if inside is Shape.SCHEMA and len(old_members) == len(new_members):
        for (_, old), (place, member) in zip(old_members, new_members, strict=True):
            yield from _iter_differences(old, member, inside, (*path, place))
        return
    yield from (_make_difference(member, _ABSENT, path) for _, member in old_members)
    yield from (_make_difference(_ABSENT, member, path) for _, member in new_members)


def _subtract_members(members: list[Any], others: list[Any], shape: Shape, level: int) -> list[tuple[int, Any]]:
    counts = Counter(_canonicalize(each, shape, level) for each in others)
    extra_members: list[tuple[int, Any]] = []
    for place, each in enumerate(members):
        form = _canonicalize(each, shape, level)
        if counts[form]:
            counts[form] -= 1
        else:
            extra_members.append((place, each))
    return extra_members


def _is_same(before: Any, after: Any, shape: Shape, level: int) -> bool:
    if before is _ABSENT or after is _ABSENT:
        return before is after
    return _canonicalize(before, shape, level) == _canonicalize(after, shape, level)


def _canonicalize(value: Any, shape: Shape, level: int) -> bytes:
    return canonicalize({"": normalize_value(value, shape, level)})


def _make_difference(before: Any, after: Any, path: Path) -> Difference:
    if isinstance(before, str) and isinstance(after, str):
        # Two texts that look the same differ in their letters, so these are escaped.
        escape_non_ascii = normalize_lookalikes(before) == normalize_lookalikes(after)
        old, new = (
            _render_text(before, after, escape_non_ascii=escape_non_ascii),
            _render_text(after, before, escape_non_ascii=escape_non_ascii),
        )
        return Difference(where=to_display_text(format_pointer(path)), before=old, after=new)
    return Difference(
        where=to_display_text(format_pointer(path)), before=_render_value(before), after=_render_value(after)
    )


def _render_value(value: Any) -> str | None:
    if value is _ABSENT:
        return None
    return _render_text(value, value) if isinstance(value, str) else "\n".join(to_display_lines(value))


def _render_text(text: str, other: str, *, escape_non_ascii: bool = False) -> str:
    """Render a text as lines. A long one starts shortly before the first difference, so that it is visible."""
    start = 0
    if len(text) > MAX_CHARACTERS and text != other:
        pairs = enumerate(zip(text, other, strict=False))
        first = next((place for place, (left, right) in pairs if left != right), min(len(text), len(other)))
        start = max(0, first - _CONTEXT_CHARACTERS)
    prefix = f"⟨{start:,} unchanged characters …⟩" if start else ""
    rest = text[start:]
    excess = len(rest) - MAX_CHARACTERS
    suffix = f"⟨… {excess:,} more of {len(text):,} characters⟩" if excess > 0 else ""
    body = "\n".join(
        reveal_hidden_text(line, escape_non_ascii=escape_non_ascii) for line in rest[:MAX_CHARACTERS].split("\n")
    )
    return prefix + '"' + body.replace('"', '\\"') + '"' + suffix
