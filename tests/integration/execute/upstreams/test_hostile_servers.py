"""Servers that mean harm: what they send without end costs a gateway neither its memory nor its time."""

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
from deputize.core.settings import McpServer
from tests.integration.execute.upstreams.conftest import Shop, reaching
from tests.integration.execute.upstreams.test_stdio import gone
from tests.integration.execute.upstreams.test_strange_servers import GOOD, Strange, http, strange

MEGABYTE = 1_048_576
PROGRAM = str(Path(__file__).with_name("hostile_program.py"))
OK = b"HTTP/1.1 200 OK\r\n"
EVENTS = OK + b"Content-Type: text/event-stream\r\n\r\n"
CHUNKED = OK + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"


class Endless(Strange):
    """Answers a call with a beginning, then with the same bytes for as long as anybody takes them."""

    def __init__(self, begins: bytes, goes_on: bytes) -> None:
        super().__init__(lambda _: begins, hangs_up=False)
        self._block = goes_on * (65_536 // len(goes_on))
        self.sent = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not self.calls:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().partition("content-length: ")[2]
                writer.write(self._to(orjson.loads(await reader.readexactly(int(head.split()[0])))))
            while self.sent < 64 * MEGABYTE:
                writer.write(self._block)
                await writer.drain()
                self.sent += len(self._block)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def endless(begins: bytes, goes_on: bytes) -> AsyncIterator[tuple[Shop, Endless]]:
    server = Endless(begins, goes_on)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    named = McpServer(name="shop", url=f"http://127.0.0.1:{server.port}/mcp")
    try:
        async with reaching(named) as upstreams:
            yield Shop(upstreams), server
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        pytest.param(OK + b"X: ", b"y", id="a header"),
        pytest.param(OK, b"Y", id="the name of a header"),
        pytest.param(OK, b"X: y\r\n", id="headers"),
        pytest.param(b"HTTP/1.1 200 ", b"O", id="a status"),
        pytest.param(CHUNKED + b"0\r\nX: ", b"y", id="a trailer"),
        pytest.param(CHUNKED + b"1;x=", b"y", id="what a chunk may say of itself"),
        pytest.param(EVENTS, b"data:\n", id="data that is empty"),
        pytest.param(EVENTS, b"data: y\n", id="data"),
        pytest.param(EVENTS, b"y", id="a line"),
    ],
)
async def test_what_never_ends_is_cut_off(begins: bytes, goes_on: bytes) -> None:
    async with endless(begins, goes_on) as (shop, server):
        with pytest.raises(Problem) as raised:
            await shop.call("x")
        assert not raised.value.nothing_happened
        # The largest answer there may be, and what the sockets hold.
        assert server.sent < 24 * MEGABYTE


async def test_a_server_that_asks_without_end_is_answered_a_few_times_and_heard_to_its_end() -> None:
    asks = b"".join(b'data: {"jsonrpc":"2.0","id":%d,"method":"ping"}\n\n' % number for number in range(20_000))

    def answer(number: int) -> bytes:
        told = orjson.dumps({"jsonrpc": "2.0", "id": number, "result": GOOD})
        return http(asks + b"data: " + told + b"\n\n", kind="text/event-stream")

    async with strange(answer) as (shop, server):
        calling = asyncio.create_task(shop.call("x"))
        most = 0
        while not calling.done():
            most = max(most, len(asyncio.all_tasks()))
            await asyncio.sleep(0)
        assert await calling == GOOD
        assert most < 400
        assert server.connections < 100


def program(how: str, **more: Any) -> McpServer:
    return McpServer(name="shop", command=(sys.executable, "-S", PROGRAM, how), start_seconds=60, **more)


async def test_an_id_that_is_none_is_passed_over_and_the_answer_is_heard() -> None:
    async with reaching(program("deep-id")) as upstreams:
        assert await Shop(upstreams).call("x") == {"content": []}


async def test_a_program_that_says_what_is_no_message_is_ended_with_all_it_left() -> None:
    marker = f"marker-{os.urandom(8).hex()}"
    async with reaching(program("no-method", env={"MARKER": marker})) as upstreams:
        with pytest.raises(UpstreamUnavailable) as raised:
            await Shop(upstreams).call("x")
        assert not raised.value.nothing_happened
        await gone(marker)


async def test_a_program_that_asks_and_does_not_read_the_answers_costs_no_memory() -> None:
    async with reaching(program("asks")) as upstreams:
        before = getrusage(RUSAGE_SELF).ru_maxrss
        assert await Shop(upstreams).call("x") == {"content": []}
        assert getrusage(RUSAGE_SELF).ru_maxrss - before < 60_000


async def test_a_program_that_reads_nothing_is_sent_only_so_much() -> None:
    async with reaching(program("deaf")) as upstreams:
        shop = Shop(upstreams)
        with pytest.raises(UpstreamTimeout):
            await shop.call("x", seconds=1)
        problems = await asyncio.gather(
            *(shop.call("x", {"text": "y" * MEGABYTE}, seconds=1) for _ in range(32)), return_exceptions=True
        )
        unsent = [each for each in problems if isinstance(each, UpstreamUnavailable) and each.nothing_happened]
        assert 8 <= len(unsent) <= 24
        assert all(isinstance(each, UpstreamUnavailable | UpstreamTimeout) for each in problems)
