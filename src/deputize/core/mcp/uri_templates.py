"""Match URIs against URI templates (RFC 6570), and reject URIs that try to be another than they look.

Expressions are matched for what they may expand to, without extracting variables: the match decides which server gets
the request, and the server interprets the URI. A variable stands for one path segment unless its expression says more.
A URI that climbs (`..`, however encoded) never matches. Time grows linearly with the length of URI and template.
"""

import re
from functools import lru_cache
from string import ascii_letters, digits
from typing import Final
from urllib.parse import unquote

from deputize.core.value_types import frozen

MAX_URI_LENGTH: Final = 2048
MAX_EXPRESSIONS: Final = 8
_SEGMENT_CHARACTERS: Final = frozenset(ascii_letters + digits + "-._~%!$&'()*+,;=:@")
_RESERVED_CHARACTERS: Final = _SEGMENT_CHARACTERS | frozenset("/?#[]")
_VARIABLE: Final = r"[A-Za-z0-9_.%]+(?::[0-9]{1,4}|\*)?"
_EXPRESSION: Final = re.compile(rf"\{{([+#./;?&]?){_VARIABLE}(?:,{_VARIABLE})*\}}")
_VISIBLE_ASCII: Final = re.compile(r"[\x21-\x7e]+")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_PART_SEPARATOR: Final = re.compile(r"[/\\?#&=;,:]")
# A URI that is still encoded after this many decodings is rejected.
_MAX_DECODINGS: Final = 4


class BadTemplate(ValueError):
    """The text is not a template that can be matched."""


@frozen
class _CharacterRun:
    """Characters that an expression may expand to. One with an operator that adds a first character may be empty."""

    characters: frozenset[str]
    first: str = ""


_RUN_BY_OPERATOR: Final = {
    "": _CharacterRun(characters=_SEGMENT_CHARACTERS),
    "+": _CharacterRun(characters=_RESERVED_CHARACTERS),
    "#": _CharacterRun(characters=_RESERVED_CHARACTERS, first="#"),
    ".": _CharacterRun(characters=_SEGMENT_CHARACTERS, first="."),
    "/": _CharacterRun(characters=_SEGMENT_CHARACTERS | {"/"}, first="/"),
    ";": _CharacterRun(characters=_SEGMENT_CHARACTERS, first=";"),
    "?": _CharacterRun(characters=_SEGMENT_CHARACTERS | {"/", "?"}, first="?"),
    "&": _CharacterRun(characters=_SEGMENT_CHARACTERS | {"/", "?"}, first="&"),
}


def can_expand_to(template: str, uri: str) -> bool:
    """Tell whether the template can expand to this URI, and the URI is safe. An invalid template matches nothing."""
    try:
        first, *rest = compile_template(template)
    except BadTemplate:
        return False
    # Every template begins with literal text, which rules out most URIs at once.
    if not (isinstance(first, str) and uri.startswith(first)) or not is_safe_uri(uri):
        return False
    ends = {len(first)}
    for piece in rest:
        ends = _match_piece(piece, uri, ends)
        if not ends:
            return False
    return len(uri) in ends


@lru_cache(maxsize=4096)
def compile_template(template: str) -> tuple[str | _CharacterRun, ...]:
    """Split a template into literals and runs. Raise `BadTemplate` unless it begins with a literal scheme."""
    pieces: list[str | _CharacterRun] = []
    position = 0
    for expression in _EXPRESSION.finditer(template):
        pieces += [template[position : expression.start()], _RUN_BY_OPERATOR[expression[1]]]
        position = expression.end()
    pieces.append(template[position:])
    literals = [each for each in pieces if isinstance(each, str)]
    if any("{" in each or "}" in each for each in literals) or len(literals) - 1 > MAX_EXPRESSIONS:
        raise BadTemplate("its expressions are not valid in RFC 6570, or there are too many")
    if ":" not in literals[0]:
        raise BadTemplate("it must begin with a literal scheme, such as file:")
    return tuple(each for each in pieces if each)


def is_safe_uri(uri: str) -> bool:
    """Tell whether a URI is well formed and does not climb, at each level of percent-encoding."""
    if not 0 < len(uri) <= MAX_URI_LENGTH or not _VISIBLE_ASCII.fullmatch(uri):
        return False
    if _BAD_ESCAPE.search(uri):
        return False
    for _ in range(_MAX_DECODINGS):
        if any(part in (".", "..") for part in _PART_SEPARATOR.split(uri)):
            return False
        try:
            unescaped_uri = unquote(uri, errors="strict")
        except UnicodeDecodeError:
            return False
        if any(each < " " or each == "\x7f" for each in unescaped_uri):
            return False
        if unescaped_uri == uri:
            return True
        uri = unescaped_uri
    return False


def _match_piece(piece: "str | _CharacterRun", uri: str, starts: set[int]) -> set[int]:
    """Find the positions where the piece may end, given those where it may begin."""
    if isinstance(piece, str):
        return {start + len(piece) for start in starts if uri.startswith(piece, start)}
    ends = set(starts) if piece.first else set()
    is_inside = False
    for position in range(min(starts), len(uri)):
        each = uri[position]
        can_begin = position in starts and (each == piece.first if piece.first else each in piece.characters)
        is_inside = can_begin or (is_inside and each in piece.characters)
        if is_inside:
            ends.add(position + 1)
    return ends
