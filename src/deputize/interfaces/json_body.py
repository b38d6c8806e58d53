"""Parse JSON from outside, and refuse what other readers could understand differently.

orjson refuses broken UTF-8, lone surrogates, NaN, infinities and nesting past 1024. This module also refuses what a
database, a digest or another parser would read differently: NUL characters, integers that a double cannot hold exactly,
a name that stands twice in one object, and deep nesting. The bytes alone tell whether a body needs the strict check, so
an ordinary body costs a few scans.
"""

import asyncio
import json
from typing import Any, NoReturn

import orjson

from deputize.core.errors import ParseFailed
from deputize.core.json_values import MAX_VALUES, count_values_in, has_more_values

# Checking each value of a body takes up to 5 µs.
_SMALL_BODY_BYTES = 131_072
_SMALL_BODY_VALUES = 2_000
_DIGITS_TO_ZERO = bytes.maketrans(b"0123456789", b"0" * 10)
_SIXTEEN_DIGITS = b"0" * 16
_BACKSLASH = 0x5C
_ESCAPED_NUL = b"\\u0000"
# An escaped quotation mark would upset the count of quotation marks below.
_ESCAPED_QUOTE = b"\\u0022"
_MAX_EXACT_INTEGER = 2**53 - 1
_MAX_EXACT_DIGITS = 17


def read_json(body: bytes, max_depth: int) -> Any:
    """Parse the JSON value in `body`, or raise `ParseFailed` with the reason."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ParseFailed(f"the body is not JSON: {error}") from None
    if count_values_in(body) > MAX_VALUES and has_more_values(value, MAX_VALUES):
        raise ParseFailed(f"the body has more than {MAX_VALUES:,} values; send less at once")
    if (
        (_BACKSLASH in body and (_ESCAPED_NUL in body or _ESCAPED_QUOTE in body))
        or _SIXTEEN_DIGITS in body.translate(_DIGITS_TO_ZERO)
        or body.count(b"{") + body.count(b"[") > max_depth
        # A repeated name is parsed once, which leaves fewer quotation marks than were sent.
        or body.count(b'"') != orjson.dumps(value).count(b'"')
    ):
        _check_strictly(body, value, max_depth)
    return value


async def read_json_off_loop(body: bytes, max_depth: int) -> Any:
    """Parse a body as `read_json` does, and a large one in a thread."""
    if len(body) <= _SMALL_BODY_BYTES and count_values_in(body) <= _SMALL_BODY_VALUES:
        return read_json(body, max_depth)
    return await asyncio.to_thread(read_json, body, max_depth)


def _check_strictly(body: bytes, value: Any, max_depth: int) -> None:
    _check_depth_and_text(value, max_depth)
    # The depth is small by now, so the recursive parser is safe.
    json.loads(body, object_pairs_hook=_reject_duplicate_names, parse_int=_require_exact_integer)


def _check_depth_and_text(value: Any, max_depth: int) -> None:
    stack = [(value, 0)]
    while stack:
        each, depth = stack.pop()
        if isinstance(each, str):
            if "\0" in each:
                raise ParseFailed("the body contains a NUL character")
        elif isinstance(each, dict | list):
            if depth >= max_depth:
                raise ParseFailed(f"the body is nested deeper than {max_depth} levels")
            parts = each if isinstance(each, list) else (*each.keys(), *each.values())
            stack += [(part, depth + 1) for part in parts if isinstance(part, str | dict | list)]


def _reject_duplicate_names(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        duplicate = next(name for place, name in enumerate(names) if name in names[:place])
        raise ParseFailed(f"the body has the name {duplicate[:64]!r} twice in one object")


def _require_exact_integer(digits: str) -> int:
    if len(digits) > _MAX_EXACT_DIGITS or abs(int(digits)) > _MAX_EXACT_INTEGER:
        _raise_inexact_number(digits)
    return 0


def _raise_inexact_number(digits: str) -> NoReturn:
    raise ParseFailed(f"the number {digits[:24]} is beyond 2^53, where not all readers agree; send it as text")
