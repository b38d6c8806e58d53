"""A server's message is parsed in a thread if it is large, and refused unparsed if it has too many values."""

import threading

import orjson
import pytest

from deputize.core.errors import ResourceLimitExceeded
from deputize.core.json_values import MAX_ANSWER_VALUES
from deputize.execute.upstreams import jsonrpc


@pytest.mark.parametrize(("count", "is_off_loop"), [(10, False), (5_000, True)])
async def test_only_a_large_message_is_parsed_in_a_thread(
    count: int, is_off_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    parse_message = jsonrpc.parse_message

    def note_thread(data: bytes) -> dict[str, object]:
        threads.append(threading.get_ident())
        return parse_message(data)

    monkeypatch.setattr(jsonrpc, "parse_message", note_thread)
    message = {"jsonrpc": "2.0", "id": 1, "result": {"values": [0] * count}}
    assert await jsonrpc.parse_message_off_loop(orjson.dumps(message)) == message
    assert (threads != [threading.get_ident()]) is is_off_loop


async def test_a_message_with_too_many_values_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deputize.execute.upstreams.jsonrpc.orjson.loads", lambda data: pytest.fail("it was parsed"))
    data = b'{"result":[' + b",".join([b"{}"] * (2 * MAX_ANSWER_VALUES)) + b"]}"
    with pytest.raises(ResourceLimitExceeded, match="values"):
        await jsonrpc.parse_message_off_loop(data)


async def test_a_text_with_many_commas_is_no_reason_to_refuse() -> None:
    message = {"jsonrpc": "2.0", "id": 1, "result": {"csv": "a,b,c\n" * 200_000}}
    assert await jsonrpc.parse_message_off_loop(orjson.dumps(message)) == message
