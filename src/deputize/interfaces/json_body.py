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
from deputize.core.json_values import MAX_VALUES, has_more_values

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
    return _read_counted(body, max_depth, *_count_values(body))


def _count_values(body: bytes) -> tuple[int, int]:
    """Count how many values JSON text can have at most, and how many objects and arrays, without parsing it."""
    containers = body.count(b"{") + body.count(b"[")
    return containers + body.count(b",") + 1, containers


def _read_counted(body: bytes, max_depth: int, values: int, containers: int) -> Any:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ParseFailed(f"the body is not JSON: {error}") from None
    if values > MAX_VALUES and has_more_values(value, MAX_VALUES):
        raise ParseFailed(f"the body has more than {MAX_VALUES:,} values; send less at once")
    # First: what recurses below is safe at a small depth only.
    if containers > max_depth:
        _check_depth(value, max_depth)
    if _BACKSLASH in body and _ESCAPED_NUL in body:
        _check_text(value)
    if (
        (_BACKSLASH in body and _ESCAPED_QUOTE in body)
        or _SIXTEEN_DIGITS in body.translate(_DIGITS_TO_ZERO)
        # A repeated name is parsed once, which leaves fewer quotation marks than were sent.
        or body.count(b'"') != orjson.dumps(value).count(b'"')
    ):
        json.loads(body, object_pairs_hook=_reject_duplicate_names, parse_int=_require_exact_integer)
    return value


async def read_json_off_loop(body: bytes, max_depth: int) -> Any:
    """Parse a body as `read_json` does, and a large one in a thread."""
    if len(body) > _SMALL_BODY_BYTES:
        return await asyncio.to_thread(read_json, body, max_depth)
    values, containers = _count_values(body)
    if values > _SMALL_BODY_VALUES:
        return await asyncio.to_thread(_read_counted, body, max_depth, values, containers)
    return _read_counted(body, max_depth, values, containers)


def _check_depth(value: Any, max_depth: int) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(max_depth):
        level = [
            part
            for each in level
            for part in (each.values() if isinstance(each, dict) else each)
            if isinstance(part, dict | list)
        ]
        if not level:
            return
    raise ParseFailed(f"the body is nested deeper than {max_depth} levels")


def _check_text(value: Any) -> None:
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, str):
            if "\0" in each:
                raise ParseFailed("the body contains a NUL character")
        elif isinstance(each, dict):
            stack += (*each.keys(), *each.values())
        elif isinstance(each, list):
            stack += each


def _reject_duplicate_names(pairs: list[tuple[str, Any]]) -> None:
    known_names: set[str] = set()
    for name, _ in pairs:
        if name in known_names:
            raise ParseFailed(f"the body has the name {name[:64]!r} twice in one object")
        known_names.add(name)


def _require_exact_integer(digits: str) -> int:
    if len(digits) > _MAX_EXACT_DIGITS or abs(int(digits)) > _MAX_EXACT_INTEGER:
        _raise_inexact_number(digits)
    return 0


def _raise_inexact_number(digits: str) -> NoReturn:
    raise ParseFailed(f"the number {digits[:24]} is beyond 2^53, where not all readers agree; send it as text")
