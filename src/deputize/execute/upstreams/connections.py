"""HTTP/1.1 connections to one host, opened once and kept: as little as a client can do, for it is done for every call.

A general client took longer per request than everything else a call costs here. This one sends a body, reads an answer
of known or unknown length, and keeps the connection if both sides left it clean. It follows nothing, unpacks nothing,
remembers nothing.

Above: `http.py`. Below: `execute/egress.py`, which alone decides what may be connected to.
"""

import asyncio
import contextlib
import select
from collections.abc import Awaitable, Callable
from typing import cast

import httptools

from deputize.core.errors import ResourceLimit, UpstreamUnavailable

# Servers commonly close what was idle for five seconds; whoever is quicker is never cut off while sending.
KEPT_SECONDS = 4.0
MOST_CONNECTIONS = 128
# How long an answer that was understood may take to end.
_TAIL_SECONDS = 1.0
_MOST_HEADER_BYTES = 65_536
_HIGH_WATER = 262_144
_WAY_IN = "www-authenticate"


class Connection(asyncio.Protocol):
    """One connection, and the one answer that is on its way on it."""

    def __init__(self, lost: Callable[["Connection"], None]) -> None:
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._then: Callable[[Connection], None] | None = None
        self._busy = False
        self.closed = False
        self.idle_since = 0.0
        self._begin()

    def _begin(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._header_bytes = 0
        self._unheard_bytes = 0
        self._parts: list[bytes] = []
        self._size = 0
        self._has_head = False
        self._until_closed = False
        self._ended = False
        self._surplus = False
        self._reusable = False
        self._broken: str | None = None

    def send(self, data: bytes) -> None:
        """Begins an exchange; from here on the server may act."""
        self._begin()
        self._busy = True
        if self._transport is None or self.closed:
            raise UpstreamUnavailable("the connection was closed", nothing_happened=True)
        self._transport.write(data)

    async def answered(self) -> int:
        """The status, once it is there."""
        while not self._has_head:
            self._require()
            await self._wait()
        return self.status

    async def part(self) -> bytes:
        """What came of the body since it was last asked for; empty at its end."""
        while not self._parts:
            if self._ended:
                return b""
            self._require()
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        if self._size > _HIGH_WATER and self._transport is not None:
            self._transport.resume_reading()
        self._size = 0
        return data

    async def body(self, most: int) -> bytes:
        if self._ended and len(self._parts) == 1 and self._size <= most:
            return await self.part()
        whole = bytearray()
        while data := await self.part():
            whole += data
            if len(whole) > most:
                raise ResourceLimit(f"the answer is larger than {most} bytes")
        return bytes(whole)

    def release(self, then: Callable[["Connection"], None]) -> None:
        """Nobody reads on. `then` gets the connection once its answer has ended, or closed if that takes too long."""
        self._parts.clear()
        if self._ended or self.closed or self._broken or self._until_closed:
            self._finish(then)
            return
        self._then = then
        if self._size > _HIGH_WATER and self._transport is not None:
            self._transport.resume_reading()
        asyncio.get_running_loop().call_later(_TAIL_SECONDS, self._give_up, then)

    def abort(self) -> None:
        self._reusable = False
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self, then: Callable[["Connection"], None]) -> None:
        if self._then is then:
            self.abort()
            self._finish(then)

    def _finish(self, then: Callable[["Connection"], None]) -> None:
        self._then = None
        self._busy = False
        if not self.reusable:
            self.abort()
        then(self)

    @property
    def quiet(self) -> bool:
        """Whether it is open and nothing waits on it. The loop may be behind: a server that is gone has said so to the
        socket before it says so to us, and what is sent to it then would leave open whether it arrived.
        """
        if self.closed or self._transport is None:
            return False
        waiting = select.poll()
        waiting.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not waiting.poll(0)

    @property
    def reusable(self) -> bool:
        return self._reusable and not self._surplus and not self.closed

    def _require(self) -> None:
        if self._broken is not None:
            raise UpstreamUnavailable(self._broken)
        if self.closed:
            raise UpstreamUnavailable("the server closed the connection before it answered")

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._then is not None and (self._ended or self.closed):
            self._finish(self._then)

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an instance of it where the loop is uvloop's, but one in all it does.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            # Nobody asked: whatever it is, it must not be taken for the answer to what is asked next.
            self.abort()
            return
        self._unheard_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("the server does not speak HTTP as it should")
        if self._unheard_bytes > _MOST_HEADER_BYTES and not self._ended:
            # A status, a header or a trailer that does not end: the parser keeps it, or passes over it, for ever.
            self._fail("the server sends what is no answer without end")
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._reusable = False
        if self._has_head and self._until_closed and exc is None:
            self._ended = True
        self._wake()
        self._lost(self)

    # What the parser calls.

    def on_message_begin(self) -> None:
        # More than was asked for: the answer stands, and whatever follows it is not looked at.
        self._surplus = self._ended

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._surplus:
            return
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MOST_HEADER_BYTES:
            self._fail("the server answers with too many headers")
            return
        key, said = name.decode("latin-1").lower(), value.decode("latin-1")
        # Of a header that comes twice the last counts, but each way in is one.
        self.headers[key] = f"{self.headers[key]}, {said}" if key == _WAY_IN and key in self.headers else said

    def on_headers_complete(self) -> None:
        self._unheard_bytes = 0
        if self._surplus:
            return
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.headers = {}
            return
        self._has_head = True
        sized = "content-length" in self.headers or "transfer-encoding" in self.headers
        self._until_closed = not sized and self.status not in (204, 304)
        if self.headers.get("content-encoding", "identity") != "identity":
            self._fail("the server answers compressed without being asked")

    def on_body(self, body: bytes) -> None:
        self._unheard_bytes = 0
        if self._then is not None or self._surplus:
            return
        self._parts.append(body)
        before, self._size = self._size, self._size + len(body)
        if before <= _HIGH_WATER < self._size and self._transport is not None:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.status >= 200 and not self._surplus:
            self._ended = True
            self._reusable = self._parser.should_keep_alive() and self._broken is None

    def _fail(self, why: str) -> None:
        self._broken = self._broken or why
        self.abort()


class Connections:
    """The connections to one host: those in use, bounded, and those that wait to be used again."""

    def __init__(self, dial: Callable[[Callable[[], Connection]], Awaitable[Connection]]) -> None:
        self._dial = dial
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._free = asyncio.Semaphore(MOST_CONNECTIONS)
        self._closing = False
        self._sweeping = False

    async def get(self) -> Connection:
        """A connection for one exchange. Whoever gets it gives it back, whatever happened on it."""
        await self._free.acquire()
        try:
            if self._closing:
                raise UpstreamUnavailable("this gateway is stopping", nothing_happened=True)
            now = asyncio.get_running_loop().time()
            while self._idle:
                kept = self._idle.pop()
                if now - kept.idle_since < KEPT_SECONDS and kept.quiet:
                    return kept
                kept.abort()
            made = await self._dial(lambda: Connection(self._lost))
            self._open.add(made)
            return made
        except BaseException:
            self._free.release()
            raise

    def give_back(self, connection: Connection) -> None:
        connection.release(self._rest)

    def _rest(self, connection: Connection) -> None:
        self._free.release()
        if connection.reusable and not self._closing:
            loop = asyncio.get_running_loop()
            connection.idle_since = loop.time()
            self._idle.append(connection)
            if not self._sweeping:
                self._sweeping = True
                loop.call_later(KEPT_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """What waited too long is closed, so that a server nobody calls keeps nothing open."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        stale = [each for each in self._idle if now - each.idle_since >= KEPT_SECONDS]
        for each in stale:
            self._idle.remove(each)
            each.abort()
        self._sweeping = bool(self._idle) and not self._closing
        if self._sweeping:
            loop.call_later(KEPT_SECONDS, self._sweep)

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    async def aclose(self) -> None:
        self._closing = True
        for each in list(self._open):
            each.abort()
        self._idle.clear()
        # Connections end in the loop's next round.
        await asyncio.sleep(0)
