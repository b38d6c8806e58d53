"""Test hostile servers: endless responses cost the gateway neither memory nor time."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import orjson
import pytest

from deputize.core.errors import Problem, UpstreamTimeout, UpstreamUnavailable
from deputize.core.settings import McpServerSettings
from tests.integration.execute.upstreams.conftest import ShopServer, open_upstreams
from tests.integration.execute.upstreams.test_malformed_responses import (
    GOOD,
    MalformedServer,
    make_http_response,
    open_malformed_server,
)
from tests.integration.execute.upstreams.test_stdio_transport import wait_until_gone

MEGABYTE = 1_048_576
PROGRAM = str(Path(__file__).with_name("hostile_stdio_server.py"))
OK = b"HTTP/1.1 200 OK\r\n"
EVENTS = OK + b"Content-Type: text/event-stream\r\n\r\n"
CHUNKED_ENCODING = OK + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"

CHUNKED_EVENTS = OK + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class EndlessServer(MalformedServer):
    """Answer a call with a prefix, then repeat the same bytes for as long as the client reads."""

    def __init__(self, head: bytes, chunk: bytes) -> None:
        super().__init__(lambda _: head, hangs_up=False)
        self._block = chunk * (65_536 // len(chunk))
        self.bytes_sent = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not self.calls:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().partition("content-length: ")[2]
                writer.write(self._respond(orjson.loads(await reader.readexactly(int(head.split()[0])))))
            while self.bytes_sent < 64 * MEGABYTE:
                writer.write(self._block)
                await writer.drain()
                self.bytes_sent += len(self._block)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def open_endless_server(head: bytes, chunk: bytes) -> AsyncIterator[tuple[ShopServer, EndlessServer]]:
    server = EndlessServer(head, chunk)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    named = McpServerSettings(name="shop", url=f"http://127.0.0.1:{server.port}/mcp")
    try:
        async with open_upstreams(named) as upstreams:
            yield ShopServer(upstreams), server
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        pytest.param(OK + b"X: ", b"y", id="a header"),
        pytest.param(OK, b"Y", id="the name of a header"),
        pytest.param(OK, b"X: y\r\n", id="headers"),
        pytest.param(b"HTTP/1.1 200 ", b"O", id="a status"),
        pytest.param(b"", b"HTTP/1.1 100 \r\n\r\n", id="heads before the response"),
        pytest.param(CHUNKED_ENCODING, b"1\r\n \r\n", id="chunks of one byte"),
        pytest.param(CHUNKED_EVENTS, b"1\r\n\n\r\n", id="events in chunks of one byte"),
        pytest.param(CHUNKED_ENCODING + b"0\r\nX: ", b"y", id="a trailer"),
        pytest.param(CHUNKED_ENCODING + b"1;x=", b"y", id="what a chunk may say of itself"),
        pytest.param(EVENTS, b"data:\n", id="data that is empty"),
        pytest.param(EVENTS, b"data: y\n", id="data"),
        pytest.param(EVENTS, b"y", id="a line"),
    ],
)
async def test_what_never_ends_is_cut_off(begins: bytes, goes_on: bytes) -> None:
    async with open_endless_server(begins, goes_on) as (shop, server):
        with pytest.raises(Problem) as raised:
            await shop.call("x")
        assert not raised.value.nothing_happened
        # The largest allowed response plus the socket buffers.
        assert server.bytes_sent < 24 * MEGABYTE


async def test_a_server_that_asks_without_end_is_answered_a_few_times_and_heard_to_its_end() -> None:
    asks = b"".join(b'data: {"jsonrpc":"2.0","id":%d,"method":"ping"}\n\n' % number for number in range(20_000))

    def answer(number: int) -> bytes:
        told = orjson.dumps({"jsonrpc": "2.0", "id": number, "result": GOOD})
        return make_http_response(asks + b"data: " + told + b"\n\n", kind="text/event-stream")

    async with open_malformed_server(answer) as (shop, server):
        calling = asyncio.create_task(shop.call("x"))
        most = 0
        while not calling.done():
            most = max(most, len(asyncio.all_tasks()))
            await asyncio.sleep(0)
        assert await calling == GOOD
        assert most < 400
        assert server.connections < 100


def hostile_server(how: str, **more: Any) -> McpServerSettings:
    command = (sys.executable, "-S", PROGRAM, how)
    return McpServerSettings(name="shop", command=command, start_seconds=60, sandbox=False, **more)


async def test_an_id_that_is_none_is_passed_over_and_the_answer_is_heard() -> None:
    async with open_upstreams(hostile_server("deep-id")) as upstreams:
        assert await ShopServer(upstreams).call("x") == {"content": []}


async def test_a_program_that_says_what_is_no_message_is_ended_with_all_it_left() -> None:
    marker = f"marker-{os.urandom(8).hex()}"
    async with open_upstreams(hostile_server("no-method", env={"MARKER": marker})) as upstreams:
        with pytest.raises(UpstreamUnavailable) as raised:
            await ShopServer(upstreams).call("x")
        assert not raised.value.nothing_happened
        await wait_until_gone(marker)


async def test_a_program_that_asks_and_does_not_read_the_answers_costs_no_memory() -> None:
    async with open_upstreams(hostile_server("asks")) as upstreams:
        before = getrusage(RUSAGE_SELF).ru_maxrss
        assert await ShopServer(upstreams).call("x") == {"content": []}
        assert getrusage(RUSAGE_SELF).ru_maxrss - before < 60_000


@pytest.mark.nightly
async def test_a_program_that_reads_nothing_is_sent_only_so_much() -> None:
    async with open_upstreams(hostile_server("deaf")) as upstreams:
        shop = ShopServer(upstreams)
        with pytest.raises(UpstreamTimeout):
            # In these seconds the program has to start, too.
            await shop.call("x", seconds=8)
        problems = await asyncio.gather(
            *(shop.call("x", {"text": "y" * MEGABYTE}, seconds=4) for _ in range(32)), return_exceptions=True
        )
        unsent = [each for each in problems if isinstance(each, UpstreamUnavailable) and each.nothing_happened]
        assert 8 <= len(unsent) <= 24
        assert all(isinstance(each, UpstreamUnavailable | UpstreamTimeout) for each in problems)
