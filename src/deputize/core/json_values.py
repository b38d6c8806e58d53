"""Count the values of JSON documents, and limit them: small values cost far more time than their bytes suggest.

A megabyte of `{}` is 340,000 objects, and each step of a call looks at each of them.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# The values of one request, and of one answer of a server. Beyond it, a document is refused.
MAX_VALUES: Final = 20_000
MAX_ANSWER_VALUES: Final = 100_000
# A document with more bytes or values is read in a thread: a step that looks at each value takes some 3 µs for each.
_SMALL_BYTES: Final = 131_072
_SMALL_VALUES: Final = 2_000
_CONTAINERS: Final = (dict, list)
_SHORT_TYPES: Final = frozenset({int, float, bool, type(None)})


def has_more_values(value: Any, most: int) -> bool:
    """Tell whether a document contains more than so many values, and stop counting there."""
    count = 0
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, dict | list):
            count += len(each)
            if count > most:
                return True
            stack += [
                child for child in (each.values() if isinstance(each, dict) else each) if type(child) in (dict, list)
            ]
    return False


def is_large_value(value: Any, *, most_values: int = _SMALL_VALUES, most_length: int = _SMALL_BYTES) -> bool:
    """Tell whether a value has too many values or too much text to look at each of them on the event loop."""
    count = length = 0
    values = [value]
    # Every call's arguments and result pass here: the exact types first, because isinstance takes much longer.
    for each in values:
        kind = type(each)
        if kind is str:
            length += len(each)
        elif kind in _SHORT_TYPES:
            continue
        elif kind is dict or kind is list or isinstance(each, _CONTAINERS):
            count += len(each)
            if count > most_values:
                return True
            values += each
            if kind is not list and isinstance(each, dict):
                values += each.values()
        elif isinstance(each, str):
            length += len(each)
        if length > most_length:
            return True
    return False


async def run_for_value(value: Any, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run work that looks at each part of a value: here if it is small, in a thread if it is large."""
    return await asyncio.to_thread(work, *args, **kwargs) if is_large_value(value) else work(*args, **kwargs)


def has_too_many_values(body: bytes, most: int) -> bool:
    """Tell from JSON text alone that it has more than so many values; False if only parsing can tell.

    Outside of texts, each value comes with at most one comma and one bracket.
    """
    if count_values_in(body) <= 2 * most + 1:
        return False
    without_escapes = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Each value comes with at most two texts, one of them its name.
    if without_escapes.count(b'"') > 4 * most:
        return True
    return count_values_in(b"".join(without_escapes.split(b'"')[::2])) > 2 * most + 1


def is_large_document(body: bytes) -> bool:
    """Tell whether a document is too large to look at each of its values on the event loop."""
    return len(body) > _SMALL_VALUES and (len(body) > _SMALL_BYTES or count_values_in(body) > _SMALL_VALUES)


def count_values_in(body: bytes) -> int:
    """Count how many values JSON text can have at most, without parsing it; punctuation inside of texts counts too."""
    return body.count(b",") + body.count(b"{") + body.count(b"[") + 1
