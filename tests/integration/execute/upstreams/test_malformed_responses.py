"""Test malformed responses: none is taken for a result, and unknown outcomes stay unknown."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from deputize.core.contract.tools import Secret
from deputize.core.errors import (
    CredentialExpired,
    CredentialMissing,
    Problem,
    ToolFailed,
    UpstreamRateLimited,
    UpstreamUnavailable,
)
from deputize.core.settings import McpServerSettings
from tests.integration.execute.upstreams.conftest import ShopServer, open_upstreams

# Build the response to a `tools/call` from the request's id.
Answer = Callable[[int], bytes]
GOOD = {"content": [{"type": "text", "text": "fine"}]}


def make_reply(number: Any, status: str = "200 OK", kind: str = "application/json", **message: Any) -> bytes:
    body = orjson.dumps({"jsonrpc": "2.0", "id": number, **message})
    return make_http_response(body, status, kind)


def make_http_response(body: bytes, status: str = "200 OK", kind: str = "application/json", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


class MalformedServer:
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
                writer.write(self._respond(asked))
                await writer.drain()
                if self.calls and self._hangs_up:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, StopIteration):
            pass
        finally:
            writer.close()

    def _respond(self, request: Any) -> bytes:
        if request["method"] == "server/discover":
            result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            return make_reply(request["id"], result=result)
        self.calls += 1
        data = self._answer(request["id"])
        if not data:
            raise StopIteration
        return data


@asynccontextmanager
async def open_malformed_server(
    answer: Answer, *, hangs_up: bool = False
) -> AsyncIterator[tuple[ShopServer, MalformedServer]]:
    server = MalformedServer(answer, hangs_up)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    named = McpServerSettings(name="shop", url=f"http://127.0.0.1:{server.port}/mcp")
    try:
        async with open_upstreams(named) as upstreams:
            yield ShopServer(upstreams), server
    finally:
        listener.close()


async def test_answers_in_every_framing_are_understood() -> None:
    body = orjson.dumps({"jsonrpc": "2.0", "id": 0, "result": GOOD})

    def reply_chunked(number: int) -> bytes:
        data = body.replace(b'"id":0', b'"id":%d' % number)
        parts = b"".join(b"%x\r\n%b\r\n" % (len(data[i : i + 7]), data[i : i + 7]) for i in range(0, len(data), 7))
        return (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            + parts
            + b"0\r\n\r\n"
        )

    def reply_after_early_hints(number: int) -> bytes:
        return b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + make_reply(number, result=GOOD)

    def reply_as_events(number: int) -> bytes:
        data = b": hello\n\nevent: message\ndata: " + body.replace(b'"id":0', b'"id":%d' % number) + b"\n\n"
        return make_http_response(data, "200 OK", "text/event-stream; charset=utf-8")

    for framing in (reply_chunked, reply_after_early_hints, reply_as_events):
        async with open_malformed_server(framing) as (shop, server):
            for _ in range(3):
                assert await shop.call("x") == GOOD
            assert server.connections == 1, framing


@pytest.mark.parametrize(
    "answer",
    [
        lambda n: b"",
        lambda n: b"SSH-2.0-OpenSSH_9.2\r\n",
        lambda n: make_http_response(b"<html>hello</html>", kind="text/html"),
        lambda n: make_http_response(b"not json"),
        lambda n: make_http_response(b"[]"),
        lambda n: make_reply(n),
        lambda n: make_reply(n, result=[]),
        lambda n: make_reply(n + 1, result=GOOD),
        lambda n: make_reply(str(n), result=GOOD),
        lambda n: make_http_response(b"x", "200 OK", "application/json", "Content-Encoding: gzip"),
        lambda n: make_http_response(b"data: {}\n\n", kind="text/event-stream"),
        lambda n: make_http_response(b"data: oops\n\n", kind="text/event-stream"),
        lambda n: b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{",
        lambda n: b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %b\r\n" % (i, b"y" * 900) for i in range(100)) + b"\r\n",
        lambda n: make_reply(n, status="500 Oh No", error={"code": -32603, "message": "broken"}),
        lambda n: make_http_response(b"", "502 Bad Gateway"),
        lambda n: make_http_response(b"", "302 Found", "text/html", "Location: http://127.0.0.1:1/"),
        lambda n: make_reply(n, error={"code": -32000, "message": "lost it"}),
        lambda n: make_reply(n + 1, error={"code": -32603, "message": "what another asked for failed"}),
        lambda n: make_reply(None, error={"code": -32603, "message": "broke after it was begun"}),
        lambda n: make_reply(
            None, "400 Bad Request", error={"code": -32603, "message": "the browser's session crashed"}
        ),
    ],
)
async def test_what_is_no_answer_leaves_open_what_was_done(answer: Answer) -> None:
    async with open_malformed_server(answer, hangs_up=True) as (shop, server):
        with pytest.raises(UpstreamUnavailable) as raised:
            await shop.call("x")
        assert not raised.value.nothing_happened
        assert server.calls == 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda n: make_http_response(b"", "401 Unauthorized"), CredentialMissing),
        (lambda n: make_http_response(b"", "429 Too Many", "text/plain", "Retry-After: 7"), UpstreamRateLimited),
        (lambda n: make_http_response(b"", "429 Too Many", "text/plain", "Retry-After: \u00b2"), UpstreamRateLimited),
        (lambda n: make_http_response(b"", "413 Too Large"), UpstreamUnavailable),
        (lambda n: make_reply(None, error={"code": -32600, "message": "no request"}), ToolFailed),
        (lambda n: make_reply(n, "400 Bad Request", error={"code": -32020, "message": "mismatch"}), ToolFailed),
    ],
)
async def test_what_was_turned_away_happened_to_nobody(answer: Answer, kind: type[Problem]) -> None:
    async with open_malformed_server(answer) as (shop, server):
        with pytest.raises(kind) as raised:
            await shop.call("x")
        assert raised.value.nothing_happened
        assert server.calls == 1
        if kind is UpstreamRateLimited:
            assert raised.value.retry_after_ms in (7_000, None)


async def test_a_refused_credential_is_not_revealed() -> None:
    async with open_malformed_server(lambda n: make_http_response(b"", "401 Unauthorized")) as (shop, _):
        with pytest.raises(CredentialExpired) as raised:
            await shop.call("x", credential=Secret("s3cret-value"))
        assert "s3cret" not in repr((raised.value, raised.value.details))


async def test_what_is_sent_unasked_on_a_kept_connection_is_never_the_next_answer() -> None:
    planted = make_reply(999, result={"content": [{"type": "text", "text": "planted"}]})

    def answer(number: int) -> bytes:
        # The second message has the id of the next request.
        return make_reply(number, result=GOOD) + planted.replace(b"999", b"%03d" % (number + 1))

    async with open_malformed_server(answer) as (shop, server):
        for _ in range(3):
            assert await shop.call("x") == GOOD
        assert server.connections >= 3
