"""The fast path of the canonical form is byte-identical to the slow one, and what has no form is refused."""

import hashlib
import hmac
import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from deputize.core.canonical import (
    NotCanonical,
    canonicalize,
    compute_commitment,
    compute_digest,
    compute_fingerprint,
    describe_unrepresentable,
)
from deputize.core.sensitive.text import redact_error_text

SAFE = 2**53 - 1

# Text that sorts differently in UTF-8 and UTF-16, control characters, and digits that look like numbers.
_awkward = st.sampled_from(
    ["\U00010000", "\ue000", "\uffff", "\x00", "\x1f", "\x7f", "\u2028", '"\\/', "1e5", ":.5", "9" * 17]
)
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | _awkward
_numbers = (
    st.integers(-SAFE, SAFE)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        [0.0, -0.0, 1.0, 1e15, 1e16, 1e21, 5e-324, 1.7976931348623157e308, SAFE, -SAFE, 10**15, 10**15 - 1]
    )
)
_leaves = st.none() | st.booleans() | _numbers | _text
json_values = st.recursive(
    _leaves, lambda below: st.lists(below, max_size=4) | st.dictionaries(_text, below, max_size=4), max_leaves=20
)
json_objects = st.dictionaries(_text, json_values, max_size=5)


@given(json_objects)
@example({"a": -0.0})
@example({"\U00010000": 1, "\ue000": 2})
@example({"n": 10**15, "m": [1e22, {"k": 1.5}]})
def test_the_fast_path_equals_rfc_8785_for_any_object(value: dict[str, Any]) -> None:
    assert canonicalize(value) == rfc8785.dumps(value)


@given(json_values)
def test_any_json_value_has_the_form_of_rfc_8785(value: Any) -> None:
    assert canonicalize(value) == rfc8785.dumps(value)


@given(json_objects)
def test_canonical_bytes_read_back_are_canonical_again(value: dict[str, Any]) -> None:
    once = canonicalize(value)
    # A float beyond 2^53 is spelt like an integer; only a reader that knows it for a float gets the value back.
    back = json.loads(once, parse_int=lambda digits: int(digits) if abs(int(digits)) <= SAFE else float(digits))
    assert canonicalize(back) == once


@given(json_objects, st.randoms())
def test_the_order_of_keys_does_not_matter(value: dict[str, Any], random: Any) -> None:
    shuffled = list(value.items())
    random.shuffle(shuffled)
    assert canonicalize(dict(shuffled)) == canonicalize(value)


def _make_nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "value",
    [
        {"a": 2**53},
        {"a": -(2**53)},
        {"a": 2**64},
        {"a": [10**30]},
        {"a": math.nan},
        {"a": math.inf},
        {"a": [{"b": -math.inf}]},
        {"a": None, "b": [1, math.nan]},
        {"a": "\ud800"},
        {"\udfff": 1},
        {1: 2},
        {None: 2},
        {"a": {True: 1}},
        {"a": object()},
        {"a": b"bytes"},
        {"a": {1, 2}},
        {"a": datetime(2026, 1, 1, tzinfo=UTC)},
        math.nan,
        2**53,
        _make_nested(100_000),
    ],
)
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(NotCanonical):
        canonicalize(value)


def test_deep_but_finite_nesting_is_canonical() -> None:
    value = _make_nested(200)
    assert canonicalize(value) == b'{"a":' * 200 + b"{}" + b"}" * 200


def test_a_digest_names_its_algorithm_and_hashes_the_canonical_bytes() -> None:
    assert compute_digest({"b": 1, "a": 2}) == "sha256:" + hashlib.sha256(b'{"a":2,"b":1}').hexdigest()


@given(st.binary(min_size=32, max_size=32), json_objects, json_objects)
def test_equal_fingerprints_mean_equal_requests(key: bytes, one: dict[str, Any], other: dict[str, Any]) -> None:
    same = canonicalize(one) == canonicalize(other)
    assert (
        compute_fingerprint(key, "a.b", canonicalize(one)) == compute_fingerprint(key, "a.b", canonicalize(other))
    ) is same
    assert compute_fingerprint(key, "a.b", canonicalize(one)) != compute_fingerprint(key, "a.c", canonicalize(one))


def test_a_fingerprint_is_keyed_by_tenant() -> None:
    assert compute_fingerprint(b"k" * 32, "a.b", b'{"x":1}') == hmac.digest(b"k" * 32, b'a.b\0{"x":1}', "sha256")
    assert compute_fingerprint(b"k" * 32, "a.b", b'{"x":1}') != compute_fingerprint(b"l" * 32, "a.b", b'{"x":1}')


@given(st.binary(min_size=16, max_size=16), st.binary(), st.binary())
def test_a_commitment_binds_the_data_under_its_salt(salt: bytes, one: bytes, other: bytes) -> None:
    assert (compute_commitment(salt, one) == compute_commitment(salt, other)) is (one == other)
    assert compute_commitment(salt, one) != compute_commitment(bytes(16) if any(salt) else b"\x01" * 16, one)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [1, math.nan]}, "result['a'][1] is nan, which is no number in JSON; return None instead"),
        (math.inf, "result is inf"),
        ({"tags": {"x"}}, "result['tags'] is of type set; return a list"),
        ({"a": object()}, "result['a'] is of type object; return text"),
        ({"n": 2**60}, "result['n'] is an integer of more than 53 bits; return it as a text"),
        ({"a": {1: "x"}}, "result['a'] has the key '1', which is no text"),
        ({"a": "\ud800"}, "result['a'] is a text with half a surrogate pair"),
    ],
)
def test_what_json_does_not_have_is_described_with_its_path(value: Any, words: str) -> None:
    with pytest.raises(NotCanonical):
        canonicalize({"result": value})
    description = str(describe_unrepresentable(value))
    assert description.startswith(words)
    # Its place is no path of a file, which errors hide.
    assert redact_error_text(description) == description
