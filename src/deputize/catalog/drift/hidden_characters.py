"""Find characters and comments that people do not see but models read.

Legitimate uses are allowed: a joiner inside an emoji or in a script that needs it, a variation selector after a symbol,
an accent on a letter.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final
from unicodedata import category

_ZWNJ, _ZWJ = "\u200c", "\u200d"
_SELECTORS = "\ufe0e\ufe0f"
_JOINERS_AND_SELECTORS = _ZWNJ + _ZWJ + _SELECTORS
_LINE_CHARACTERS = "\n\r\t"
# These render as blanks, although Unicode classifies them as letters, marks or symbols.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u2800\u3164\uffa0")
_KEYCAPS = frozenset("0123456789#*")
_LONG_WHITESPACE = re.compile(r"\s{15,}")
_FAR_RIGHT: Final = 60
_FAR_BELOW: Final = 15
_COMMENT: Final = "<!--"

_KINDS: Final = (
    (0xE0000, 0xE007F, "Unicode tag characters, which are invisible but readable for models"),
    (0xE0100, 0xE01EF, "variation selectors, which can encode a message"),
    (0xFE00, 0xFE0F, "variation selectors, which can encode a message"),
    (0x202A, 0x202E, "bidirectional control characters, which show text in another order"),
    (0x2066, 0x2069, "bidirectional control characters, which show text in another order"),
    (0x200E, 0x200F, "bidirectional control characters, which show text in another order"),
    (0x061C, 0x061C, "bidirectional control characters, which show text in another order"),
    (0x200B, 0x200D, "zero-width characters"),
    (0x2060, 0x2064, "zero-width characters"),
    (0xFEFF, 0xFEFF, "zero-width characters"),
)


def find_hidden_text(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and kind of each hidden span; adjacent characters of one kind form one span."""
    if text.isascii() and text.isalnum():
        return
    if not text.isascii() or not text.isprintable():
        yield from _find_hidden_characters(text)
    yield from _find_off_screen(text)
    start = text.find(_COMMENT)
    if start >= 0:
        end = text.find("-->", start)
        yield start, end + 3 if end >= 0 else len(text), "an HTML comment, which pages do not show but models read"


def _find_off_screen(text: str) -> Iterator[tuple[int, int, str]]:
    """Find text after so much whitespace that it is out of view, to the right or below."""
    for match in _LONG_WHITESPACE.finditer(text):
        lines = match[0].split("\n")
        if match.end() < len(text) and (len(lines) > _FAR_BELOW or max(map(len, lines)) >= _FAR_RIGHT):
            yield match.start(), match.end(), "so much whitespace that the text after it is out of view"


def strip_hidden(text: str) -> str:
    """Remove hidden characters, as a model may read the text."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(each for place, each in enumerate(text) if _classify_at(text, place) is None)


def _find_hidden_characters(text: str) -> Iterator[tuple[int, int, str]]:
    span: tuple[int, str] | None = None
    for place in range(len(text) + 1):
        kind = _classify_at(text, place) if place < len(text) else None
        if span is not None and kind != span[1]:
            yield span[0], place, span[1]
            span = None
        if kind is not None and span is None:
            span = (place, kind)


def _classify_at(text: str, place: int) -> str | None:
    kind = _classify_character(text[place])
    return None if kind is not None and text[place] in _JOINERS_AND_SELECTORS and _is_legitimate(text, place) else kind


@lru_cache(maxsize=4096)
def _classify_character(character: str) -> str | None:
    if character in _LINE_CHARACTERS or (character.isprintable() and not _is_possibly_invisible(character)):
        return None
    if character in _BLANKS:
        return "blank characters that count as letters"
    code, group = ord(character), category(character)
    if group in ("Cf", "Mn"):
        kinds = (kind for low, high, kind in _KINDS if low <= code <= high)
        return next(kinds, "invisible characters")
    if group == "Cc":
        return "control characters"
    if group in ("Co", "Cs") or (group == "Cn" and (code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF)):
        return "private-use or invalid characters"
    return None


def _is_possibly_invisible(character: str) -> bool:
    return character in _BLANKS or "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"


def _is_legitimate(text: str, place: int) -> bool:
    """Tell whether a joiner or variation selector is where the script or emoji needs it."""
    character, before = text[place], text[place - 1] if place else ""
    if not before:
        return False
    if character in _SELECTORS:
        return category(before) in ("So", "Sm", "Po") or before in _KEYCAPS
    if character in (_ZWJ, _ZWNJ):
        after = text[place + 1 : place + 2]
        if character == _ZWJ and category(after or "a") == "So":
            return category(before) in ("So", "Sk") or before in _SELECTORS
        return bool(after) and all(category(each)[0] in "LM" and each >= "\u0600" for each in (before, after))
    return False
