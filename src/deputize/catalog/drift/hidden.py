"""Characters in a text that a reader does not see for what they are, and a model reads all the same.

What has an honest use stays: the joiner inside an emoji or a word of a script that needs it, the selector right behind
a symbol, one accent on a letter. Above: `flags.py`.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final
from unicodedata import category

_ZWNJ, _ZWJ = "\u200c", "\u200d"
_TEXT_OR_EMOJI = "\ufe0e\ufe0f"
_NEEDED = _ZWNJ + _ZWJ + _TEXT_OR_EMOJI
_LINES = "\n\r\t"
# Seen as nothing, though they count as letters, marks or symbols.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u2800\u3164\uffa0")
_KEYCAPS = frozenset("0123456789#*")
_EMPTINESS = re.compile(r"\s{15,}")
_FAR_RIGHT: Final = 60
_FAR_BELOW: Final = 15
_COMMENT: Final = "<!--"

_KINDS: Final = (
    (0xE0000, 0xE007F, "letters written as tags, which no one sees and models read"),
    (0xE0100, 0xE01EF, "selectors that can carry a message"),
    (0xFE00, 0xFE0F, "selectors that can carry a message"),
    (0x202A, 0x202E, "marks that change the direction of writing, so that it reads otherwise than it is written"),
    (0x2066, 0x2069, "marks that change the direction of writing, so that it reads otherwise than it is written"),
    (0x200E, 0x200F, "marks that change the direction of writing, so that it reads otherwise than it is written"),
    (0x061C, 0x061C, "marks that change the direction of writing, so that it reads otherwise than it is written"),
    (0x200B, 0x200D, "characters without width"),
    (0x2060, 0x2064, "characters without width"),
    (0xFEFF, 0xFEFF, "characters without width"),
)


def hidden(text: str) -> Iterator[tuple[int, int, str]]:
    """Each stretch of what is hidden: where it begins and ends, and what it is. Stretches of one kind are one."""
    if text.isascii() and text.isalnum():
        return
    if not text.isascii() or not text.isprintable():
        yield from _characters(text)
    yield from _out_of_sight(text)
    start = text.find(_COMMENT)
    if start >= 0:
        end = text.find("-->", start)
        yield start, end + 3 if end >= 0 else len(text), "a comment, which pages do not show and models read"


def _out_of_sight(text: str) -> Iterator[tuple[int, int, str]]:
    """Nothing to see, then text: far right of what a window shows, or far below."""
    for found in _EMPTINESS.finditer(text):
        lines = found[0].split("\n")
        if found.end() < len(text) and (len(lines) > _FAR_BELOW or max(map(len, lines)) >= _FAR_RIGHT):
            yield found.start(), found.end(), "so much emptiness that what comes after it is out of sight"


def without_hidden(text: str) -> str:
    """The text as a model may put it together: what is hidden between letters does not part them."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(each for place, each in enumerate(text) if _kind(text, place) is None)


def _characters(text: str) -> Iterator[tuple[int, int, str]]:
    begun: tuple[int, str] | None = None
    for place in range(len(text) + 1):
        kind = _kind(text, place) if place < len(text) else None
        if begun is not None and kind != begun[1]:
            yield begun[0], place, begun[1]
            begun = None
        if kind is not None and begun is None:
            begun = (place, kind)


def _kind(text: str, place: int) -> str | None:
    kind = _kind_of(text[place])
    return None if kind is not None and text[place] in _NEEDED and _is_in_place(text, place) else kind


@lru_cache(maxsize=4096)
def _kind_of(character: str) -> str | None:
    if character in _LINES or (character.isprintable() and not _may_be_unseen(character)):
        return None
    if character in _BLANKS:
        return "blanks that count as letters"
    code, group = ord(character), category(character)
    if group in ("Cf", "Mn"):
        named = (kind for low, high, kind in _KINDS if low <= code <= high)
        return next(named, "characters that are not shown")
    if group == "Cc":
        return "control characters"
    if group in ("Co", "Cs") or (group == "Cn" and (code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF)):
        return "characters that mean nothing to anybody else"
    return None


def _may_be_unseen(character: str) -> bool:
    return character in _BLANKS or "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"


def _is_in_place(text: str, place: int) -> bool:
    """Whether a joiner or selector stands where writing needs it."""
    character, before = text[place], text[place - 1] if place else ""
    if not before:
        return False
    if character in _TEXT_OR_EMOJI:
        return category(before) in ("So", "Sm", "Po") or before in _KEYCAPS
    if character in (_ZWJ, _ZWNJ):
        after = text[place + 1 : place + 2]
        if character == _ZWJ and category(after or "a") == "So":
            return category(before) in ("So", "Sk") or before in _TEXT_OR_EMOJI
        return bool(after) and all(category(each)[0] in "LM" and each >= "\u0600" for each in (before, after))
    return False
