"""Write canonical JSON (RFC 8785), from which digests, fingerprints and audit entries are computed.

`rfc8785` is correct and slow. Sorted orjson output is byte-identical for most values, so it is used wherever its bytes
prove that they cannot differ; `tests/unit/core/test_canonical.py` compares the two.
"""

import hashlib
import hmac
import math
from typing import Any

import orjson
import rfc8785

# Where sorted orjson output differs from RFC 8785, and how its bytes show it:
# a float: with digits and signs removed, a point or an exponent stands where a value starts;
# an astral character (four-byte UTF-8): RFC 8785 sorts by UTF-16 units, which puts it before U+E000.
# orjson rejects integers past 2^53 and everything that is not plain JSON.
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
_LARGEST_EXACT_INTEGER = 2**53 - 1
_MAX_DESCRIBED_DEPTH = 100
_ASTRAL_LEADS = tuple(bytes([lead]) for lead in range(0xF0, 0xF5))


class NotCanonical(ValueError):
    """The value has no canonical form: a number outside the safe range, a lone surrogate, a key that is no string."""


def describe_unrepresentable(value: Any, place: str = "result", depth: int = 0) -> str | None:
    """Describe, for its author, the first part of a result that JSON does not have; None if not found.

    Its place is written as in Python: one with slashes would be hidden in errors like the path of a file.
    """
    match value:
        case None | bool():
            return None
        case float():
            is_number = math.isfinite(value)
            return None if is_number else f"{place} is {value}, which is no number in JSON; return None instead"
        case int():
            is_exact = abs(value) <= _LARGEST_EXACT_INTEGER
            return None if is_exact else f"{place} is an integer of more than 53 bits; return it as a text"
        case str():
            return None if value.isascii() or _is_unicode(value) else f"{place} is a text with half a surrogate pair"
        case dict() | list() | tuple() if depth > _MAX_DESCRIBED_DEPTH:
            return None
        case dict():
            name = next((each for each in value if not isinstance(each, str)), None)
            if name is not None:
                return f"{place} has the key {str(name)[:40]!r}, which is no text; write keys as texts"
            parts: Any = value.items()
        case list() | tuple():
            parts = enumerate(value)
        case _:
            hint = "return a list" if isinstance(value, set | frozenset) else "return text, numbers, lists and dicts"
            return f"{place} is of type {type(value).__name__}; {hint}"
    descriptions = (describe_unrepresentable(each, f"{place}[{name!r:.60}]", depth + 1) for name, each in parts)
    return next((each for each in descriptions if each is not None), None)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def canonicalize(value: Any) -> bytes:
    """Write a JSON value as RFC 8785 bytes."""
    return canonicalize_sorted(value, write_sorted(value)) if type(value) is dict else _canonicalize_slowly(value)


def write_sorted(value: dict[str, Any]) -> bytes | None:
    """Write an object with its keys sorted, which is quick and nearly always canonical; None if orjson cannot."""
    try:
        return orjson.dumps(value, option=_SORTED_JSON_ONLY)
    except TypeError:
        return None


def canonicalize_sorted(value: dict[str, Any], sorted_json: bytes | None) -> bytes:
    """Write an object as RFC 8785 bytes, given what `write_sorted` returned for it."""
    canonical_json = _canonicalize_quickly(value, sorted_json)
    return _canonicalize_members(value) if canonical_json is None else canonical_json


def _canonicalize_quickly(value: dict[str, Any], sorted_json: bytes | None) -> bytes | None:
    """Return sorted JSON if it is canonical; None if its bytes may differ from RFC 8785."""
    if sorted_json is None:
        return None
    # orjson writes NaN and the infinities as null, so a null in the output needs a closer look.
    if not _can_differ(sorted_json) and (b"null" not in sorted_json or _has_only_finite_numbers(value)):
        return sorted_json
    return None


def _canonicalize_members(value: dict[str, Any]) -> bytes:
    """Write an object member by member, each as quickly as it can be: a contract has one float in a small member."""
    if not all(type(name) is str for name in value):
        return _canonicalize_slowly(value)
    members = []
    try:
        for name in sorted(value, key=lambda name: name.encode("utf-16-be")):
            part = {name: value[name]}
            member = _canonicalize_quickly(part, write_sorted(part))
            members.append(_canonicalize_slowly(part) if member is None else member)
    except UnicodeEncodeError as error:
        raise NotCanonical(str(error)) from error
    return b"{" + b",".join(each[1:-1] for each in members) + b"}"


def _canonicalize_slowly(value: Any) -> bytes:
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError) as error:
        raise NotCanonical(str(error)) from error


def _can_differ(sorted_json: bytes) -> bool:
    if _FLOAT in sorted_json.translate(_STARTS_AND_MARKS, _DIGITS_AND_SIGN):
        return True
    return not sorted_json.isascii() and any(lead in sorted_json for lead in _ASTRAL_LEADS)


def _has_only_finite_numbers(value: Any) -> bool:
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, float):
            if not math.isfinite(each):
                return False
        elif isinstance(each, dict):
            stack += each.values()
        elif isinstance(each, list | tuple):
            stack += each
    return True


def compute_digest(value: Any) -> str:
    """Compute `sha256:…` over the canonical bytes; contracts and policies are identified by it."""
    return digest_canonical(canonicalize(value))


def digest_canonical(content: bytes) -> str:
    """Compute the digest of what is canonical already."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def compute_fingerprint(key: bytes, tool: str, arguments: bytes) -> bytes:
    """Compute a keyed digest of tool and canonical arguments. The same idempotency key with another fingerprint is a
    caller's mistake.
    """
    return hmac.digest(key, tool.encode() + b"\0" + arguments, "sha256")


def compute_commitment(salt: bytes, data: bytes) -> str:
    """Compute a salted hash. It proves the value to a holder of the salt, and says nothing once the salt is erased."""
    return hashlib.sha256(salt + data).hexdigest()
