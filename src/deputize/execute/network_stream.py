"""Read the answers of HTTP/1.1 peers piece by piece, with bounds on everything that is not content.

The HTTP client above reads whatever has arrived in one turn of the event loop, and counts nothing but content. This
stream hands it one head or a few kilobytes of content at a time, and gives the event loop a turn after each. Chunks are
joined: parsing one takes the client longer than sending it takes its peer.

The stream knows where an answer ends. A connection on which more came, or on which something came while it was idle, is
not used again: that would be taken for the answer to the next request.
"""

import asyncio
import re
import select
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

import httpcore2

from deputize.execute.http_limits import (
    MAX_HEAD_BYTES,
    MAX_HEAD_LINES,
    MAX_INFORMATIONAL_HEADS,
    PIECE_BYTES,
    FramingBudget,
)

# Of content without chunks, which costs the client little however much it is.
_CONTENT_BYTES: Final = 32_768
_HIGH_WATER: Final = 65_536
_MAX_CHUNK_LINE_BYTES: Final = 4_096
_HTTP: Final = b"HTTP/"
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")
_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r\n")


class AnswerRefused(httpcore2.RemoteProtocolError):
    """The peer's answer is not read on, for the reason given, which quotes nothing that the peer sent."""


class MeteredStream(httpcore2.AsyncNetworkStream):
    """The network stream of one connection."""

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self._has_read = False
        self._take: Callable[[], bytes | None]
        self._begin_exchange()

    @classmethod
    async def open(cls, address: str, port: int, timeout: float | None) -> "MeteredStream":
        """Connect to an address."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                _, connection = await loop.create_connection(_Connection, address, port)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout() from error
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error
        return cls(connection)

    def expect_body(self, *, is_chunked: bool, length: int | None) -> None:
        """Say how the body of the answer is delimited, once its head was read; with neither, it ends when closed."""
        self._remaining = 0
        if is_chunked:
            self._take = self._take_chunks
        elif length is None:
            self._take = self._take_content
        else:
            self._remaining = length
            self._take = self._take_sized if length else self._refuse_more

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read the next piece, which is never longer than a head may be; empty at the end."""
        self._has_read = True
        try:
            piece = self._take()
            if piece is None:
                async with asyncio.timeout(timeout):
                    while piece is None:
                        if self._connection.is_at_end:
                            piece = self._take_rest()
                        else:
                            await self._connection.wait_for_data()
                            piece = self._take()
        except TimeoutError as error:
            raise httpcore2.ReadTimeout() from error
        self._connection.continue_reading()
        # Reading what is there already lets nothing else run.
        await asyncio.sleep(0)
        return piece

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._has_read:
            # The pool gave out this connection some turns of the event loop ago. It looks for another one.
            if not self._is_quiet:
                raise httpcore2.ConnectionNotAvailable()
            self._has_read = False
            self._begin_exchange()
        try:
            async with asyncio.timeout(timeout):
                await self._connection.write(buffer)
        except TimeoutError as error:
            raise httpcore2.WriteTimeout() from error

    async def aclose(self) -> None:
        self._connection.transport.abort()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """Begin TLS. Data from before the handshake would be taken for data that is authenticated."""
        loop, connection = asyncio.get_running_loop(), self._connection
        try:
            if connection.received:
                raise httpcore2.ConnectError("the host sent data before TLS began")
            async with asyncio.timeout(timeout):
                transport = await loop.start_tls(
                    connection.transport, connection, ssl_context, server_hostname=server_hostname
                )
            if transport is None:
                raise httpcore2.ConnectError("the host closed the connection")
            connection.transport = transport
        except TimeoutError as error:
            await self.aclose()
            raise httpcore2.ConnectTimeout() from error
        except OSError as error:
            await self.aclose()
            raise httpcore2.ConnectError(str(error)) from error
        except BaseException:
            await self.aclose()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return not self._is_quiet
        return self._connection.transport.get_extra_info(info)

    def _begin_exchange(self) -> None:
        self._take = self._take_head
        self._budget = FramingBudget(asyncio.get_running_loop().time)
        self._heads = 0
        self._searched = 0
        self._remaining = 0
        self._has_chunk = False

    @property
    def _is_quiet(self) -> bool:
        """True if the answer ended, nothing came after it, and the peer has not closed the connection."""
        connection = self._connection
        if self._take != self._refuse_more or connection.received or connection.transport.is_closing():
            return False
        # The event loop may be behind.
        poller = select.poll()
        poller.register(connection.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poller.poll(0)

    # Taking a piece of what was received; None if it has not arrived yet.

    def _take_head(self) -> bytes | None:
        received = self._connection.received
        if not received.startswith(_HTTP[: len(received)]):
            raise AnswerRefused("did not answer with HTTP")
        match = _BLANK_LINE.search(received, self._searched)
        if match is None:
            self._searched = max(0, len(received) - 2)
            if len(received) > MAX_HEAD_BYTES:
                raise AnswerRefused("sent an HTTP head without end")
            return None
        self._heads += 1
        self._searched = 0
        head = self._remove(match.end())
        if head.count(b"\n") > MAX_HEAD_LINES:
            raise AnswerRefused(f"sent an HTTP head of more than {MAX_HEAD_LINES} lines")
        if self._heads > MAX_INFORMATIONAL_HEADS + 1:
            raise AnswerRefused(f"sent more than {MAX_INFORMATIONAL_HEADS} HTTP heads before its answer")
        self._spend(len(head), 0)
        return head

    def _take_content(self) -> bytes | None:
        return self._remove(_CONTENT_BYTES) or None

    def _take_sized(self) -> bytes | None:
        piece = self._remove(min(self._remaining, _CONTENT_BYTES))
        self._remaining -= len(piece)
        if not self._remaining:
            self._take = self._refuse_more
        return piece or None

    def _take_chunks(self) -> bytes | None:
        """Take the content of the chunks that have arrived, as one chunk."""
        received, content, position, ending = self._connection.received, bytearray(), 0, b""
        while position < len(received) and (position < PIECE_BYTES or not content):
            if self._remaining:
                part = received[position : position + min(self._remaining, PIECE_BYTES)]
                content += part
                position += len(part)
                self._remaining -= len(part)
                continue
            # Behind the content of a chunk, and before the size of the next one, its line ends.
            start = position + 2 if self._has_chunk else position
            line = _CHUNK_LINE.match(received, start)
            if line is None or (self._has_chunk and received[position:start] != b"\r\n"):
                if received.find(b"\n", start) >= 0 or len(received) - start > _MAX_CHUNK_LINE_BYTES:
                    raise AnswerRefused("sent an invalid chunk")
                break
            self._remaining = int(line[1], 16)
            self._spend(line.end() - position, self._remaining)
            if not self._remaining:
                # The end of this line may be the beginning of the empty one that ends the trailers.
                position = line.end() - 2
                self._take = self._take_trailers
                break
            self._has_chunk = True
            position = line.end()
        self._remove(position)
        if self._take == self._take_trailers:
            ending = self._take_trailers() or b""
        return (b"%x\r\n%b\r\n" % (len(content), bytes(content)) if content else b"") + ending or None

    def _take_trailers(self) -> bytes | None:
        """Drop the trailers, and end the body when they have arrived."""
        received = self._connection.received
        end = received.find(b"\r\n\r\n", self._searched)
        if end < 0:
            self._searched = max(0, len(received) - 3)
            if len(received) > MAX_HEAD_BYTES:
                raise AnswerRefused("sent HTTP trailers without end")
            return None
        self._spend(end, 0)
        self._remove(end + 4)
        self._take = self._refuse_more
        return b"0\r\n\r\n"

    def _refuse_more(self) -> bytes | None:
        raise AnswerRefused("sent an HTTP answer that ends at no certain place")

    def _take_rest(self) -> bytes:
        """Take what is left of a connection that has ended: only a body without another end is whole."""
        if self._connection.failure is not None:
            raise httpcore2.ReadError() from self._connection.failure
        return self._remove(PIECE_BYTES) if self._take == self._take_head else b""

    def _remove(self, size: int) -> bytes:
        received = self._connection.received
        piece = bytes(received[:size])
        del received[:size]
        return piece

    def _spend(self, framing: int, content: int) -> None:
        if not self._budget.spend(framing, content):
            raise AnswerRefused("sent far more HTTP framing than content")


class _Connection(asyncio.BufferedProtocol):
    """What was received on a connection and not read yet, and whether more can be sent."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.received = bytearray()
        self.is_at_end = False
        self.failure: Exception | None = None
        # A view, because TLS fills it by slices, and those of an array are copies.
        self._incoming = memoryview(bytearray(_CONTENT_BYTES))
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    async def wait_for_data(self) -> None:
        """Wait until more was received, or the connection has ended."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def continue_reading(self) -> None:
        """Receive more, if that was stopped because nobody read what was there."""
        if self._is_paused and len(self.received) <= _HIGH_WATER and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()

    async def write(self, data: bytes) -> None:
        if self.is_at_end or self.transport.is_closing():
            raise httpcore2.WriteError("the connection was closed")
        self.transport.write(data)
        await self._writable.wait()

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # With uvloop it is not an instance of asyncio.Transport, but behaves like one.
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._incoming

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._incoming[:nbytes]
        if len(self.received) > _HIGH_WATER and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self.is_at_end = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_at_end = True
        self.failure = exc
        self._writable.set()
        self._wake()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
