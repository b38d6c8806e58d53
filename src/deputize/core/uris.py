"""Whether an address is one that a template stands for (RFC 6570), and whether it tries to be another than it looks.

Expressions are matched for what they may expand to, not taken apart: which server is asked is decided by it, what the
address means is the server's to say. A variable stands for one segment of a path unless its expression says more, and
nothing that climbs (`..`, however encoded) is matched at all. The time it takes grows with address and template, not
with what they make of each other.

Above: `core/offers.py`. Below: nothing.
"""

import re
from functools import lru_cache
from string import ascii_letters, digits
from typing import Final
from urllib.parse import unquote

from deputize.core.frozen import frozen

LONGEST_URI: Final = 2048
MOST_EXPRESSIONS: Final = 8
_SEGMENT: Final = frozenset(ascii_letters + digits + "-._~%!$&'()*+,;=:@")
_ANYTHING: Final = _SEGMENT | frozenset("/?#[]")
_VARIABLE: Final = r"[A-Za-z0-9_.%]+(?::[0-9]{1,4}|\*)?"
_EXPRESSION: Final = re.compile(rf"\{{([+#./;?&]?){_VARIABLE}(?:,{_VARIABLE})*\}}")
_WRITTEN: Final = re.compile(r"[\x21-\x7e]+")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_PARTS: Final = re.compile(r"[/\\?#&=;,:]")
# How often something is decoded before it is held to be meant for nobody.
_MOST_DECODINGS: Final = 4


class BadTemplate(ValueError):
    """Not a template that anything could be matched with."""


@frozen
class _Run:
    """Characters an expression may expand to. One that begins with a mark of its own may also be left out."""

    allowed: frozenset[str]
    first: str = ""


_RUNS: Final = {
    "": _Run(allowed=_SEGMENT),
    "+": _Run(allowed=_ANYTHING),
    "#": _Run(allowed=_ANYTHING, first="#"),
    ".": _Run(allowed=_SEGMENT, first="."),
    "/": _Run(allowed=_SEGMENT | {"/"}, first="/"),
    ";": _Run(allowed=_SEGMENT, first=";"),
    "?": _Run(allowed=_SEGMENT | {"/", "?"}, first="?"),
    "&": _Run(allowed=_SEGMENT | {"/", "?"}, first="&"),
}


def matches(template: str, uri: str) -> bool:
    """Whether the template can be expanded to this address, and that is no trick. What is no template matches none."""
    try:
        first, *rest = compiled(template)
    except BadTemplate:
        return False
    # Every template begins with a text, which tells most addresses apart at once.
    if not (isinstance(first, str) and uri.startswith(first)) or not is_plain(uri):
        return False
    ends = {len(first)}
    for piece in rest:
        ends = _after(piece, uri, ends)
        if not ends:
            return False
    return len(uri) in ends


@lru_cache(maxsize=4096)
def compiled(template: str) -> tuple[str | _Run, ...]:
    """Raises `BadTemplate` for what is none. One that does not begin with some text would stand for any address."""
    pieces: list[str | _Run] = []
    done = 0
    for found in _EXPRESSION.finditer(template):
        pieces += [template[done : found.start()], _RUNS[found[1]]]
        done = found.end()
    pieces.append(template[done:])
    literals = [each for each in pieces if isinstance(each, str)]
    if any("{" in each or "}" in each for each in literals) or len(literals) - 1 > MOST_EXPRESSIONS:
        raise BadTemplate("its expressions are none of RFC 6570, or too many")
    if ":" not in literals[0]:
        raise BadTemplate("it leaves open which scheme it is about")
    return tuple(each for each in pieces if each)


def is_plain(uri: str) -> bool:
    """Whether an address can be taken for what it says: written as addresses are, and climbing nowhere. What was
    encoded several times over is looked at each time.
    """
    if not 0 < len(uri) <= LONGEST_URI or not _WRITTEN.fullmatch(uri):
        return False
    if _BAD_ESCAPE.search(uri):
        return False
    for _ in range(_MOST_DECODINGS):
        if any(part in (".", "..") for part in _PARTS.split(uri)):
            return False
        try:
            decoded = unquote(uri, errors="strict")
        except UnicodeDecodeError:
            return False
        if any(each < " " or each == "\x7f" for each in decoded):
            return False
        if decoded == uri:
            return True
        uri = decoded
    return False


def _after(piece: "str | _Run", uri: str, starts: set[int]) -> set[int]:
    """Where the piece may end, if it may begin at any of these places."""
    if isinstance(piece, str):
        return {start + len(piece) for start in starts if uri.startswith(piece, start)}
    ends = set(starts) if piece.first else set()
    within = False
    for place in range(min(starts), len(uri)):
        each = uri[place]
        begins = place in starts and (each == piece.first if piece.first else each in piece.allowed)
        within = begins or (within and each in piece.allowed)
        if within:
            ends.add(place + 1)
    return ends
