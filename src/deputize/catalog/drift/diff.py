"""What is different between two declarations, for people to read: by place, with everything hidden made visible.

It tells differences in meaning (`core/declared.py`): there are some exactly where the digests differ.

Above: `judge.py`, and doors that show it. Below: `core/plain.py`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any, Final

from deputize.catalog.drift.names import looks
from deputize.catalog.drift.shown import shown
from deputize.catalog.schemas import pointer
from deputize.core.canonical import canonical
from deputize.core.declared import DEEPEST, UNORDERED, Shape, meant, within
from deputize.core.frozen import frozen
from deputize.core.plain import MOST, plain, plain_lines

Path = tuple[str | int, ...]
MOST_DIFFERENCES: Final = 500
_BEFORE_IT: Final = 120
_NOTHING: Final = object()


@frozen
class Difference:
    """One place (a JSON pointer; of members of a set, that of the set) and what stood and stands there, all of visible
    characters, in lines; None is nothing.
    """

    where: str
    before: str | None
    after: str | None


def differences(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> tuple[Difference, ...]:
    """What differs in meaning between two declarations, in the order of the document. What is only written in another
    order is not told. Without a `before` everything is new, without an `after` everything is gone.
    """
    found: list[Difference] = []
    for each in _differ(dict(before or {}), dict(after or {}), Shape.TOOL, ()):
        if len(found) == MOST_DIFFERENCES:
            return (*found, Difference(where="", before=None, after="⟨… more differences than are shown⟩"))
        found.append(each)
    return tuple(found)


def lines(found: Iterable[Difference]) -> list[str]:
    """The differences as lines: the place, then what was (`- `) and what is (`+ `), and a line around them (`  `)."""
    told: list[str] = []
    for each in found:
        told.append(each.where or "/")
        told += _marked(_split(each.before), _split(each.after))
    return told


def _differ(before: Any, after: Any, shape: Shape, path: Path) -> Iterator[Difference]:
    if len(path) <= DEEPEST:
        if isinstance(before, dict) and isinstance(after, dict):
            for key in (*after, *(key for key in before if key not in after)):
                old, new = before.get(key, _NOTHING), after.get(key, _NOTHING)
                yield from _differ(old, new, within(shape, key, old if new is _NOTHING else new), (*path, key))
            return
        if isinstance(before, list) and isinstance(after, list):
            inside = within(shape, None, None)
            yield from (_set if shape in UNORDERED else _list)(before, after, inside, path)
            return
    if not _same(before, after, shape, len(path)):
        yield _told(before, after, path)


def _list(before: list[Any], after: list[Any], inside: Shape, path: Path) -> Iterator[Difference]:
    for place in range(max(len(before), len(after))):
        old = before[place] if place < len(before) else _NOTHING
        new = after[place] if place < len(after) else _NOTHING
        yield from _differ(old, new, inside, (*path, place))


def _set(before: list[Any], after: list[Any], inside: Shape, path: Path) -> Iterator[Difference]:
    """Members that both have are passed over. Of the others, schemas are held against each other one by one."""
    level = len(path) + 1
    gone, new = _without(before, after, inside, level), _without(after, before, inside, level)
    if inside is Shape.SCHEMA and len(gone) == len(new):
        for (_, old), (place, member) in zip(gone, new, strict=True):
            yield from _differ(old, member, inside, (*path, place))
        return
    yield from (_told(member, _NOTHING, path) for _, member in gone)
    yield from (_told(_NOTHING, member, path) for _, member in new)


def _without(members: list[Any], others: list[Any], shape: Shape, level: int) -> list[tuple[int, Any]]:
    there = Counter(_form(each, shape, level) for each in others)
    left: list[tuple[int, Any]] = []
    for place, each in enumerate(members):
        form = _form(each, shape, level)
        if there[form]:
            there[form] -= 1
        else:
            left.append((place, each))
    return left


def _same(before: Any, after: Any, shape: Shape, level: int) -> bool:
    if before is _NOTHING or after is _NOTHING:
        return before is after
    return _form(before, shape, level) == _form(after, shape, level)


def _form(value: Any, shape: Shape, level: int) -> bytes:
    return canonical({"": meant(value, shape, level)})


def _told(before: Any, after: Any, path: Path) -> Difference:
    if isinstance(before, str) and isinstance(after, str):
        # Where two texts look the same, it is their letters that differ.
        letters = looks(before) == looks(after)
        old, new = _text(before, after, letters=letters), _text(after, before, letters=letters)
        return Difference(where=plain(pointer(path)), before=old, after=new)
    return Difference(where=plain(pointer(path)), before=_shown(before), after=_shown(after))


def _shown(value: Any) -> str | None:
    if value is _NOTHING:
        return None
    return _text(value, value) if isinstance(value, str) else "\n".join(plain_lines(value))


def _text(text: str, other: str, *, letters: bool = False) -> str:
    """A text as lines. A long one begins shortly before it differs from the other, or nobody would see where."""
    start = 0
    if len(text) > MOST and text != other:
        alike = zip(text, other, strict=False)
        first = next((place for place, (one, two) in enumerate(alike) if one != two), min(len(text), len(other)))
        start = max(0, first - _BEFORE_IT)
    same = f"⟨{start:,} characters as before …⟩" if start else ""
    rest = text[start:]
    over = f"⟨… {len(rest) - MOST:,} more of {len(text):,} characters⟩" if len(rest) > MOST else ""
    lines_of_it = "\n".join(shown(line, letters=letters) for line in rest[:MOST].split("\n"))
    return same + '"' + lines_of_it.replace('"', '\\"') + '"' + over


def _split(text: str | None) -> list[str]:
    return [] if text is None else text.split("\n")


def _marked(before: list[str], after: list[str]) -> Iterator[str]:
    for kind, old, old_end, new, new_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            kept = before[old:old_end]
            yield from (f"  {line}" for line in (kept if len(kept) <= 2 else [kept[0], "⟨…⟩", kept[-1]]))
        else:
            yield from (f"- {line}" for line in before[old:old_end])
            yield from (f"+ {line}" for line in after[new:new_end])
