"""HTTP with as little in between as possible: one keep-alive connection, bytes out, status and bytes in.

For proofs that make many requests from one process, or requests that a proper client refuses to send.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import orjson

_LARGEST_HEAD = 1 << 18


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpResponse:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass(kw_only=True, slots=True)
class HttpConnection:
    """One connection; opened when first used, and again when the other side has closed it."""

    host: str
    port: int
    headers: Mapping[str, str] = field(default_factory=dict)
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @classmethod
    def for_url(cls, url: str, *, token: str | None = None) -> Self:
        parts = urlsplit(url)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return cls(host=parts.hostname or "127.0.0.1", port=parts.port or 80, headers=headers)

    async def get(self, path: str, **headers: str) -> HttpResponse:
        return await self.send("GET", path, headers=headers)

    async def post(self, path: str, value: Any, **headers: str) -> HttpResponse:
        """A JSON value; underscores in the names of headers stand for hyphens."""
        header_fields = {name.replace("_", "-"): each for name, each in headers.items()}
        return await self.send("POST", path, headers=header_fields, body=orjson.dumps(value))

    async def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        is_endless: bool = False,
    ) -> HttpResponse:
        """One request and its answer. Nothing is encoded or checked on the way, and nothing is sent twice.

        Of an answer that may never end only the head is read, and the connection is closed, if `is_endless` says so.
        """
        if self._streams is not None and self._streams[0].at_eof():
            # It was idle for longer than the other side keeps it.
            self.close()
        reader, writer = self._streams or await self._open()
        fields = {"host": f"{self.host}:{self.port}", **self.headers, **(headers or {})}
        if body:
            fields = {"content-type": "application/json", **fields, "content-length": str(len(body))}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        try:
            writer.write("\r\n".join(lines).encode("latin-1") + body)
            return await self._read_response(reader, is_endless=is_endless)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self._streams = await asyncio.open_connection(self.host, self.port, limit=_LARGEST_HEAD)
        return self._streams

    async def _read_response(self, reader: asyncio.StreamReader, *, is_endless: bool) -> HttpResponse:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(head[0].split(" ", 2)[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
        if is_endless and headers.get("content-type", "").startswith("text/event-stream"):
            self.close()
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = await _read_chunks(reader)
        elif "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        else:
            body = b"" if status in (204, 304) else await reader.read()
        if headers.get("connection", "").lower() == "close":
            self.close()
        return HttpResponse(status=status, headers=headers, body=body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return bytes(body)
