"""JSON from outside, read once and refused whole when any part of it is poison.

orjson already refuses broken UTF-8, lone surrogates, NaN, infinities and nesting past 1024. What it lets through, and
what a database, a digest or another parser would take differently, is refused here: NUL characters, integers that a
double cannot hold exactly, a name given twice in one object, deep nesting. Whether a body needs that closer look is
seen from its bytes alone, so that an ordinary one costs a few scans.

Above: every door that takes a body. Below: nothing of ours but the problems.
"""

import json
from typing import Any, NoReturn

import orjson

from deputize.core.errors import ParseFailed

_DIGITS_TO_ZERO = bytes.maketrans(b"0123456789", b"0" * 10)
_SIXTEEN_DIGITS = b"0" * 16
_BACKSLASH = 0x5C
_NUL = b"\\u0000"
# The one way to write a quotation mark without writing one; it would upset the count of them.
_QUOTE = b"\\u0022"
_MOST_EXACT = 2**53 - 1
_LONGEST_EXACT = 17


def read_json(body: bytes, max_depth: int) -> Any:
    """The one JSON value in `body`, or `ParseFailed` with what is wrong with it."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ParseFailed(f"the body is not JSON: {error}") from None
    if (
        (_BACKSLASH in body and (_NUL in body or _QUOTE in body))
        or _SIXTEEN_DIGITS in body.translate(_DIGITS_TO_ZERO)
        or body.count(b"{") + body.count(b"[") > max_depth
        # A name given twice is read once, and leaves fewer quotation marks than were sent.
        or body.count(b'"') != orjson.dumps(value).count(b'"')
    ):
        _look_closely(body, value, max_depth)
    return value


def _look_closely(body: bytes, value: Any, max_depth: int) -> None:
    _check_depth_and_text(value, max_depth)
    # Depth is known to be small by now, so the recursive parser is safe.
    json.loads(body, object_pairs_hook=_once, parse_int=_exact)


def _check_depth_and_text(value: Any, max_depth: int) -> None:
    waiting = [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        if isinstance(each, str):
            if "\0" in each:
                raise ParseFailed("the body contains a NUL character")
        elif isinstance(each, dict | list):
            if depth >= max_depth:
                raise ParseFailed(f"the body is nested deeper than {max_depth} levels")
            parts = each if isinstance(each, list) else (*each.keys(), *each.values())
            waiting += [(part, depth + 1) for part in parts if isinstance(part, str | dict | list)]


def _once(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ParseFailed(f"the body gives the name {twice[:64]!r} twice in one object")


def _exact(digits: str) -> int:
    if len(digits) > _LONGEST_EXACT or abs(int(digits)) > _MOST_EXACT:
        _inexact(digits)
    return 0


def _inexact(digits: str) -> NoReturn:
    raise ParseFailed(f"the number {digits[:24]} is beyond 2^53, where not every reader sees the same; send it as text")
