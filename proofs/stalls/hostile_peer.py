"""A peer in the proof's own process whose answers hold nearly nothing but framing, without end.

GET  /KIND   an answer of this kind, as an HTTP service
POST /mcp    the same as an MCP server: a call says the kind in its arguments
"""

import asyncio
import contextlib
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from proofs.stalls.hostile_server import HostileDeclarations, answer_request

_SECONDS: Final = 5.0
_JSON: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_CHUNKED: Final = _JSON + b"transfer-encoding: chunked\r\n\r\n"
# By kind, the beginning of an answer and what is repeated after it.
KINDS: Final[Mapping[str, tuple[bytes, bytes]]] = {
    "heads": (b"", b"HTTP/1.1 100 \r\n\r\n"),
    "long-heads": (b"", b"HTTP/1.1 103 Early Hints\r\n" + b"a:b\r\n" * 90 + b"\r\n"),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"a:b\r\n"),
    "chunks": (_CHUNKED, b"1\r\n \r\n"),
    "extensions": (_CHUNKED, b"1;" + b"x" * 200 + b"\r\n \r\n"),
    "trailers": (_CHUNKED + b"2\r\n{}\r\n0\r\n", b"a:b\r\n"),
}
# A name of its own: a server that repeats one of another service is held.
_TOOL: Final = {
    "name": "recite", "description": "Recite what was asked for.",
    "inputSchema": {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
}  # fmt: skip
_RESPONSES: Final = {"200": {"description": "It", "content": {"application/json": {"schema": {}}}}}
_KIND: Final = {"name": "kind", "in": "path", "required": True, "schema": {"type": "string"}}
DOCUMENT: Final[dict[str, Any]] = {
    "openapi": "3.0.3",
    "info": {"title": "Peer", "version": "1"},
    "paths": {
        "/{kind}": {
            "parameters": [_KIND],
            "get": {"operationId": "answer", "summary": "Answer in one of several ways.", "responses": _RESPONSES},
        }
    },
}


class HostilePeer:
    def __init__(self) -> None:
        self._server = HostileDeclarations(tools=orjson.dumps([_TOOL]))
        self._listener: asyncio.Server | None = None

    async def start(self) -> str:
        """Listen, and return the URL."""
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(_SECONDS):
                while True:
                    await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        size = re.search(r"^content-length: (\d+)", head, re.MULTILINE | re.IGNORECASE)
        body = await reader.readexactly(int(size[1])) if size else b""
        kind = head.split(" ")[1][1:]
        if kind == "mcp":
            request = orjson.loads(body)
            if request["method"] != "tools/call":
                writer.write(self._build_plain(request))
                return
            kind = request["params"]["arguments"]["kind"]
        start, part = KINDS[kind]
        writer.write(start)
        block = part * (65_536 // len(part))
        while True:
            writer.write(block)
            await writer.drain()

    def _build_plain(self, request: dict[str, Any]) -> bytes:
        if "id" not in request:
            return b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
        identity = orjson.dumps(request["id"])
        body = b'{"jsonrpc":"2.0","id":' + identity + b"," + answer_request(self._server, request) + b"}"
        return _JSON + b"content-length: %d\r\n\r\n" % len(body) + body
