"""Characters in a text that a reader does not see for what they are, and a model reads all the same.

What has an honest use stays: the joiner inside an emoji or a word of a script that needs it, the selector right behind
a symbol, one accent on a letter. Above: `flags.py`.
"""

import re
from collections.abc import Iterator
from typing import Final
from unicodedata import category

_ZWNJ, _ZWJ = "\u200c", "\u200d"
_TEXT_OR_EMOJI = "\ufe0e\ufe0f"
_LINES = "\n\r\t"
# Seen as nothing, though they count as letters, marks or symbols.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u2800\u3164\uffa0")
_KEYCAPS = frozenset("0123456789#*")
# Nothing to see, then text: far right of what a window shows, or far below.
_FAR_AWAY = re.compile(r"[^\S\n]{60,}(?=\S)|(?:\s*\n){15,}(?=\s*\S)")
_COMMENT = re.compile(r"<!--.{0,2000}?(?:-->|$)", re.DOTALL)

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
    if not text.isascii() or not text.isprintable():
        yield from _characters(text)
    for found in _FAR_AWAY.finditer(text):
        yield found.start(), found.end(), "so much emptiness that what comes after it is out of sight"
    for found in _COMMENT.finditer(text):
        yield found.start(), found.end(), "a comment, which pages do not show and models read"


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
    character = text[place]
    if character in _LINES or (character.isprintable() and not _may_be_unseen(character)):
        return None
    if character in _BLANKS:
        return "blanks that count as letters"
    code, group = ord(character), category(character)
    if group in ("Cf", "Mn"):
        named = next((kind for low, high, kind in _KINDS if low <= code <= high), None)
        if group == "Mn":
            return named if named is not None and not _is_in_place(text, place) else None
        return None if _is_in_place(text, place) else named or "characters that are not shown"
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
