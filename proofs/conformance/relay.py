"""Stands between the suite and the interface, because the suite shows no token and knows tools and prompts by bare
names.

It adds the token, and puts the server's name before those names on the way in and takes it off on the way out:
`greet` is `fixture__greet` at the interface. Body and header are changed each for itself, so whatever contradicts
itself before does so afterwards. All else passes as it is, and one connection carries one request.
"""

import asyncio
import base64
import binascii
import contextlib
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import orjson

_MAX_BYTES = 1 << 20
_HOP_HEADERS = (b"connection", b"content-length", b"transfer-encoding", b"authorization")
_ROUTING = (b"mcp-method", b"mcp-name")
_NAMED_METHODS = frozenset({"tools/call", "prompts/get", "completion/complete"})
_LIST_METHODS = frozenset({"tools/list", "prompts/list"})


class Relay:
    """`names` are the tools and prompts that are put under `prefix`; any other name stays what it is."""

    def __init__(self, port: int, token: str, prefix: str, names: Collection[str]) -> None:
        self._port = port
        self._token = token.encode()
        self._prefix = prefix
        self._names = frozenset(names)
        self.url = ""

    @asynccontextmanager
    async def start(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._relay_connection, "127.0.0.1", 0, limit=_MAX_BYTES)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        try:
            yield self.url
        finally:
            server.close()

    async def _relay_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError):
            head, body = await _read_message(reader)
            is_listing, request = self._rewrite_request(head, body)
            upstream, upstream_writer = await asyncio.open_connection("127.0.0.1", self._port, limit=_MAX_BYTES)
            try:
                upstream_writer.write(request)
                response_task = asyncio.ensure_future(self._relay_response(upstream, writer, is_listing=is_listing))
                # A client that leaves is gone for the door, too.
                disconnect_task = asyncio.ensure_future(reader.read(1))
                await asyncio.wait({response_task, disconnect_task}, return_when=asyncio.FIRST_COMPLETED)
                for each in (response_task, disconnect_task):
                    each.cancel()
                await asyncio.gather(response_task, disconnect_task, return_exceptions=True)
            finally:
                upstream_writer.close()
        writer.close()

    def _rewrite_request(self, head: list[bytes], body: bytes) -> tuple[bool, bytes]:
        """Whether a list with names is asked for, and the request as the interface gets it."""
        is_listing, body = self._prefix_name(body)
        lines = [head[0]]
        for line in head[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"mcp-name":
                line = name + b":" + self._prefix_header(value)
            if name.strip().lower() not in _HOP_HEADERS:
                lines.append(line)
        lines += [b"authorization: Bearer " + self._token, b"connection: close"]
        if body:
            lines.append(b"content-length: %d" % len(body))
        return is_listing, b"\r\n".join(lines) + b"\r\n\r\n" + body

    def _prefix_name(self, body: bytes) -> tuple[bool, bytes]:
        try:
            message = orjson.loads(body)
        except orjson.JSONDecodeError:
            return False, body
        if not isinstance(message, dict):
            return False, body
        params, method = message.get("params"), message.get("method")
        name_holder = params.get("ref") if method == "completion/complete" and isinstance(params, dict) else params
        if method in _NAMED_METHODS and isinstance(name_holder, dict) and name_holder.get("name") in self._names:
            name_holder["name"] = self._prefix + name_holder["name"]
            body = orjson.dumps(message)
        return method in _LIST_METHODS, body

    def _prefix_header(self, value: bytes) -> bytes:
        text = value.strip().decode("latin-1")
        if text in self._names:
            return value.replace(text.encode(), (self._prefix + text).encode())
        if text.startswith("=?base64?") and text.endswith("?="):
            with contextlib.suppress(binascii.Error, UnicodeDecodeError):
                inner = base64.b64decode(text[9:-2], validate=True).decode()
                if inner in self._names:
                    return b"=?base64?" + base64.b64encode((self._prefix + inner).encode()) + b"?="
        return value

    async def _relay_response(
        self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_listing: bool
    ) -> None:
        if is_listing:
            head, body = await _read_message(upstream)
            body = self._strip_names(body)
            lines = [line for line in head if line.partition(b":")[0].strip().lower() not in _HOP_HEADERS]
            lines += [b"connection: close", b"content-length: %d" % len(body)]
            writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        else:
            while data := await upstream.read(65536):
                writer.write(data)
                await writer.drain()
        await writer.drain()

    def _strip_names(self, body: bytes) -> bytes:
        try:
            message: Any = orjson.loads(body)
            result = message["result"]
            for each in result["tools" if "tools" in result else "prompts"]:
                each["name"] = each["name"].removeprefix(self._prefix)
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return body
        return orjson.dumps(message)


class HeaderFixingRelay(Relay):
    """A interface that does not compare what headers and bodies say: they are made to agree on the way to it."""

    def _rewrite_request(self, head: list[bytes], body: bytes) -> tuple[bool, bytes]:
        with contextlib.suppress(orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            message = orjson.loads(body)
            head = [
                line for line in head if line.partition(b":")[0].strip().lower() not in (b"mcp-method", b"mcp-name")
            ]
            head.append(b"mcp-method: " + message["method"].encode())
            if message["method"] == "tools/call":
                head.append(b"mcp-name: " + message["params"]["name"].encode())
        return super()._rewrite_request(head, body)


async def _read_message(reader: asyncio.StreamReader) -> tuple[list[bytes], bytes]:
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
