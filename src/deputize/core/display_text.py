"""Make callers' text safe to show to people: on a page, in a terminal, in a notification.

Shown text cannot hide, reorder, colour or overprint anything: every character that a reader could not see for what it
is becomes an escape. Backslashes are doubled and our own marks `⟨…⟩` escaped, so no two texts look alike unless they
are clipped, and no caller can imitate the gateway's words. Interfaces still escape the markup of their medium.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from unicodedata import category

MAX_CHARACTERS = 2000
MAX_LINES = 200
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
_OUR_MARKS = "⟨⟩"
# Printable for Python, invisible for people: fillers, blanks, and selectors that can encode whole messages.
_INVISIBLE_CHARACTERS = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2065\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)
# More marks on one letter than any script uses would overprint the lines above and below.
_MAX_COMBINING_MARKS = 4


def to_display_text(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Render text on one line of visible characters; characters over the limit are counted, not shown."""
    visible_text, rest = clip_text(text, limit)
    return f"{visible_text}⟨… {rest:,} more of {len(text):,} characters⟩" if rest else visible_text


def clip_text(text: str, limit: int = MAX_CHARACTERS) -> tuple[str, int]:
    """Return what fits and how many characters do not, for interfaces that mark the rest in their own way."""
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text[:limit], max(0, len(text) - limit)
    parts: list[str] = []
    room, marks = limit, _MAX_COMBINING_MARKS
    for index, character in enumerate(text):
        # The first character may not be a mark: it would combine with text that is not the caller's.
        marks = marks + 1 if category(character) in ("Mn", "Me") else 0
        visible = _make_visible(character) if marks <= _MAX_COMBINING_MARKS else _escape(character)
        room -= len(visible)
        if room < 0:
            return "".join(parts), len(text) - index
        parts.append(visible)
    return "".join(parts), 0


def to_display_lines(value: object, limit: int = MAX_CHARACTERS, line_limit: int = MAX_LINES) -> list[str]:
    """Render a JSON value as indented lines of visible characters; strings are quoted, so that 7 and "7" differ."""
    lines = _iterate_lines(value, indent="", member=None, end="")
    texts = [line.render(limit) for line in islice(lines, line_limit)]
    rest = sum(1 for _ in lines)
    return [*texts, f"⟨… {rest:,} more lines⟩"] if rest else texts


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """A line that is not rendered yet: counting lines is cheaper than rendering them. It has a bracket or a leaf."""

    indent: str
    member: str | None
    bracket: str = ""
    leaf: object = None
    end: str = ""

    def render(self, limit: int) -> str:
        prefix = "" if self.member is None else f"{_quote(self.member, limit)}: "
        return f"{self.indent}{prefix}{self.bracket or _render_leaf(self.leaf, limit)}{self.end}"


def _iterate_lines(value: object, *, indent: str, member: str | None, end: str) -> Iterator[_Line]:
    members: list[tuple[str | None, object]]
    match value:
        case dict() if value:
            open_bracket, close_bracket, members = "{", "}", [(str(name), each) for name, each in value.items()]
        case list() | tuple() if value:
            open_bracket, close_bracket, members = "[", "]", [(None, each) for each in value]
        case _:
            yield _Line(indent=indent, member=member, leaf=value, end=end)
            return
    yield _Line(indent=indent, member=member, bracket=open_bracket)
    for position, (name, each) in enumerate(members, start=1):
        yield from _iterate_lines(each, indent=indent + "  ", member=name, end="," if position < len(members) else "")
    yield _Line(indent=indent, member=None, bracket=close_bracket, end=end)


def _render_leaf(value: object, limit: int) -> str:
    if isinstance(value, str):
        return _quote(value, limit)
    if value is None or isinstance(value, bool | int | float | list | dict):
        return json.dumps(value)
    return _quote(str(value), limit)


def _quote(text: str, limit: int) -> str:
    visible_text, rest = clip_text(text, limit)
    end = f"⟨… {rest:,} more of {len(text):,} characters⟩" if rest else '"'
    return '"' + visible_text.replace('"', '\\"') + end


def _make_visible(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    if not character.isprintable() or character in _INVISIBLE_CHARACTERS or character in _OUR_MARKS:
        return _escape(character)
    return character


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
