"""Exchange JSON-RPC messages with one running server process; concurrent requests are matched by their ids."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from deputize.core.errors import Problem, UpstreamUnavailable
from deputize.core.mcp.constants import PROGRESS_TOKEN, VERSION_UNSUPPORTED
from deputize.execute.upstreams.jsonrpc import (
    LIST_CHANGED_FILTER,
    LIST_CHANGED_METHODS,
    ServerInfo,
    UpstreamRequest,
    UpstreamRpcError,
    build_cancel_notification,
    build_initialize_params,
    build_notification,
    build_reply,
    extract_result,
    has_no_common_version,
    parse_discover_result,
    parse_initialize_result,
    parse_message_off_loop,
)
from deputize.execute.upstreams.subprocess_server import ServerProcess

# How long to wait for `server/discover`, which older servers may leave unanswered.
_PROBE_SECONDS: Final = 5.0
_LINES_AT_ONCE: Final = 100
# A server process that left so many bytes unread gets no more messages until it reads.
_MAX_UNREAD: Final = 16_777_216


class StdioSession:
    """A session with one server process. `on_exit` is called once, if the process ends on its own."""

    def __init__(
        self, program: ServerProcess, name: str, *, on_change: Callable[[], None], on_exit: Callable[[], None]
    ) -> None:
        self._program = program
        self._name = name
        self._on_change = on_change
        self._on_exit = on_exit
        self._numbers = count(1)
        self._pending_requests: dict[int, tuple[asyncio.Future[dict[str, Any]], UpstreamRequest]] = {}
        self._modern = True
        self._server_info: ServerInfo | None = None
        self._listen_task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.is_open = True
        self._read_task = asyncio.get_running_loop().create_task(self._read_messages())

    @property
    def is_busy(self) -> bool:
        """True if a request other than a subscription is pending."""
        return any(request.method != "subscriptions/listen" for _, request in self._pending_requests.values())

    # Protocol version and server info.

    async def negotiate(self, *, probe: bool) -> ServerInfo:
        """Negotiate the protocol version at the start of the session, and return the server's info."""
        info = await self._probe_modern() if probe else None
        if info is None:
            self._modern = False
            try:
                info = parse_initialize_result(
                    await self.send_request(UpstreamRequest(method="initialize", params=build_initialize_params()))
                )
            except UpstreamRpcError as error:
                if error.code != VERSION_UNSUPPORTED:
                    raise
                # The server supports the modern version but was slow to answer the probe.
                self._modern = True
                info = parse_discover_result(await self.send_request(UpstreamRequest(method="server/discover")))
                if info is None:
                    raise
            if not info.is_modern:
                self._send_message(build_notification("notifications/initialized"))
        self._server_info = info
        return info

    async def fetch_server_info(self) -> ServerInfo:
        """Fetch the server's current info; before the modern version it cannot change while the process runs."""
        info = self._server_info
        if info is not None and info.is_modern:
            info = self._server_info = parse_discover_result(
                await self.send_request(UpstreamRequest(method="server/discover"))
            )
        if info is None:
            raise UpstreamUnavailable(
                f"the server {self._name} no longer answers server/discover as before", nothing_happened=True
            )
        return info

    async def _probe_modern(self) -> ServerInfo | None:
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                return parse_discover_result(await self.send_request(UpstreamRequest(method="server/discover")))
        except TimeoutError:
            return None
        except UpstreamRpcError as error:
            if has_no_common_version(error):
                raise
            return None

    # Outgoing messages.

    async def send_request(self, request: UpstreamRequest) -> dict[str, Any]:
        """Send a request and return its result."""
        if not self.is_open:
            raise UpstreamUnavailable(f"the process of the server {self._name} has ended", nothing_happened=True)
        if self._program.unread_bytes > _MAX_UNREAD:
            raise UpstreamUnavailable(
                f"the process of the server {self._name} does not read its input", nothing_happened=True
            )
        number = next(self._numbers)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending_requests[number] = (future, request)
        try:
            request.is_sent = True
            self._program.write(request.encode_body(number, self._modern))
            await self._program.flush_input()
            return extract_result(await future)
        except asyncio.CancelledError:
            if request.method != "initialize":
                self._send_message(build_cancel_notification(number))
            raise
        finally:
            del self._pending_requests[number]

    def _send_message(self, message: bytes) -> None:
        """Send a message that has no response, unless the process has ended or does not read its input."""
        if self.is_open and self._program.unread_bytes <= _MAX_UNREAD:
            self._program.write(message)

    def listen_for_changes(self) -> None:
        """Subscribe to list-changed notifications; before the modern version servers send them unsolicited."""
        if self._modern and (self._listen_task is None or self._listen_task.done()):
            self._listen_task = asyncio.get_running_loop().create_task(self._subscribe_to_changes())

    async def _subscribe_to_changes(self) -> None:
        try:
            await self.send_request(
                UpstreamRequest(method="subscriptions/listen", params={"notifications": LIST_CHANGED_FILTER})
            )
        except (Problem, UpstreamRpcError):
            return

    # Incoming messages.

    async def _read_messages(self) -> None:
        problem: Problem = UpstreamUnavailable(f"the process of the server {self._name} ended before it answered")
        try:
            for line_number in count(1):
                line = await self._program.read_line()
                if not line:
                    problem = await self._program.explain_end()
                    break
                if line.strip():
                    self._handle_message(await parse_message_off_loop(line))
                if line_number % _LINES_AT_ONCE == 0:
                    # Lines that are already there are read without waiting: let the event loop do other things.
                    await asyncio.sleep(0)
        except UpstreamUnavailable as error:
            # An invalid message may be half of a response, so nothing after it can be trusted.
            problem = UpstreamUnavailable(f"{error.message}: {self._name}")
        finally:
            self._close_session(problem)

    def _close_session(self, problem: Problem) -> None:
        """Close the session: fail all pending requests, and have the process stopped."""
        if not self.is_open:
            return
        self.is_open = False
        for future, _ in self._pending_requests.values():
            if not future.done():
                future.set_exception(problem.replace())
        if not self._is_stopping:
            self._on_exit()

    def _handle_message(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method is None:
            number = message.get("id")
            future, _ = self._pending_requests.get(number, (None, None)) if isinstance(number, int) else (None, None)
            if future is not None and not future.done():
                future.set_result(message)
            return
        reply = build_reply(message)
        if reply is not None:
            self._send_message(reply)
        elif method in LIST_CHANGED_METHODS:
            self._on_change()
        elif method == "notifications/progress":
            params = message.get("params")
            token = params.get(PROGRESS_TOKEN) if isinstance(params, dict) else None
            if isinstance(token, int) and token in self._pending_requests:
                self._pending_requests[token][1].handle_notification(method, params)

    async def stop(self) -> None:
        """Stop the process, and with it every pending request."""
        self._is_stopping = True
        if self._listen_task is not None:
            self._listen_task.cancel()
        await self._program.stop()
        self._read_task.cancel()
        await asyncio.gather(self._read_task, return_exceptions=True)

    def log_exit(self) -> None:
        """Log that the process ended on its own."""
        self._program.log_exit()
