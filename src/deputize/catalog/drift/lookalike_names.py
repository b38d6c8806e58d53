"""Find names that look like other names: mixed scripts, and names with the same skeleton.

The table has only letters that are used in practice, not all of Unicode's confusables; compatibility forms (full
width, mathematical, circled) are normalized first.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final
from unicodedata import normalize

from deputize.catalog.drift.hidden_characters import strip_hidden

# Letters of other scripts that look like a Latin one: Cyrillic, Greek, Armenian, Cherokee and stray Latin.
_LOOKALIKES_BY_LATIN: Final = {
    "a": "\u0430\u0410\u03b1\u0391\u13aa\u0251",
    "b": "\u0432\u0412\u03b2\u0392\u13f4",
    "c": "\u0441\u0421\u03f2\u03f9\u13df",
    "d": "\u0501",
    "e": "\u0435\u0415\u03b5\u0395\u13ac",
    "g": "\u050c\u0581\u0261",
    "h": "\u04bb\u043d\u04ba\u041d\u0397\u0570\u13bb",
    "i": "\u0456\u0406\u03b9\u0399\u0131\ua7ae",
    "j": "\u0458\u0408\u03f3\u0575\u13ab",
    "k": "\u043a\u041a\u03ba\u039a\u13e6",
    "l": "\u04cf\u056c\u13de\u029f",
    "m": "\u043c\u041c\u039c\u13b7",
    "n": "\u03b7\u039d\u0578",
    "o": "\u043e\u041e\u03bf\u039f\u0585",
    "p": "\u0440\u0420\u03c1\u03a1\u13e2",
    "q": "\u051b\u0584\u0566",
    "r": "\u13d2",
    "s": "\u0455\u0405\u13da",
    "t": "\u0442\u0422\u03c4\u03a4\u13a2",
    "u": "\u03c5\u057d",
    "v": "\u0475\u0474\u03bd\u13d9",
    "w": "\u051d\u0461\u051c\u03c9\u13b3",
    "x": "\u0445\u0425\u03c7\u03a7",
    "y": "\u0443\u0423\u03b3\u03a5",
    "z": "\u0396",
}
_LOOKALIKES: Final = str.maketrans({twin: latin for latin, twins in _LOOKALIKES_BY_LATIN.items() for twin in twins})
_SIMILAR_CHARACTERS: Final = str.maketrans({"0": "o", "1": "l", "i": "l", "|": "l", "!": "l", "5": "s", "$": "s"})
_SIMILAR_PAIRS: Final = (("rn", "m"), ("vv", "w"), ("cl", "d"))
_SEPARATORS = re.compile(r"[\W_]+")
_SHORTEST_LOOKALIKE: Final = 3
_WORD = re.compile(r"[^\W\d_]{2,}")


@lru_cache(maxsize=65_536)
def make_skeleton(name: str) -> str:
    """Reduce a name to its skeleton: two names with the same skeleton look alike."""
    plain = "".join(
        each for each in normalize("NFD", normalize_lookalikes(name).casefold()) if not "\u0300" <= each <= "\u036f"
    )
    for pair, single in _SIMILAR_PAIRS:
        plain = plain.replace(pair, single)
    return _SEPARATORS.sub("", plain).translate(_SIMILAR_CHARACTERS)


def normalize_lookalikes(text: str) -> str:
    """Replace letters that look like Latin ones by the Latin ones."""
    return normalize("NFKC", strip_hidden(text)).translate(_LOOKALIKES)


def find_mixed_script(text: str) -> Iterator[tuple[int, int]]:
    """Find words that mix Latin letters with look-alikes, and words of look-alikes alone in a Latin text."""
    if text.isascii():
        return
    is_latin_text = any(each.isascii() and each.isalpha() for each in text) and is_latin_lookalike(text)
    for match in _WORD.finditer(text):
        word = match[0]
        if not word.isascii() and _has_lookalike(word):
            has_latin = any("a" <= each <= "z" for each in word.casefold())
            if has_latin or (is_latin_text and len(word) >= _SHORTEST_LOOKALIKE):
                yield match.start(), match.end()


def is_latin_lookalike(name: str) -> bool:
    """Tell whether a name has non-Latin letters and all of them look like Latin ones."""
    non_ascii = [each for each in name if each.isalpha() and not each.isascii()]
    return bool(non_ascii) and all(each.translate(_LOOKALIKES).isascii() for each in non_ascii)


def _has_lookalike(word: str) -> bool:
    return any(not each.isascii() and each.translate(_LOOKALIKES).isascii() for each in word)
