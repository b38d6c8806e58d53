"""Servers that do not behave, byte by byte: what they say is never taken for an answer, and what is open stays open."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from deputize.core.definition import Secret
from deputize.core.errors import (
    CredentialExpired,
    CredentialMissing,
    Problem,
    ToolFailed,
    UpstreamRateLimited,
    UpstreamUnavailable,
)
from deputize.core.settings import McpServer
from tests.integration.execute.upstreams.conftest import Shop, reaching

# What to answer a `tools/call` with, given the request's number.
Answer = Callable[[int], bytes]
GOOD = {"content": [{"type": "text", "text": "fine"}]}


def reply(number: Any, status: str = "200 OK", kind: str = "application/json", **message: Any) -> bytes:
    body = orjson.dumps({"jsonrpc": "2.0", "id": number, **message})
    return http(body, status, kind)


def http(body: bytes, status: str = "200 OK", kind: str = "application/json", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


class Strange:
    def __init__(self, answer: Answer, hangs_up: bool) -> None:
        self._answer = answer
        self._hangs_up = hangs_up
        self.port = 0
        self.calls = 0
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = re.search(r"content-length: (\d+)", head)
                asked = orjson.loads(await reader.readexactly(int(length[1]) if length else 0) or b"{}")
                writer.write(self._to(asked))
                await writer.drain()
                if self.calls and self._hangs_up:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, StopIteration):
            pass
        finally:
            writer.close()

    def _to(self, asked: Any) -> bytes:
        if asked["method"] == "server/discover":
            result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            return reply(asked["id"], result=result)
        self.calls += 1
        data = self._answer(asked["id"])
        if not data:
            raise StopIteration
        return data


@asynccontextmanager
async def strange(answer: Answer, *, hangs_up: bool = False) -> AsyncIterator[tuple[Shop, Strange]]:
    server = Strange(answer, hangs_up)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    named = McpServer(name="shop", url=f"http://127.0.0.1:{server.port}/mcp")
    try:
        async with reaching(named) as upstreams:
            yield Shop(upstreams), server
    finally:
        listener.close()


async def test_answers_in_every_framing_are_understood() -> None:
    body = orjson.dumps({"jsonrpc": "2.0", "id": 0, "result": GOOD})

    def chunked(number: int) -> bytes:
        data = body.replace(b'"id":0', b'"id":%d' % number)
        parts = b"".join(b"%x\r\n%b\r\n" % (len(data[i : i + 7]), data[i : i + 7]) for i in range(0, len(data), 7))
        return (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            + parts
            + b"0\r\n\r\n"
        )

    def after_a_hint(number: int) -> bytes:
        return b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + reply(number, result=GOOD)

    def as_events(number: int) -> bytes:
        data = b": hello\n\nevent: message\ndata: " + body.replace(b'"id":0', b'"id":%d' % number) + b"\n\n"
        return http(data, "200 OK", "text/event-stream; charset=utf-8")

    for framing in (chunked, after_a_hint, as_events):
        async with strange(framing) as (shop, server):
            for _ in range(3):
                assert await shop.call("x") == GOOD
            assert server.connections == 1, framing


@pytest.mark.parametrize(
    "answer",
    [
        lambda n: b"",
        lambda n: b"SSH-2.0-OpenSSH_9.2\r\n",
        lambda n: http(b"<html>hello</html>", kind="text/html"),
        lambda n: http(b"not json"),
        lambda n: http(b"[]"),
        lambda n: reply(n),
        lambda n: reply(n, result=[]),
        lambda n: reply(n + 1, result=GOOD),
        lambda n: reply(str(n), result=GOOD),
        lambda n: http(b"x", "200 OK", "application/json", "Content-Encoding: gzip"),
        lambda n: http(b"data: {}\n\n", kind="text/event-stream"),
        lambda n: http(b"data: oops\n\n", kind="text/event-stream"),
        lambda n: b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{",
        lambda n: b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %b\r\n" % (i, b"y" * 900) for i in range(100)) + b"\r\n",
        lambda n: reply(n, status="500 Oh No", error={"code": -32603, "message": "broken"}),
        lambda n: http(b"", "502 Bad Gateway"),
        lambda n: http(b"", "302 Found", "text/html", "Location: http://127.0.0.1:1/"),
        lambda n: reply(n, error={"code": -32000, "message": "lost it"}),
        lambda n: reply(n + 1, error={"code": -32603, "message": "what another asked for failed"}),
        lambda n: reply(None, error={"code": -32603, "message": "broke after it was begun"}),
        lambda n: reply(None, "400 Bad Request", error={"code": -32603, "message": "the browser's session crashed"}),
    ],
)
async def test_what_is_no_answer_leaves_open_what_was_done(answer: Answer) -> None:
    async with strange(answer, hangs_up=True) as (shop, server):
        with pytest.raises(UpstreamUnavailable) as raised:
            await shop.call("x")
        assert not raised.value.nothing_happened
        assert server.calls == 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda n: http(b"", "401 Unauthorized"), CredentialMissing),
        (lambda n: http(b"", "429 Too Many", "text/plain", "Retry-After: 7"), UpstreamRateLimited),
        (lambda n: http(b"", "429 Too Many", "text/plain", "Retry-After: \u00b2"), UpstreamRateLimited),
        (lambda n: http(b"", "413 Too Large"), UpstreamUnavailable),
        (lambda n: reply(None, error={"code": -32600, "message": "no request"}), ToolFailed),
        (lambda n: reply(n, "400 Bad Request", error={"code": -32020, "message": "mismatch"}), ToolFailed),
    ],
)
async def test_what_was_turned_away_happened_to_nobody(answer: Answer, kind: type[Problem]) -> None:
    async with strange(answer) as (shop, server):
        with pytest.raises(kind) as raised:
            await shop.call("x")
        assert raised.value.nothing_happened
        assert server.calls == 1
        if kind is UpstreamRateLimited:
            assert raised.value.retry_after_ms in (7_000, None)


async def test_a_refused_credential_is_not_told() -> None:
    async with strange(lambda n: http(b"", "401 Unauthorized")) as (shop, _):
        with pytest.raises(CredentialExpired) as raised:
            await shop.call("x", credential=Secret("s3cret-value"))
        assert "s3cret" not in repr((raised.value, raised.value.details))


async def test_what_is_sent_unasked_on_a_kept_connection_is_never_the_next_answer() -> None:
    planted = reply(999, result={"content": [{"type": "text", "text": "planted"}]})

    def answer(number: int) -> bytes:
        # The second message is numbered as the next request will be.
        return reply(number, result=GOOD) + planted.replace(b"999", b"%03d" % (number + 1))

    async with strange(answer) as (shop, server):
        for _ in range(3):
            assert await shop.call("x") == GOOD
        assert server.connections >= 3
