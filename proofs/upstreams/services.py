"""Thirty HTTP services in the proof's own process, and how each of them behaves at the moment."""

import asyncio
import contextlib
import itertools
import socket
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

import httptools
import orjson

_ANSWER_SECONDS = 0.02
_FLAP_SECONDS = 3.0
_SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
_RESPONSES = {"200": {"description": "The order", "content": {"application/json": {"schema": _SCHEMA}}}}
_ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
DOCUMENT = {
    "openapi": "3.0.3",
    "info": {"title": "Orders", "version": "1"},
    "paths": {
        "/orders/{id}": {
            "parameters": [_ID],
            "get": {"operationId": "getOrder", "summary": "Read one order.", "responses": _RESPONSES},
            # Nothing says that it may be repeated.
            "post": {"operationId": "shipOrder", "summary": "Ship an order.", "responses": _RESPONSES},
        },
    },
}


class Behavior(StrEnum):
    HEALTHY = "healthy"
    # Nobody listens.
    REFUSED = "refused"
    # What connects is answered by nobody, not even by the kernel.
    BLACKHOLE = "blackhole"
    # Connections are closed as soon as they are open.
    DEAD = "dead"
    # Requests are taken and never answered.
    SLOW = "slow"
    FLAPPING = "flapping"
    GARBAGE = "garbage"
    # Heads come before an answer that never comes.
    HEADS = "heads"
    # The answer comes in chunks of one byte, without end.
    CRUMBS = "crumbs"


SICK_BEHAVIORS = (
    Behavior.REFUSED,
    Behavior.BLACKHOLE,
    Behavior.DEAD,
    Behavior.SLOW,
    Behavior.FLAPPING,
    Behavior.GARBAGE,
    Behavior.HEADS,
    Behavior.CRUMBS,
)


# What they send first, and again and again after it.
_ENDLESS = {
    Behavior.HEADS: (b"", b"HTTP/1.1 100 \r\n\r\n" * 500),
    Behavior.CRUMBS: (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 1_000),
}
_CLOSING = (Behavior.REFUSED, Behavior.DEAD)


@dataclass(kw_only=True, slots=True)
class Service:
    name: str
    behavior: Behavior = Behavior.HEALTHY
    port: int = 0
    # How often each order was shipped.
    shipped: Counter[str] = field(default_factory=Counter)
    request_count: int = 0
    _listener: asyncio.Server | None = None
    _hole: list[socket.socket] = field(default_factory=list)

    async def start(self) -> None:
        self._listener = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, backlog=256, reuse_address=True
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    async def behave(self, behavior: Behavior) -> None:
        """Be healthy, or sick in this way, from now on."""
        self.behavior = behavior
        await self.close()
        if behavior is Behavior.BLACKHOLE:
            self._hole = _open_blackhole(self.port)
        elif behavior is not Behavior.REFUSED:
            await self.start()

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for each in self._hole:
            each.close()
        self._hole = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while self.behavior not in _CLOSING and await self._answer(reader, writer):
                pass
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = _Request()
        parser = httptools.HttpRequestParser(request)
        while not request.is_complete:
            data = await reader.read(65_536)
            if not data:
                return False
            parser.feed_data(data)
        if self.behavior in _CLOSING:
            return False
        self.request_count += 1
        if parser.get_method() == b"POST":
            self.shipped[request.path] += 1
        behavior = self.behavior
        if behavior in (Behavior.SLOW, Behavior.BLACKHOLE):
            # Until the client gives up.
            await reader.read(1)
            return False
        if behavior is Behavior.GARBAGE:
            writer.write(b"\x00\xff this is not HTTP\r\n\r\n")
            return False
        if behavior in _ENDLESS:
            start, part = _ENDLESS[behavior]
            writer.write(start)
            while self.behavior is behavior:
                writer.write(part)
                await writer.drain()
            return False
        await asyncio.sleep(_ANSWER_SECONDS)
        is_down = (
            behavior is Behavior.FLAPPING and asyncio.get_running_loop().time() % (2 * _FLAP_SECONDS) < _FLAP_SECONDS
        )
        body = orjson.dumps({"id": request.path.rpartition("/")[2]})
        status = "503 Service Unavailable" if is_down else "200 OK"
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        return True


@dataclass(slots=True)
class _Request:
    path: str = ""
    is_complete: bool = False

    def on_url(self, url: bytes) -> None:
        self.path = url.decode()

    def on_message_complete(self) -> None:
        self.is_complete = True


def make_services(count: int) -> list[Service]:
    return [Service(name=f"svc{number:02}") for number in range(count)]


def _open_blackhole(port: int) -> list[socket.socket]:
    """Listen without accepting, with the queue full: whatever connects further waits for an answer."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(0)
    fillers = [socket.socket() for _ in range(4)]
    for each in fillers:
        each.setblocking(False)
        each.connect_ex(("127.0.0.1", port))
    return [listener, *fillers]


async def spoil(services: list[Service]) -> None:
    """Give each of these services one of the ways to be sick, in turn."""
    for service, behavior in zip(services, itertools.cycle(SICK_BEHAVIORS), strict=False):
        await service.behave(behavior)


def render_settings(services: list[Service], document: str, digest: str) -> str:
    return "\n".join(
        f'[[services]]\nname = "{each.name}"\ndocument = "{document}"\nsha256 = "{digest}"\n'
        f'url = "http://127.0.0.1:{each.port}"\n'
        for each in services
    )
