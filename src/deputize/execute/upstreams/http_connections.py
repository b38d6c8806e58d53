"""Keep HTTP/1.1 connections to one host open, with as little work per request as possible.

A general HTTP client took more time per request than everything else in a call. This one sends a body, reads a response
of known or unknown length, and reuses the connection if both sides left it clean. It has no redirects, no compression
and no cookies. `execute/egress.py` decides which hosts it may connect to.
"""

import asyncio
import contextlib
import select
from collections.abc import Awaitable, Callable
from typing import cast

import httptools

from deputize.core.errors import ResourceLimitExceeded, UpstreamUnavailable
from deputize.execute.http_limits import MAX_INFORMATIONAL_HEADS, PIECE_BYTES, FramingBudget
from deputize.execute.upstreams.faults import UpstreamNotAtFault

# Servers commonly close connections after five idle seconds; closing earlier avoids sending on a closing connection.
KEEP_ALIVE_SECONDS = 4.0
MOST_CONNECTIONS = 128
# How long the rest of a response may take after its result was read.
_DRAIN_SECONDS = 1.0
_HIGH_WATER = 262_144
_CHALLENGE_HEADER = "www-authenticate"


class HttpConnection(asyncio.BufferedProtocol):
    """A connection with at most one response in progress."""

    def __init__(self, on_lost: Callable[["HttpConnection"], None]) -> None:
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        # The event loop reads no more than this at once.
        # A view, because TLS fills it by slices, and those of an array are copies.
        self._incoming = memoryview(bytearray(PIECE_BYTES))
        self._waiter: asyncio.Future[None] | None = None
        self._on_release: Callable[[HttpConnection], None] | None = None
        self._is_busy = False
        self.is_closed = False
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._framing = FramingBudget(asyncio.get_running_loop().time)
        self._informational_heads = 0
        self._body_bytes = 0
        self._content = bytearray()
        self._has_head = False
        self._reads_until_close = False
        self._is_complete = False
        self._has_surplus = False
        self._can_reuse = False
        self._failure: str | None = None

    def send(self, data: bytes) -> None:
        """Send a request; from here on the server may act."""
        self._reset()
        self._is_busy = True
        if self._transport is None or self.is_closed:
            raise UpstreamUnavailable("the connection was closed", nothing_happened=True)
        self._transport.write(data)

    async def wait_for_status(self) -> int:
        """Wait for the response's status."""
        while not self._has_head:
            self._require_open()
            await self._wait_for_data()
        return self.status

    async def read_part(self) -> bytes:
        """Read the next part of the body; empty at its end."""
        while not self._content:
            if self._is_complete:
                return b""
            self._require_open()
            await self._wait_for_data()
        data = bytes(self._content)
        self._drop_content()
        return data

    async def read_body(self, max_bytes: int) -> bytes:
        """Read the whole body, up to a limit."""
        if self._is_complete and len(self._content) <= max_bytes:
            return await self.read_part()
        whole = bytearray()
        while data := await self.read_part():
            whole += data
            if len(whole) > max_bytes:
                raise ResourceLimitExceeded(f"the response is larger than {max_bytes} bytes")
        return bytes(whole)

    def release(self, on_release: Callable[["HttpConnection"], None]) -> None:
        """Stop reading. `on_release` gets the connection when the response has ended, or closed if that takes long."""
        self._drop_content()
        if self._is_complete or self.is_closed or self._failure or self._reads_until_close:
            self._finish(on_release)
            return
        self._on_release = on_release
        asyncio.get_running_loop().call_later(_DRAIN_SECONDS, self._give_up, on_release)

    def abort(self) -> None:
        """Close the connection at once."""
        self._can_reuse = False
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self, on_release: Callable[["HttpConnection"], None]) -> None:
        if self._on_release is on_release:
            self.abort()
            self._finish(on_release)

    def _finish(self, on_release: Callable[["HttpConnection"], None]) -> None:
        self._on_release = None
        self._is_busy = False
        if not self.is_reusable:
            self.abort()
        on_release(self)

    @property
    def is_quiet(self) -> bool:
        """True if the connection is open and its socket has no unread data.

        The socket is polled because the event loop may be behind: a server may have closed the connection already, and
        it would be unknown whether a request sent then had arrived.
        """
        if self.is_closed or self._transport is None:
            return False
        poller = select.poll()
        poller.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poller.poll(0)

    @property
    def is_reusable(self) -> bool:
        return self._can_reuse and not self._has_surplus and not self.is_closed

    def _drop_content(self) -> None:
        if len(self._content) > _HIGH_WATER and self._transport is not None:
            self._transport.resume_reading()
        self._content.clear()

    def _require_open(self) -> None:
        if self._failure is not None:
            raise UpstreamUnavailable(self._failure)
        if self.is_closed:
            raise UpstreamUnavailable("the server closed the connection before it sent its response")

    async def _wait_for_data(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._on_release is not None and (self._is_complete or self.is_closed):
            self._finish(self._on_release)

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # With uvloop it is not an instance of asyncio.Transport, but behaves like one.
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._incoming

    def buffer_updated(self, nbytes: int) -> None:
        if not self._is_busy:
            # Unsolicited data must not be taken for the response to the next request.
            self.abort()
            return
        self._body_bytes = 0
        try:
            self._parser.feed_data(self._incoming[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("the server sent an invalid HTTP response")
        if not self._framing.spend(nbytes - self._body_bytes, self._body_bytes):
            # Heads, chunks of one byte and trailers without end would be parsed forever.
            self._fail("the server sent far more HTTP framing than content")
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._can_reuse = False
        if self._has_head and self._reads_until_close and exc is None:
            self._is_complete = True
        self._wake()
        self._on_lost(self)

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        # A second response on one request is ignored; the first one counts.
        self._has_surplus = self._is_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_surplus:
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        # The last of repeated headers counts, but challenges are joined.
        self.headers[key] = f"{self.headers[key]}, {text}" if key == _CHALLENGE_HEADER and key in self.headers else text

    def on_headers_complete(self) -> None:
        if self._has_surplus:
            return
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.headers = {}
            self._informational_heads += 1
            if self._informational_heads > MAX_INFORMATIONAL_HEADS:
                self._fail(f"the server sent more than {MAX_INFORMATIONAL_HEADS} HTTP heads before its response")
            return
        self._has_head = True
        has_length = "content-length" in self.headers or "transfer-encoding" in self.headers
        self._reads_until_close = not has_length and self.status not in (204, 304)
        if self.headers.get("content-encoding", "identity") != "identity":
            self._fail("the server sent a compressed response, which was not accepted")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._on_release is not None or self._has_surplus:
            return
        before = len(self._content)
        self._content += body
        if before <= _HIGH_WATER < len(self._content) and self._transport is not None:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.status >= 200 and not self._has_surplus:
            self._is_complete = True
            self._can_reuse = self._parser.should_keep_alive() and self._failure is None

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self.abort()


class HttpConnectionPool:
    """The connections to one host: a limited number in use, and idle ones for reuse."""

    def __init__(self, dial: Callable[[Callable[[], HttpConnection]], Awaitable[HttpConnection]]) -> None:
        self._dial = dial
        self._idle: list[HttpConnection] = []
        self._open: set[HttpConnection] = set()
        self._free = asyncio.Semaphore(MOST_CONNECTIONS)
        self._is_closing = False
        self._is_sweeping = False

    async def acquire(self) -> HttpConnection:
        """Acquire a connection for one request; the caller must give it back in every case."""
        await self._free.acquire()
        try:
            if self._is_closing:
                raise UpstreamNotAtFault("this gateway is stopping", nothing_happened=True)
            now = asyncio.get_running_loop().time()
            while self._idle:
                idle_connection = self._idle.pop()
                if now - idle_connection.idle_since < KEEP_ALIVE_SECONDS and idle_connection.is_quiet:
                    return idle_connection
                idle_connection.abort()
            new_connection = await self._dial(lambda: HttpConnection(self._discard))
            self._open.add(new_connection)
            return new_connection
        except BaseException:
            self._free.release()
            raise

    def give_back(self, connection: HttpConnection) -> None:
        """Return a connection to the pool."""
        connection.release(self._return_idle)

    def _return_idle(self, connection: HttpConnection) -> None:
        self._free.release()
        if connection.is_reusable and not self._is_closing:
            loop = asyncio.get_running_loop()
            connection.idle_since = loop.time()
            self._idle.append(connection)
            if not self._is_sweeping:
                self._is_sweeping = True
                loop.call_later(KEEP_ALIVE_SECONDS, self._close_stale)

    def _close_stale(self) -> None:
        """Close connections that were idle too long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        stale = [each for each in self._idle if now - each.idle_since >= KEEP_ALIVE_SECONDS]
        for each in stale:
            self._idle.remove(each)
            each.abort()
        self._is_sweeping = bool(self._idle) and not self._is_closing
        if self._is_sweeping:
            loop.call_later(KEEP_ALIVE_SECONDS, self._close_stale)

    def _discard(self, connection: HttpConnection) -> None:
        self._open.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    async def aclose(self) -> None:
        """Close all connections."""
        self._is_closing = True
        for each in list(self._open):
            each.abort()
        self._idle.clear()
        # Connections close in the loop's next iteration.
        await asyncio.sleep(0)
