"""Ids lead with their time and never repeat; deadlines only ever shrink."""

import os
import re
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.clock import Clock, Deadline, parse_id_time_ms
from deputize.core.errors import DeadlineExceeded

_moments = st.integers(0, 2**48 - 1)
_noise = st.binary(min_size=10, max_size=10)
_seconds = st.floats(-1e6, 1e6)


def _make_id(moment: int, noise: bytes) -> str:
    return Clock(epoch_ms=lambda: moment, random_bytes=lambda count: noise[:count]).new_id()


@given(_moments, _noise)
def test_an_id_is_a_uuid_of_version_7_that_carries_its_millisecond(moment: int, noise: bytes) -> None:
    made = _make_id(moment, noise)
    parsed = uuid.UUID(made)
    assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, made)
    assert parse_id_time_ms(made) == moment


@given(st.tuples(_moments, _noise), st.tuples(_moments, _noise))
def test_ids_sort_by_time_as_text_and_as_numbers(one: tuple[int, bytes], other: tuple[int, bytes]) -> None:
    first, second = _make_id(*one), _make_id(*other)
    if one[0] < other[0]:
        assert first < second
    assert (first < second) is (uuid.UUID(first).int < uuid.UUID(second).int)


@given(_moments, _noise)
def test_seventy_four_bits_of_noise_tell_ids_of_one_millisecond_apart(moment: int, noise: bytes) -> None:
    assert sum(_make_id(moment, noise) != _make_id(moment, _flip_bit(noise, bit)) for bit in range(80)) == 74


def _flip_bit(noise: bytes, bit: int) -> bytes:
    return (int.from_bytes(noise, "big") ^ (1 << bit)).to_bytes(10, "big")


def test_ids_of_the_real_clock_are_unique() -> None:
    clock = Clock()
    assert len({clock.new_id() for _ in range(20_000)}) == 20_000


def test_threads_that_draw_at_once_never_get_the_same_randomness() -> None:
    draw = Clock().random_bytes
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(8) as pool:
        drawn = [piece for part in pool.map(lambda _: [draw(16) for _ in range(20_000)], range(8)) for piece in part]
    sys.setswitchinterval(usual)
    assert len(set(drawn)) == len(drawn)


def test_a_forked_child_draws_other_randomness_than_its_parent() -> None:
    draw = Clock().random_bytes
    draw(16)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, draw(16))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 16) != draw(16)
    os.close(reading)
    os.close(writing)


@given(st.integers(0, 5000))
def test_randomness_comes_in_exactly_the_size_asked_for(count: int) -> None:
    assert len(Clock().random_bytes(count)) == count


def test_now_is_utc() -> None:
    assert re.fullmatch(r"2023-11-14 22:13:20\.123000\+00:00", str(Clock(epoch_ms=lambda: 1_700_000_000_123).now()))


@pytest.mark.requirement("INV-3")
@given(_seconds, _seconds)
def test_a_passed_deadline_is_refused_and_says_that_nothing_was_done(at: float, now: float) -> None:
    deadline = Deadline.after(at - now, now)
    if deadline.at > now:
        deadline.require_time_left(now)
        return
    with pytest.raises(DeadlineExceeded) as refused:
        deadline.require_time_left(now)
    assert refused.value.nothing_happened
