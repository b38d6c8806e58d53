"""Names that pass for other names: letters of one script among those of another, and what two names look like.

A small table of the letters that are really used for it, not the thousands of Unicode's: compatibility forms (full
width, mathematical, circled) are folded by normalisation first. Above: `flags.py`.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final
from unicodedata import normalize

from deputize.catalog.drift.hidden import without_hidden

# Letters of other scripts that look like a Latin one: Cyrillic, Greek, Armenian, Cherokee and stray Latin.
_LOOKS_LIKE: Final = {
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
_TWINS: Final = str.maketrans({twin: letter for letter, twins in _LOOKS_LIKE.items() for twin in twins})
_SAME_TO_THE_EYE: Final = str.maketrans({"0": "o", "1": "l", "i": "l", "|": "l", "!": "l", "5": "s", "$": "s"})
_PAIRS: Final = (("rn", "m"), ("vv", "w"), ("cl", "d"))
_APART = re.compile(r"[\W_]+")
_SHORTEST_MASK: Final = 3
_WORD = re.compile(r"[^\W\d_]{2,}")


@lru_cache(maxsize=65_536)
def skeleton(name: str) -> str:
    """What a name looks like: two names with one skeleton are taken for each other."""
    plain = "".join(each for each in normalize("NFD", looks(name).casefold()) if not "\u0300" <= each <= "\u036f")
    for pair, single in _PAIRS:
        plain = plain.replace(pair, single)
    return _APART.sub("", plain).translate(_SAME_TO_THE_EYE)


def looks(text: str) -> str:
    """What a text looks like: as it is, with letters that pass for Latin ones written as those."""
    return normalize("NFKC", without_hidden(text)).translate(_TWINS)


def mixed(text: str) -> Iterator[tuple[int, int]]:
    """Where words mix Latin letters with others that look like Latin ones, and where, in a Latin text, words are of
    such letters throughout.
    """
    if text.isascii():
        return
    latin = any(each.isascii() and each.isalpha() for each in text) and poses_as_latin(text)
    for found in _WORD.finditer(text):
        word = found[0]
        if not word.isascii() and _has_twin(word):
            among_latin = any("a" <= each <= "z" for each in word.casefold())
            if among_latin or (latin and len(word) >= _SHORTEST_MASK):
                yield found.start(), found.end()


def poses_as_latin(name: str) -> bool:
    """Whether a name is of other letters, all or some, and reads as if it were of Latin ones throughout."""
    letters = [each for each in name if each.isalpha()]
    strange = [each for each in letters if not each.isascii()]
    return bool(strange) and all(each.translate(_TWINS).isascii() for each in strange)


def _has_twin(word: str) -> bool:
    return any(not each.isascii() and each.translate(_TWINS).isascii() for each in word)
