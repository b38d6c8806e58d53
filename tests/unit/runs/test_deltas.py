"""A difference makes the newer state from the older one, exactly, or says that it cannot."""

import contextlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.runs.deltas import DeltaNotApplicable, apply_delta, compute_delta

pytestmark = pytest.mark.requirement("RES-7")

JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=8), inner, max_size=8),
    max_leaves=40,
)  # fmt: skip


@given(st.binary(max_size=400), st.binary(max_size=400))
def test_any_bytes_from_any_bytes(older: bytes, newer: bytes) -> None:
    assert apply_delta(older, compute_delta(older, newer)) == newer


@given(st.lists(st.sampled_from([b"", b",", b"aaaaaaaaaaaaaaaa", b"1,2,3,", b'{"a":1,']), max_size=40), st.data())
def test_what_repeats_itself_is_told_apart(pieces: list[bytes], data: st.DataObject) -> None:
    older = b"".join(pieces)
    newer = b"".join(data.draw(st.permutations(pieces)))
    assert apply_delta(older, compute_delta(older, newer)) == newer


@given(JSON, JSON)
def test_any_state_from_any_state(before: Any, after: Any) -> None:
    older, newer = orjson.dumps(before), orjson.dumps([before, after])
    assert apply_delta(older, compute_delta(older, newer)) == newer


@given(st.binary(max_size=200), st.binary(max_size=80))
def test_a_program_that_is_none_fails_or_makes_something_else_but_never_hangs(older: bytes, program: bytes) -> None:
    with contextlib.suppress(DeltaNotApplicable):
        apply_delta(older, program)


def test_a_list_that_grew_costs_what_it_grew() -> None:
    rows = [{"id": n, "name": f"user-{n}"} for n in range(5000)]
    older = orjson.dumps({"rows": rows, "at": 5000})
    newer = orjson.dumps({"rows": [*rows, {"id": 5000, "name": "new"}], "at": 5001})
    assert len(compute_delta(older, newer)) < 80


def test_a_copy_from_beyond_the_end_is_refused() -> None:
    with pytest.raises(DeltaNotApplicable):
        apply_delta(b"short", compute_delta(b"aaaaaaaaaaaaaaaaaaaa,b", b"aaaaaaaaaaaaaaaaaaaa,b"))
