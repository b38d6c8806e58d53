"""Canonical JSON (RFC 8785), the one byte form that digests, fingerprints and audit entries are made from.

`rfc8785` is right and slow. Sorted orjson output is byte-identical for the values agents really send, so it is
used wherever its bytes prove that they cannot differ; `tests/unit/core/test_canonical.py` holds the two equal.
"""

import hashlib
import hmac
import math
from typing import Any

import orjson
import rfc8785

# What makes sorted orjson output differ from RFC 8785, and how its bytes give that away:
# a float: once digits and signs are gone, a point or an exponent stands right where a value starts;
# an astral character (four-byte UTF-8): RFC 8785 sorts by UTF-16 units, which puts it before U+E000.
# Integers past 2^53, and everything that is not plain JSON, never get that far: orjson refuses them.
_SORTED_JSON_ONLY = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_STRICT_INTEGER
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_DIGITS_AND_SIGN = b"0123456789-"
_STARTS_AND_MARKS = bytes.maketrans(b",[.", b"::e")
_FLOAT = b":e"
_ASTRAL_LEADS = tuple(bytes([lead]) for lead in range(0xF0, 0xF5))


class NotCanonical(ValueError):
    """The value has no canonical form: a number outside the safe range, a lone surrogate, a key that is no string."""


def canonical(value: Any) -> bytes:
    """The RFC 8785 bytes of a JSON value."""
    if type(value) is dict:
        try:
            fast = orjson.dumps(value, option=_SORTED_JSON_ONLY)
        except TypeError:
            return _by_the_book(value)
        # NaN and the infinities come out as null, which alone cannot be told from a null that was meant.
        if not _may_differ(fast) and (b"null" not in fast or _all_finite(value)):
            return fast
    return _by_the_book(value)


def _by_the_book(value: Any) -> bytes:
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError) as error:
        raise NotCanonical(str(error)) from error


def _may_differ(fast: bytes) -> bool:
    if _FLOAT in fast.translate(_STARTS_AND_MARKS, _DIGITS_AND_SIGN):
        return True
    return not fast.isascii() and any(lead in fast for lead in _ASTRAL_LEADS)


def _all_finite(value: Any) -> bool:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, float):
            if not math.isfinite(each):
                return False
        elif isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each
    return True


def digest(value: Any) -> str:
    """`sha256:…` over the canonical bytes; the form in which contracts and policies are named."""
    return "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


def fingerprint(key: bytes, tool: str, arguments: bytes) -> bytes:
    """What a request asked for, from its canonical arguments, keyed by tenant: equal keys with unequal fingerprints are
    a caller's mistake."""
    return hmac.digest(key, tool.encode() + b"\0" + arguments, "sha256")


def commitment(salt: bytes, data: bytes) -> str:
    """A salted hash: proves the value to who holds the salt, says nothing once the salt is erased."""
    return hashlib.sha256(salt + data).hexdigest()
