"""Events out of bytes, however they were cut."""

from itertools import pairwise
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.errors import ResourceLimitExceeded
from deputize.core.mcp.sse import LONGEST_PAUSE_MS, SseParser

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINES = st.binary(min_size=1, max_size=20).map(lambda data: data.replace(b"\r", b"").replace(b"\n", b"") or b"x")


@given(messages=st.lists(LINES, max_size=6), end=ENDS, cuts=st.lists(st.integers(0, 300), max_size=8))
def test_events_are_the_same_wherever_the_bytes_are_cut(messages: list[bytes], end: bytes, cuts: list[int]) -> None:
    stream = b"".join(b"event: message" + end + b"data: " + each + end + end for each in messages)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    events = SseParser(10_000)
    found = [event.data for start, stop in pairwise(places) for event in events.parse_chunk(stream[start:stop])]
    # A lone carriage return at the very end may be half of a line's end, so the last event may wait for more.
    found += [event.data for event in events.parse_chunk(b":")]
    assert found == messages


def test_data_in_several_lines_is_one_event_and_comments_are_none() -> None:
    events = SseParser(100)
    assert [e.data for e in events.parse_chunk(b": ping\n\ndata: a\ndata:b\n\nid: 7\ndata:\n\n")] == [b"a\nb"]
    assert events.last_id == "7"


def test_the_pause_a_server_asks_for_has_a_limit() -> None:
    events = SseParser(100)
    list(events.parse_chunk(b"retry: 999999999\n\n"))
    assert events.pause_ms == LONGEST_PAUSE_MS
    list(events.parse_chunk(b"retry: soon\n\n"))
    assert events.pause_ms == LONGEST_PAUSE_MS


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 200, b"data: xxxxxxxxxx\n" * 20])
def test_an_event_that_never_ends_is_cut_off(stream: bytes) -> None:
    with pytest.raises(ResourceLimitExceeded):
        list(SseParser(100).parse_chunk(stream))


def test_lines_without_data_count_towards_what_an_event_may_hold() -> None:
    events = SseParser(600)
    with pytest.raises(ResourceLimitExceeded):
        list(events.parse_chunk(b"data:\n" * 200))


def test_a_line_that_comes_a_byte_at_a_time_is_not_read_again_with_each() -> None:
    events = SseParser(4_000_000)
    list(events.parse_chunk(b"data: " + b"x" * 3_000_000))
    began = thread_time()
    for _ in range(20_000):
        list(events.parse_chunk(b"y"))
    assert thread_time() - began < 2.0
    (event,) = events.parse_chunk(b"\n\n")
    assert len(event.data) == 3_020_000
