"""Stands between the suite and the door, because the suite shows no token and knows tools and prompts by bare names.

It adds the token, and puts the server's name before those names on the way in and takes it off on the way out: `greet`
is `fixture__greet` at the door. Body and header are changed each for itself, so whatever contradicts itself
before does so afterwards. All else passes as it is, and one connection carries one request. Above: `site.py`. Below:
asyncio.
"""

import asyncio
import base64
import binascii
import contextlib
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import orjson

_LARGEST = 1 << 20
_HOP = (b"connection", b"content-length", b"transfer-encoding", b"authorization")
_ROUTING = (b"mcp-method", b"mcp-name")
_NAMING = frozenset({"tools/call", "prompts/get", "completion/complete"})
_LISTING = frozenset({"tools/list", "prompts/list"})


class Relay:
    """`names` are the tools and prompts that are put under `prefix`; any other name stays what it is."""

    def __init__(self, port: int, token: str, prefix: str, names: Collection[str]) -> None:
        self._port = port
        self._token = token.encode()
        self._prefix = prefix
        self._names = frozenset(names)
        self.url = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_LARGEST)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        try:
            yield self.url
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError):
            head, body = await _read(reader)
            listing, sent = self._inward(head, body)
            upstream, onward = await asyncio.open_connection("127.0.0.1", self._port, limit=_LARGEST)
            try:
                onward.write(sent)
                passing = asyncio.ensure_future(self._back(upstream, writer, listing=listing))
                # A client that leaves is gone for the door, too.
                leaving = asyncio.ensure_future(reader.read(1))
                await asyncio.wait({passing, leaving}, return_when=asyncio.FIRST_COMPLETED)
                for each in (passing, leaving):
                    each.cancel()
                await asyncio.gather(passing, leaving, return_exceptions=True)
            finally:
                onward.close()
        writer.close()

    def _inward(self, head: list[bytes], body: bytes) -> tuple[bool, bytes]:
        """Whether a list with names is asked for, and the request as the door gets it."""
        listing, body = self._named(body)
        lines = [head[0]]
        for line in head[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"mcp-name":
                line = name + b":" + self._header(value)
            if name.strip().lower() not in _HOP:
                lines.append(line)
        lines += [b"authorization: Bearer " + self._token, b"connection: close"]
        if body:
            lines.append(b"content-length: %d" % len(body))
        return listing, b"\r\n".join(lines) + b"\r\n\r\n" + body

    def _named(self, body: bytes) -> tuple[bool, bytes]:
        try:
            message = orjson.loads(body)
        except orjson.JSONDecodeError:
            return False, body
        if not isinstance(message, dict):
            return False, body
        params, method = message.get("params"), message.get("method")
        named = params.get("ref") if method == "completion/complete" and isinstance(params, dict) else params
        if method in _NAMING and isinstance(named, dict) and named.get("name") in self._names:
            named["name"] = self._prefix + named["name"]
            body = orjson.dumps(message)
        return method in _LISTING, body

    def _header(self, value: bytes) -> bytes:
        text = value.strip().decode("latin-1")
        if text in self._names:
            return value.replace(text.encode(), (self._prefix + text).encode())
        if text.startswith("=?base64?") and text.endswith("?="):
            with contextlib.suppress(binascii.Error, UnicodeDecodeError):
                inner = base64.b64decode(text[9:-2], validate=True).decode()
                if inner in self._names:
                    return b"=?base64?" + base64.b64encode((self._prefix + inner).encode()) + b"?="
        return value

    async def _back(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, *, listing: bool) -> None:
        if listing:
            head, body = await _read(upstream)
            body = self._outward(body)
            kept = [line for line in head if line.partition(b":")[0].strip().lower() not in _HOP]
            kept += [b"connection: close", b"content-length: %d" % len(body)]
            writer.write(b"\r\n".join(kept) + b"\r\n\r\n" + body)
        else:
            while data := await upstream.read(65536):
                writer.write(data)
                await writer.drain()
        await writer.drain()

    def _outward(self, body: bytes) -> bytes:
        try:
            message: Any = orjson.loads(body)
            result = message["result"]
            for each in result["tools" if "tools" in result else "prompts"]:
                each["name"] = each["name"].removeprefix(self._prefix)
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return body
        return orjson.dumps(message)


class Agreeable(Relay):
    """A door that does not compare what headers and bodies say: they are made to agree on the way to it."""

    def _inward(self, head: list[bytes], body: bytes) -> tuple[bool, bytes]:
        with contextlib.suppress(orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            message = orjson.loads(body)
            head = [
                line for line in head if line.partition(b":")[0].strip().lower() not in (b"mcp-method", b"mcp-name")
            ]
            head.append(b"mcp-method: " + message["method"].encode())
            if message["method"] == "tools/call":
                head.append(b"mcp-name: " + message["params"]["name"].encode())
        return super()._inward(head, body)


async def _read(reader: asyncio.StreamReader) -> tuple[list[bytes], bytes]:
    """One message of HTTP/1.1: its lines, and its whole body."""
    head = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in head[1:])}
    if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
        body = bytearray()
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
        return head, bytes(body)
    return head, await reader.readexactly(int(fields.get(b"content-length", b"0")))
