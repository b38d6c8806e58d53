"""A proxy that understands whatever it can, and connects to it: what attempts get through without a check."""

import asyncio
import contextlib
import re
import socket
import struct
from urllib.parse import unquote, urlsplit

_TARGET = re.compile(r"(?P<method>\w+)[ \t]+(?P<target>\S+)")
_HOST = re.compile(rb"^host:[ \t]*([^\s]+)", re.MULTILINE | re.IGNORECASE)
_END = re.compile(rb"\r?\n\r?\n")
_SOCKS = 5


async def serve_unchecked(port: int) -> asyncio.Server:
    return await asyncio.start_server(_serve, "127.0.0.1", port)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError), contextlib.closing(writer):
        first = await reader.readexactly(1)
        if first[0] == _SOCKS:
            await _serve_socks(reader, writer)
            return
        text = first
        while True:
            while (end := _END.search(text)) is None:
                part = await reader.read(65_536)
                if not part:
                    return
                text += part
            head, text = text[: end.end()], text[end.end() :]
            target = _find_target(head)
            if target is None:
                continue
            host, port, is_tunnel = target
            try:
                upstream = await _connect(host, port)
            except OSError:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
                continue
            if is_tunnel:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                await _relay(reader, writer, upstream, text)
                return
            with contextlib.closing(upstream[1]):
                upstream[1].write(head)
                await upstream[1].drain()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


def _find_target(head: bytes) -> tuple[str, int, bool] | None:
    found = _TARGET.match(head.decode("latin-1").lstrip("\r\n0"))
    if found is None:
        return None
    is_tunnel, target, named = found["method"].upper() == "CONNECT", unquote(found["target"]), _HOST.search(head)
    if named is not None and (is_tunnel or target.startswith("/")):
        other = urlsplit(f"//{named[1].decode('latin-1')}")
        if other.hostname not in (None, "shop.example"):
            return str(other.hostname), other.port or 80, is_tunnel
    parts = urlsplit(target if "://" in target else f"//{target}")
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80), is_tunnel


async def _connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    # As the library reads addresses: in all their forms, and each that a name has.
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    opened = [await asyncio.open_connection(str(each[4][0]), port) for each in found]
    for _, other in opened[1:]:
        other.close()
    return opened[0]


async def _serve_socks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly((await reader.readexactly(1))[0])
    writer.write(b"\x05\x00")
    await reader.readexactly(4)
    host = await reader.readexactly((await reader.readexactly(1))[0])
    (port,) = struct.unpack("!H", await reader.readexactly(2))
    upstream = await _connect(host.decode(), port)
    writer.write(b"\x05\x00\x00\x01" + bytes(6))
    await _relay(reader, writer, upstream, b"")


async def _relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    sent: bytes,
) -> None:
    upstream[1].write(sent)
    await asyncio.gather(_pass_on(reader, upstream[1]), _pass_on(upstream[0], writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while part := await reader.read(65_536):
            writer.write(part)
            await writer.drain()
