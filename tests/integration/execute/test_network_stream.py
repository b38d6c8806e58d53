"""Test what a peer's bytes come to: the same answer however they arrive, or an error after few of them."""

import asyncio
import contextlib
import itertools
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deputize.core.errors import UpstreamUnavailable
from deputize.execute.egress import Egress, HttpAnswer
from deputize.execute.upstreams.http_connections import HttpConnectionPool
from tests.support.egress_server import make_certificate, make_resolver, open_egress

_JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_CHUNKED = _JSON + b"Transfer-Encoding: chunked\r\n\r\n"
_MAX_BYTES = 1_000_000
# As much as may arrive before an answer is refused: what was read, and what the sockets hold.
_MOST_SENT = 8_000_000


class Peer:
    """Send the next of these answers for each request, in parts, and count connections. An empty part closes one."""

    def __init__(self, answers: Sequence[Sequence[bytes]]) -> None:
        self._answers = iter(answers)
        self.connection_count = 0
        self.sent = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, StopIteration):
            while await reader.readuntil(b"\r\n\r\n"):
                for part in next(self._answers):
                    if not part:
                        return writer.close()
                    writer.write(part)
                    await writer.drain()
                    self.sent += len(part)
                    await asyncio.sleep(0)
        writer.close()


@asynccontextmanager
async def run_peer(*answers: Sequence[bytes], tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    peer = Peer(answers)
    listener = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=tls)
    peer.port = listener.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        listener.close()


async def exchange(egress: Egress, peer: Peer, scheme: str = "http", method: str = "GET") -> HttpAnswer:
    url = f"{scheme}://localhost:{peer.port}/"
    return await egress.exchange(method, url, body=None, headers={}, seconds=60.0, max_bytes=_MAX_BYTES)


def make_answer(body: bytes) -> bytes:
    return _JSON + b"Content-Length: %d\r\n\r\n" % len(body) + body


def repeat(start: bytes, part: bytes) -> Sequence[bytes]:
    """An answer that goes on until it is refused, or is far too long."""
    block = part * max(1, 65_536 // len(part))
    return [*([start] if start else []), *itertools.repeat(block, _MOST_SENT // len(block))]


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (make_answer(b'{"a":1}'), b'{"a":1}'),
        (make_answer(b""), b""),
        (_CHUNKED + b'4\r\n{"a"\r\n003;x="y"\r\n:1}\r\n0\r\n\r\n', b'{"a":1}'),
        (_CHUNKED + b"A \r\n\r\n\r\n0\r\n\r\n0\r\n0;last\r\nX: y\r\nY: z\r\n\r\n", b"\r\n\r\n0\r\n\r\n0"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" * 16 + make_answer(b"late"), b"late"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", b""),
    ],
)
async def test_an_answer_is_the_same_however_it_arrives_and_its_connection_is_used_again(
    answer: bytes, body: bytes
) -> None:
    parts = [answer[at : at + 1] for at in range(len(answer))]
    async with run_peer([answer], parts, [answer]) as peer, open_egress("localhost") as egress:
        assert [(await exchange(egress, peer)).body for _ in range(3)] == [body] * 3
        assert peer.connection_count == 1


async def test_an_answer_to_head_has_no_body() -> None:
    async with run_peer([_JSON + b"Content-Length: 7\r\n\r\n"] * 2) as peer, open_egress("localhost") as egress:
        assert (await exchange(egress, peer, method="HEAD")).headers["content-length"] == "7"


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async with run_peer([_JSON + b"\r\n", b"1\r\n", b"2", b""]) as peer, open_egress("localhost") as egress:
        assert (await exchange(egress, peer)).body == b"1\r\n2"


@pytest.mark.parametrize("size", [1, 40_000, 900_000])
async def test_large_answers_arrive_whole_over_tls(tmp_path: Path, size: int) -> None:
    server_tls, client_tls = make_certificate(tmp_path, "localhost")
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:]) if part)
    answers = [make_answer(body)], [_CHUNKED + chunks + b"0\r\n\r\n"], [make_answer(b"after")]
    async with (
        run_peer(*answers, tls=server_tls) as peer,
        open_egress("localhost", resolver=make_resolver("127.0.0.1"), tls=client_tls) as egress,
    ):
        assert [(await exchange(egress, peer, "https")).body for _ in answers] == [body, body, b"after"]
        assert peer.connection_count == 1


async def test_a_large_answer_of_an_mcp_server_arrives_whole_over_tls(tmp_path: Path) -> None:
    server_tls, client_tls = make_certificate(tmp_path, "localhost")
    body = bytes(range(256)) * 4_000
    async with (
        run_peer([make_answer(body)], tls=server_tls) as peer,
        open_egress("localhost", resolver=make_resolver("127.0.0.1"), tls=client_tls) as egress,
    ):
        url = f"https://localhost:{peer.port}/"
        pool = HttpConnectionPool(lambda protocol: egress.dial(url, protocol))
        connection = await pool.acquire()
        connection.send(b"POST / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert await connection.wait_for_status() == 200
        assert await connection.read_body(2_000_000) == body
        pool.give_back(connection)
        await pool.aclose()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (repeat(b"", b"HTTP/1.1 100 \r\n\r\n"), "more than 16 HTTP heads"),
        (repeat(b"HTTP/1.1 100 Continue\r\n", b"a:b\r\n"), "head without end"),
        ([b"HTTP/1.1 200 OK\r\n" + b"a:b\r\n" * 300 + b"\r\n"], "more than 256 lines"),
        (repeat(b"HTTP/1.1 200 OK\r\nX: ", b"x"), "head without end"),
        (repeat(b"HTTP/1.1 ", b"2"), "head without end"),
        (repeat(b"", b"220 mail.example\r\n"), "did not answer with HTTP"),
        (repeat(_CHUNKED, b"1\r\n \r\n"), "far more HTTP framing"),
        (repeat(_CHUNKED, b"1;" + b"x" * 1_000 + b"\r\n \r\n"), "far more HTTP framing"),
        (repeat(_CHUNKED + b"1;", b"x"), "invalid chunk"),
        (repeat(_CHUNKED + b"1\r\n \r\n0\r\n", b"a:b\r\n"), "trailers without end"),
        (repeat(_CHUNKED + b"1\r\n", b"x"), "invalid chunk"),
        ([_CHUNKED + b"-1\r\n\r\n"], "invalid chunk"),
        ([_CHUNKED + b"0x1\r\n \r\n"], "invalid chunk"),
        ([_CHUNKED + b"1\n \n"], "invalid chunk"),
    ],
)  # fmt: skip
async def test_what_is_no_content_is_refused_after_little_of_it(answer: Sequence[bytes], reason: str) -> None:
    async with run_peer(answer) as peer, open_egress("localhost") as egress:
        with pytest.raises(UpstreamUnavailable, match=reason):
            await exchange(egress, peer)
        assert peer.sent < _MOST_SENT


async def test_a_delivery_reads_no_heads_without_end() -> None:
    async with run_peer(repeat(b"", b"HTTP/1.1 100 \r\n\r\n")) as peer, open_egress("localhost") as egress:
        with pytest.raises(UpstreamUnavailable, match="more than 16 HTTP heads"):
            await egress.send(f"http://localhost:{peer.port}/", b"{}", headers={}, seconds=60.0)


async def test_the_event_loop_has_a_turn_after_each_piece() -> None:
    turns = 0

    def count_turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(count_turn)

    loop = asyncio.get_running_loop()
    chunk = b"20\r\n" + b"x" * 32 + b"\r\n"
    # The peer's part of the turns ends with what the sockets hold.
    async with run_peer([_CHUNKED + chunk * 20_000 + b"0\r\n\r\n"]) as peer, open_egress("localhost") as egress:
        loop.call_soon(count_turn)
        assert len((await exchange(egress, peer)).body) == 640_000
        assert turns >= len(chunk) * 20_000 // 8_192


async def test_a_second_answer_is_nobodys() -> None:
    two, honest = make_answer(b"for ana") + make_answer(b"poison"), make_answer(b"for eva")
    chunked = _CHUNKED + b"7\r\nfor ana\r\n0\r\n\r\n" + make_answer(b"poison")
    none = b"HTTP/1.1 204 No Content\r\n\r\n" + make_answer(b"poison")
    early = b"HTTP/1.1 100 Continue\r\n\r\n" + two
    for answer in (two, chunked, none, early):
        async with run_peer([answer], [honest]) as peer, open_egress("localhost") as egress:
            assert (await exchange(egress, peer)).body in (b"for ana", b"")
            assert (await exchange(egress, peer)).body == b"for eva"
            assert peer.connection_count == 2


async def test_a_connection_that_spoke_while_it_was_idle_is_not_used_again() -> None:
    idle = asyncio.Event()
    spoke = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(make_answer(b"honest"))
                await idle.wait()
                writer.write(make_answer(b"poison"))
                spoke.set()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://localhost:{listener.sockets[0].getsockname()[1]}/"

    async def ask(egress: Egress) -> bytes:
        return (await egress.exchange("GET", url, body=None, headers={}, seconds=60.0, max_bytes=1_000)).body

    async with open_egress("localhost") as egress:
        assert await ask(egress) == b"honest"
        idle.set()
        await spoke.wait()
        assert await ask(egress) == b"honest"
    listener.close()


async def test_a_reset_connection_is_no_end_of_an_answer() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_JSON + b"\r\n{}")
        # Without lingering, closing resets.
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://localhost:{listener.sockets[0].getsockname()[1]}/"
    async with open_egress("localhost") as egress:
        with pytest.raises(UpstreamUnavailable):
            await egress.exchange("GET", url, body=None, headers={}, seconds=60.0, max_bytes=1_000)
    listener.close()
