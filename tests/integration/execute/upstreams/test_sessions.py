"""Test sessions of protocol versions before 2026-07-28 with a scripted server."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from deputize.core.contract.tools import Secret
from deputize.core.errors import UpstreamUnavailable
from deputize.core.settings import McpServerSettings
from deputize.execute.upstreams import http_connections, http_transport
from tests.integration.execute.upstreams.conftest import ShopServer, open_upstreams

GOOD = {"content": [{"type": "text", "text": "fine"}]}


class SessionServer:
    """Answer `tools/call` with a stream that ends early; a client that resumes it gets the result."""

    def __init__(self) -> None:
        self.heads: list[dict[str, str]] = []
        self.methods: list[str] = []
        self.resume_count = 0
        self.resumes_before_answer = 1
        self._number: Any = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                headers = dict(re.findall(r"^([^:\r\n]+): ([^\r\n]*)", head, re.MULTILINE))
                self.heads.append(headers)
                asked = orjson.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
                writer.write(self._respond(head.split(" ")[0], asked))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _respond(self, verb: str, request: dict[str, Any]) -> bytes:
        method = request.get("method", verb)
        self.methods.append(method)
        if method == "server/discover":
            return make_response(b"", "404 Not Found")
        if method == "initialize":
            who = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "keeper"}}
            body = orjson.dumps({"jsonrpc": "2.0", "id": request["id"], "result": who})
            return make_response(body, "200 OK", "application/json", f"mcp-session-id: s-{len(self.heads)}")
        if method == "tools/call":
            self._number = request["id"]
            return make_response(b"id: e-1\nretry: 1\ndata:\n\n", "200 OK", "text/event-stream")
        if method == "GET":
            self.resume_count += 1
            if self.resume_count < self.resumes_before_answer:
                return make_response(b": not yet\n\n", "200 OK", "text/event-stream")
            data = orjson.dumps({"jsonrpc": "2.0", "id": self._number, "result": GOOD})
            return make_response(b"id: e-2\ndata: " + data + b"\n\n", "200 OK", "text/event-stream")
        return make_response(b"", "202 Accepted")


def make_response(body: bytes, status: str, kind: str = "text/plain", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def open_session_server() -> AsyncIterator[tuple[ShopServer, SessionServer]]:
    keeper = SessionServer()
    listener = await asyncio.start_server(keeper.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        async with open_upstreams(McpServerSettings(name="shop", url=f"http://127.0.0.1:{port}/mcp?v=1")) as upstreams:
            yield ShopServer(upstreams), keeper
    finally:
        listener.close()


async def test_a_stream_that_ended_early_is_gone_on_with_and_nothing_is_asked_twice() -> None:
    async with open_session_server() as (shop, keeper):
        keeper.resumes_before_answer = 3
        assert await shop.call("x") == GOOD
        assert keeper.methods.count("tools/call") == 1
        returned = keeper.heads[-1]
        assert returned["last-event-id"] == "e-1"
        assert returned["mcp-protocol-version"] == "2025-06-18"
        assert returned["mcp-session-id"].startswith("s-")


async def test_resuming_a_stream_does_not_wait_for_its_own_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "MOST_CONNECTIONS", 1)
    async with open_session_server() as (shop, _):
        assert await shop.call("x", seconds=20) == GOOD


@pytest.mark.requirement("QUA-2")
async def test_a_stream_that_never_goes_on_leaves_open_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_transport, "_MAX_RETURNS", 3)
    async with open_session_server() as (shop, keeper):
        keeper.resumes_before_answer = 100
        with pytest.raises(UpstreamUnavailable) as raised:
            await shop.call("x")
        assert not raised.value.nothing_happened
        assert keeper.resume_count == 3


async def test_each_credential_has_a_session_of_its_own_and_old_ones_are_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_transport, "MOST_SESSIONS", 5)
    async with open_session_server() as (shop, keeper):
        for number in range(12):
            for _ in range(2):
                await shop.call("x", credential=Secret(f"key-{number}"))
        assert keeper.methods.count("initialize") == 12
        sessions = {each["Authorization"]: each["mcp-session-id"] for each in keeper.heads if "mcp-session-id" in each}
        assert len(set(sessions.values())) == 12
        await shop.call("x", credential=Secret("key-0"))
        assert keeper.methods.count("initialize") == 13
