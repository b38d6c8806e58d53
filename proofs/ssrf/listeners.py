"""Accept every connection to any address, keep the address it was made to, and answer as scripted web sites.

A connection is kept when the operating system has accepted it, before TLS and before its first byte.
"""

import asyncio
import contextlib
import ipaddress
import re
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass

PLAIN_PORTS = (22, 25, 80, 2375, 4222, 5432, 6379, 8080, 8200, 9200, 10250, 11211)
TLS_PORTS = (443, 6443, 8443)
NATS_PORT = 4222
SLOW = "X-Slow: yes"
"""A header of responses that arrive a byte at a time."""
Site = Callable[[str], bytes]
_REQUEST_SECONDS = 30.0
_BYTE_SECONDS = 0.1
_TLS_RECORD = b"\x16"
_LENGTH = re.compile(rb"^content-length: *(\d+)", re.MULTILINE | re.IGNORECASE)
_HOST = re.compile(rb"^host: *([^\r\n]*)", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Connection:
    """The address and the port that a connection was made to."""

    address: str
    port: int


def make_response(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """Make a response that ends its connection."""
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers)
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


_SECRET = make_response(b'{"AccessKeyId": "planted", "keys": [], "openapi": "3.0.0"}')


class Listeners:
    """Listeners on all addresses. Requests for a host that has no site get a secret."""

    def __init__(self, tls: ssl.SSLContext, nats_greeting: bytes, answer_stranger: Site) -> None:
        self._tls = tls
        self._nats_greeting = nats_greeting
        self._answer_stranger = answer_stranger
        self._sites: dict[str, Site] = {}
        self._connections: list[Connection] = []
        self._methods: list[str] = []
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()

    def add_site(self, host: str, site: Site) -> None:
        """Answer requests for a host."""
        self._sites[host] = site

    def start(self) -> None:
        """Listen, and serve in a thread that ends with the process."""
        for port in (*PLAIN_PORTS, *TLS_PORTS):
            for host, family in (("0.0.0.0", socket.AF_INET), ("::", socket.AF_INET6)):
                listener = socket.create_server((host, port), family=family, backlog=1_000)
                listener.setblocking(False)
                self._sockets.append(listener)
                self._loop.add_reader(listener, self._accept_waiting, listener)
        threading.Thread(target=self._loop.run_forever, name="listeners", daemon=True).start()

    def take_connections(self) -> list[Connection]:
        """Take the connections since the last time, with those that nothing has accepted yet."""
        return asyncio.run_coroutine_threadsafe(self._take(), self._loop).result(_REQUEST_SECONDS)

    def take_methods(self) -> list[str]:
        """Take the methods of the requests since the last time."""
        methods, self._methods = self._methods, []
        return methods

    async def _take(self) -> list[Connection]:
        for each in self._sockets:
            self._accept_waiting(each)
        connections, self._connections = self._connections, []
        return connections

    def _accept_waiting(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                accepted, _ = listener.accept()
                accepted.setblocking(False)
                address, port = accepted.getsockname()[:2]
                self._connections.append(Connection(str(ipaddress.ip_address(address)), port))
                task = self._loop.create_task(self._serve(accepted, port))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _serve(self, accepted: socket.socket, port: int) -> None:
        reader = asyncio.StreamReader(limit=1 << 20)
        writer: asyncio.StreamWriter | None = None
        # Clients end connections at any time, and speak other protocols: none of that matters here.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            async with asyncio.timeout(_REQUEST_SECONDS):
                protocol = asyncio.StreamReaderProtocol(reader)
                tls = self._tls if port in TLS_PORTS else None
                transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, accepted, ssl=tls)
                writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
                if port == NATS_PORT:
                    writer.write(self._nats_greeting)
                    await reader.readline()
                    writer.write(b"-ERR 'Authorization Violation'\r\n")
                else:
                    answer = await self._answer(reader)
                    if SLOW.encode() in answer[:1_000]:
                        for each in answer:
                            writer.write(bytes((each,)))
                            await writer.drain()
                            await asyncio.sleep(_BYTE_SECONDS)
                    else:
                        writer.write(answer)
                await writer.drain()
        if writer is not None:
            writer.close()
        else:
            accepted.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        first = await reader.readexactly(1)
        if first == _TLS_RECORD:
            return b""
        head = first + await reader.readuntil(b"\r\n\r\n")
        self._methods.append(head.split(b" ", 1)[0].decode("latin-1"))
        length = _LENGTH.search(head)
        await reader.readexactly(int(length[1]) if length else 0)
        host = _HOST.search(head)
        name = host[1].decode("latin-1").partition(":")[0].lower() if host else ""
        site = self._sites.get(name)
        path = head.split(b" ", 2)[1].decode("latin-1")
        if site is not None:
            return site(path)
        return self._answer_stranger(name) if name.endswith(".attacker.test") and path != "/again" else _SECRET
