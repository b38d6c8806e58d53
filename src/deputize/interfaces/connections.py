"""Bound what one HTTP connection, and all of them together, can cost before a caller is known.

uvicorn's httptools protocol limits neither the size of a request's head nor the time a client takes to send it. This
subclass does. An ordinary request, which arrives whole, costs a few assignments: sizes are added up only for messages
that arrive in parts, and deadlines are compared once a second for all connections of a listener.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, ClassVar, Literal

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from deputize.core.errors import Unavailable
from deputize.core.settings.server import ServerSettings
from deputize.interfaces.asgi_http import Receive, Scope, Send, read_trace_id, send_problem

_HEALTH_URLS = (b"/healthz", b"/readyz")
_MAX_HEADERS = 200
_MAX_PIPELINED = 16
# Framing may make a chunked body longer than its content, but not without end.
_FRAMING_FACTOR = 4
_CHECK_SECONDS = 1.0
_LOG_SECONDS = 10.0
# A response that a client does not read: it must take this much within this time, or the connection ends.
_WRITE_SECONDS = 30.0
_WRITE_BYTES = 65_536
# How long an answered request may go on sending, and a closed connection may take to flush.
_LINGER_SECONDS = 2.0

log = structlog.get_logger("deputize.interfaces")
# uvicorn would log a line for every malformed request; refusals are counted and summed up instead.
_quiet_logger = logging.getLogger("uvicorn.error.connection")
_quiet_logger.setLevel(logging.ERROR)


_Part = Literal["head", "body"]


class RefusedRequest(Exception):
    """A request that exceeds a limit; raised inside the parser to stop it."""


class ConnectionLimiter:
    """The limits of one listener: counts its connections, and ends those that take too long."""

    def __init__(self, settings: ServerSettings, *, count_refusal: Callable[[str], None] = lambda reason: None) -> None:
        self.settings = settings
        self.is_draining = False
        """Whether the listener is about to stop."""
        self.max_body_bytes = _FRAMING_FACTOR * settings.max_body_bytes + settings.max_head_bytes
        self._connections: set[LimitedConnection] = set()
        self._counts_by_address: Counter[str] = Counter()
        self._count_refusal = count_refusal
        self._unlogged_refusals: Counter[str] = Counter()
        self._logged_at = -_LOG_SECONDS

    def admit(self, connection: "LimitedConnection") -> bool:
        """Count a new connection, or return False if there are too many."""
        address = connection.address
        if len(self._connections) >= self.settings.max_connections:
            self.count_refusal("connections")
            return False
        if address is not None:
            if self._counts_by_address[address] >= self.settings.max_connections_per_address:
                self.count_refusal("connections_per_address")
                return False
            self._counts_by_address[address] += 1
            connection.is_counted = True
        self._connections.add(connection)
        return True

    def release(self, connection: "LimitedConnection") -> None:
        """Stop counting a connection that has ended."""
        self._connections.discard(connection)
        address = connection.address
        if connection.is_counted and address is not None:
            connection.is_counted = False
            self._counts_by_address[address] -= 1
            if self._counts_by_address[address] <= 0:
                del self._counts_by_address[address]

    def start_drain(self) -> None:
        """End each connection with its next response, so that its client opens the next one elsewhere."""
        self.is_draining = True
        for connection in self._connections:
            connection.end_after_response()

    def count_refusal(self, reason: str) -> None:
        """Count a refusal for the metrics and the next line of the log."""
        self._unlogged_refusals[reason] += 1
        self._count_refusal(reason)

    @contextlib.asynccontextmanager
    async def end_late_connections(self, connections: Iterable[object]) -> AsyncIterator[None]:
        """Compare the deadlines of a listener's connections once a second, also while the listener stops."""

        async def check_deadlines() -> None:
            while True:
                await asyncio.sleep(_CHECK_SECONDS)
                now = time.monotonic()
                for connection in list(connections):
                    if isinstance(connection, LimitedConnection):
                        connection.check_deadlines(now)
                self._log_refusals(now)

        task = asyncio.create_task(check_deadlines(), name="connection-deadlines")
        try:
            yield
        finally:
            task.cancel()

    def _log_refusals(self, now: float) -> None:
        if self._unlogged_refusals and now - self._logged_at >= _LOG_SECONDS:
            log.warning("connections-refused", **self._unlogged_refusals)
            self._unlogged_refusals.clear()
            self._logged_at = now


class LimitedConnection(HttpToolsProtocol):
    """One connection whose heads, bodies and pauses are limited."""

    limiter: ClassVar[ConnectionLimiter]
    max_head_bytes: ClassVar[int]
    max_request_line_bytes: ClassVar[int]
    max_requests: ClassVar[int]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logger = _quiet_logger
        # The client that this connection counts for; a reverse proxy's counts for none.
        self.address: str | None = None
        self.is_counted = False
        self._full_app = self.app
        self._is_in_body = False
        # The request that ended in the chunk being parsed, if any.
        self._ended_scope: object = None
        self._chunk_bytes = 0
        # For a message that arrives in parts: what its deadline is for, its bytes, and the deadline.
        self._timed_part: _Part | None = "head"
        self._partial_bytes = 0
        self._deadline: float | None = None
        # Until when the client may send its next request.
        self._idle_deadline: float | None = None
        self._write_deadline: float | None = None
        self._unsent_bytes = 0
        self._close_deadline: float | None = None
        self._refusal: tuple[int, str, str] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if self.client is not None and not is_within(self.client[0], self.limiter.settings.reverse_proxies):
            self.address = group_address(self.client[0])
        if not self.limiter.admit(self):
            self._send_refusal(503, "There are too many connections to this gateway. Try again later.")
            return
        self._deadline = time.monotonic() + self.limiter.settings.header_timeout_seconds

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.limiter.release(self)

    # The next five methods run for every request, so they call the base class by name, which is cheaper than super().

    def data_received(self, data: bytes) -> None:
        self._ended_scope = self._idle_deadline = None
        self._chunk_bytes = len(data)
        HttpToolsProtocol.data_received(self, data)
        if self._ended_scope is self.scope and self.scope is not None:
            self._deadline = self._timed_part = None
            self._partial_bytes = 0
        elif not self.transport.is_closing():
            self._limit_partial_message(len(data))

    def on_header(self, name: bytes, value: bytes) -> None:
        # What follows a chunked body are trailers: they are no headers, because no proxy has looked at them as such.
        if not self._is_in_body:
            HttpToolsProtocol.on_header(self, name, value)

    def on_headers_complete(self) -> None:
        url_bytes, chunk_bytes = len(self.url), self._chunk_bytes + self._partial_bytes
        if url_bytes > self.max_request_line_bytes:
            self._stop_parser(*self._describe_long_url())
        if len(self.headers) > _MAX_HEADERS or (
            chunk_bytes > self.max_head_bytes and self._measure_head() > self.max_head_bytes
        ):
            self._stop_parser(*self._describe_large_head())
        if self.pipeline and len(self.pipeline) >= _MAX_PIPELINED:
            self._stop_parser(400, "pipeline", "Too many requests were sent without waiting for responses.")
        is_full = len(self.tasks) >= self.max_requests and self.url not in _HEALTH_URLS
        if is_full:
            self.limiter.count_refusal("requests")
        self.app = _refuse_request if is_full else self._full_app
        self._is_in_body = True
        HttpToolsProtocol.on_headers_complete(self)
        if self.limiter.is_draining:
            self.end_after_response()

    def end_after_response(self) -> None:
        """End this connection with the response to the request in progress, which then says so."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_started:
            cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._is_in_body = False
        self._ended_scope = self.scope
        HttpToolsProtocol.on_message_complete(self)

    def on_response_complete(self) -> None:
        # As in uvicorn, but without a timer for each response: `check_deadlines` looks once a second.
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._idle_deadline = time.monotonic() + self.timeout_keep_alive
        if self._is_in_body:
            # The request was answered before its body was complete, which the client may not have noticed.
            linger = time.monotonic() + _LINGER_SECONDS
            self._deadline = linger if self._deadline is None else min(self._deadline, linger)
            self._timed_part = "body"

    def _limit_partial_message(self, chunk_bytes: int) -> None:
        """Set the deadline of a message that is not complete, or refuse it if it grew too large."""
        settings = self.limiter.settings
        part: _Part = "body" if self._is_in_body else "head"
        has_message_ended = self._ended_scope is not None
        if has_message_ended or part != self._timed_part:
            seconds = settings.body_timeout_seconds if part == "body" else settings.header_timeout_seconds
            self._deadline, self._timed_part = time.monotonic() + seconds, part
            # Where the chunk also holds an earlier message or the head, the part's own size is not known yet.
            self._partial_bytes = 0 if has_message_ended or part == "body" else chunk_bytes
        else:
            self._partial_bytes += chunk_bytes
        if part == "body":
            if self._partial_bytes > self.limiter.max_body_bytes:
                self._refuse(413, "body", f"The body is larger than {settings.max_body_bytes} bytes.")
        elif len(getattr(self, "url", b"")) > settings.max_request_line_bytes:
            self._refuse(*self._describe_long_url())
        elif self._partial_bytes > settings.max_head_bytes:
            self._refuse(*self._describe_large_head())

    def _measure_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline = time.monotonic() + _WRITE_SECONDS
        self._unsent_bytes = self.transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_deadline = None

    def check_deadlines(self, now: float) -> None:
        """End this connection if its client takes too long to send, to read or to close."""
        if self.transport.is_closing():
            if self._close_deadline is None:
                self._close_deadline = now + _LINGER_SECONDS
            elif now > self._close_deadline:
                self.transport.abort()
        elif self._write_deadline is not None and now > self._write_deadline:
            unsent_bytes = self.transport.get_write_buffer_size()
            if self._unsent_bytes - unsent_bytes < _WRITE_BYTES:
                self.limiter.count_refusal("write_timeout")
                self.transport.abort()
            self._write_deadline, self._unsent_bytes = now + _WRITE_SECONDS, unsent_bytes
        elif self._deadline is not None and now > self._deadline:
            self._end_late_request(now)
        elif self._idle_deadline is not None and now > self._idle_deadline:
            self.transport.close()

    def _end_late_request(self, now: float) -> None:
        settings = self.limiter.settings
        if self.flow.read_paused:
            # The gateway itself does not read: it is busy with the request before this one, or with this one.
            self._deadline = now + settings.body_timeout_seconds
        elif self._timed_part == "body":
            self._refuse(408, "body_timeout", f"The body took longer than {settings.body_timeout_seconds:g} s.")
        elif self._partial_bytes:
            self._refuse(408, "header_timeout", f"The headers took longer than {settings.header_timeout_seconds:g} s.")
        else:
            self.limiter.count_refusal("header_timeout")
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser could not read, or was told to refuse."""
        self._refuse(*(self._refusal or (400, "malformed", msg)))

    def _describe_long_url(self) -> tuple[int, str, str]:
        limit = self.limiter.settings.max_request_line_bytes
        return 414, "request_line", f"The URL is longer than {limit} bytes. Send a shorter one."

    def _describe_large_head(self) -> tuple[int, str, str]:
        limit = self.limiter.settings.max_head_bytes
        message = f"The request's headers are larger than {limit} bytes, or more than {_MAX_HEADERS}. Send fewer."
        return 431, "head", message

    def _stop_parser(self, status: int, reason: str, message: str) -> None:
        self._refusal = status, reason, message
        raise RefusedRequest(message)

    def _refuse(self, status: int, reason: str, message: str) -> None:
        self.limiter.count_refusal(reason)
        self._send_refusal(status, message)

    def _send_refusal(self, status: int, message: str) -> None:
        """Send a response and close, or only close where a response is already under way."""
        if self.transport.is_closing():
            return
        if self.pipeline or self._is_responding():
            self.transport.abort()
            return
        body = message.encode("ascii", "replace")
        self.transport.write(
            b"%scontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (STATUS_LINE[status], len(body), body)
        )
        self.transport.close()

    def _is_responding(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and cycle.response_started and not cycle.response_complete


def make_connection_class(limiter: ConnectionLimiter) -> type[LimitedConnection]:
    """Make the class of a listener's connections, which share its limiter."""
    settings = limiter.settings
    attributes = {
        "limiter": limiter,
        "max_head_bytes": settings.max_head_bytes,
        "max_request_line_bytes": settings.max_request_line_bytes,
        "max_requests": settings.max_requests,
    }
    return type("LimitedConnection", (LimitedConnection,), attributes)


async def _refuse_request(scope: Scope, receive: Receive, send: Send) -> None:
    problem = Unavailable("the gateway has as many requests in progress as it accepts", retry_after_ms=1000)
    await send_problem(send, problem, read_trace_id(scope), ((b"connection", b"close"),))


def find_client(scope: Scope, reverse_proxies: tuple[str, ...]) -> str:
    """Return the client of a request, as `group_address` names it: the nearest one that is not a reverse proxy.

    Only what a proxy appended to `X-Forwarded-For` is believed. Without a proxy of ours in front, it is ignored.
    """
    peer = scope.get("client")
    host = peer[0] if peer else ""
    values = (value for name, value in scope["headers"] if name == b"x-forwarded-for")
    for hop in reversed(b",".join(values).decode("latin-1").split(",")):
        forwarded_host = _strip_port(hop.strip())
        if not is_within(host, reverse_proxies) or _parse_address(forwarded_host) is None:
            break
        host = forwarded_host
    return group_address(host) or host


def _strip_port(host: str) -> str:
    """Return an address without the port that some proxies add: `192.0.2.7:443` or `[2001:db8::7]:443`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host


@lru_cache(maxsize=4096)
def group_address(host: str) -> str | None:
    """Return what counts as one client: an IPv4 address, or the /64 network of an IPv6 address."""
    address = _parse_address(host)
    if isinstance(address, IPv6Address) and not address.is_loopback:
        return str(IPv6Network((address, 64), strict=False).network_address)
    return None if address is None else str(address)


@lru_cache(maxsize=4096)
def is_within(host: str, networks: tuple[str, ...]) -> bool:
    """Return whether an address is in one of the networks."""
    address = _parse_address(host)
    return address is not None and any(address in ip_network(network) for network in networks)


def _parse_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
