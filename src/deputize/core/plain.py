"""What callers wrote, made safe for people to read: on a page, in a terminal, in a message.

Nothing that is shown can hide, reorder, colour or overprint anything: whatever a reader could not see for what it is
becomes an escape. Backslashes are doubled and our own marks `⟨…⟩` escaped, so no two texts look alike unless they are
clipped, and nobody can write what looks like a word of ours. Doors still escape markup for the medium they write.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from unicodedata import category

MOST = 2000
MOST_LINES = 200
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
_OUR_MARKS = "⟨⟩"
# Printable to Python and invisible to people: fillers, blanks, and selectors that can carry whole messages.
_UNSEEN = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2065\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)
# More marks than any script puts on one letter run over the lines above and below.
_MOST_MARKS = 4


def plain(text: str, most: int = MOST) -> str:
    """The text on one line of visible characters; what is over `most` of them is left out, and counted."""
    shown, rest = clip(text, most)
    return f"{shown}⟨… {rest:,} more of {len(text):,} characters⟩" if rest else shown


def clip(text: str, most: int = MOST) -> tuple[str, int]:
    """The same in two parts, for doors that mark what is missing in their own way: what fits, how much does not."""
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text[:most], max(0, len(text) - most)
    shown: list[str] = []
    room, marks = most, _MOST_MARKS
    for index, character in enumerate(text):
        # Nothing of the caller's precedes the first character that its mark could stand on.
        marks = marks + 1 if category(character) in ("Mn", "Me") else 0
        visible = _visible(character) if marks <= _MOST_MARKS else _escape(character)
        room -= len(visible)
        if room < 0:
            return "".join(shown), len(text) - index
        shown.append(visible)
    return "".join(shown), 0


def plain_lines(value: object, most: int = MOST, most_lines: int = MOST_LINES) -> list[str]:
    """A JSON value as indented lines, each like `plain`; texts are quoted, so that 7 and "7" differ."""
    lines = _lines(value, indent="", member=None, end="")
    shown = [line.shown(most) for line in islice(lines, most_lines)]
    rest = sum(1 for _ in lines)
    return [*shown, f"⟨… {rest:,} more lines⟩"] if rest else shown


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """One line before it is written out, which costs more than counting it. Without a `bracket` it holds `leaf`."""

    indent: str
    member: str | None
    bracket: str = ""
    leaf: object = None
    end: str = ""

    def shown(self, most: int) -> str:
        named = "" if self.member is None else f"{_quoted(self.member, most)}: "
        return f"{self.indent}{named}{self.bracket or _leaf(self.leaf, most)}{self.end}"


def _lines(value: object, *, indent: str, member: str | None, end: str) -> Iterator[_Line]:
    inside: list[tuple[str | None, object]]
    match value:
        case dict() if value:
            opens, closes, inside = "{", "}", [(str(name), each) for name, each in value.items()]
        case list() | tuple() if value:
            opens, closes, inside = "[", "]", [(None, each) for each in value]
        case _:
            yield _Line(indent=indent, member=member, leaf=value, end=end)
            return
    yield _Line(indent=indent, member=member, bracket=opens)
    for place, (name, each) in enumerate(inside, start=1):
        yield from _lines(each, indent=indent + "  ", member=name, end="," if place < len(inside) else "")
    yield _Line(indent=indent, member=None, bracket=closes, end=end)


def _leaf(value: object, most: int) -> str:
    if isinstance(value, str):
        return _quoted(value, most)
    if value is None or isinstance(value, bool | int | float | list | dict):
        return json.dumps(value)
    return _quoted(str(value), most)


def _quoted(text: str, most: int) -> str:
    shown, rest = clip(text, most)
    end = f"⟨… {rest:,} more of {len(text):,} characters⟩" if rest else '"'
    return '"' + shown.replace('"', '\\"') + end


def _visible(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if not character.isprintable() or character in _UNSEEN or character in _OUR_MARKS:
        return _escape(character)
    return character


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
