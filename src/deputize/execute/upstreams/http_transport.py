"""Send requests to an MCP server over HTTP, in the protocol version that it supports.

The version is negotiated once, and again if the server changes. Versions before 2026-07-28 have sessions, one per
credential; a session that the server has lost is initialized again, because the server rejects such a request before
processing it.
"""

import asyncio
import contextlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, Final
from urllib.parse import urlsplit

from deputize.core.errors import Problem, UpstreamUnavailable
from deputize.core.mcp.constants import (
    JSON_MEDIA_TYPE,
    METHOD_HEADER,
    MODERN_VERSION,
    NAME_HEADER,
    SESSION_HEADER,
    SSE_MEDIA_TYPE,
    VERSION_HEADER,
    VERSION_UNSUPPORTED,
)
from deputize.core.mcp.headers import build_credential_header, encode_header_value
from deputize.core.mcp.servers import CALL_TOOL, GET_PROMPT, READ_RESOURCE
from deputize.core.settings import McpServerSettings
from deputize.core.value_types import frozen
from deputize.execute.egress import Egress
from deputize.execute.upstreams.http_connections import HttpConnection, HttpConnectionPool
from deputize.execute.upstreams.http_response import ExchangeState, HttpStatusError, SessionLost, read_answer
from deputize.execute.upstreams.jsonrpc import (
    LIST_CHANGED_FILTER,
    LIST_CHANGED_METHODS,
    ServerInfo,
    UpstreamRequest,
    UpstreamRpcError,
    build_cancel_notification,
    build_initialize_params,
    build_notification,
    has_modern_version,
    has_no_common_version,
    parse_discover_result,
    parse_initialize_result,
)
from deputize.execute.upstreams.reply_limit import ReplyLimit

MOST_SESSIONS: Final = 1_000
# How long a message without a waiting caller may take, such as a cancellation or the end of a session.
_BACKGROUND_SECONDS: Final = 5.0
_MAX_BACKGROUND_TASKS: Final = 32
# A change stream that ends sooner failed; one that ends later may have missed changes, so the server is probed.
_USEFUL_SECONDS: Final = 5.0
_MAX_RETURNS: Final = 20
# By method, the parameter that is repeated in the `Mcp-Name` header.
_NAME_PARAMS: Final = {CALL_TOOL: "name", GET_PROMPT: "name", READ_RESOURCE: "uri"}


@frozen
class UpstreamSession:
    """The result of an initialize handshake. A server without sessions gives no id."""

    id: str | None
    server_info: ServerInfo


class HttpTransport:
    """The Streamable HTTP transport to one server."""

    def __init__(self, server: McpServerSettings, egress: Egress, *, key: bytes, on_change: Callable[[], None]) -> None:
        assert server.url is not None
        url = server.url
        self._server = server
        self._key = key
        self._on_change = on_change
        self._connections = HttpConnectionPool(lambda protocol: egress.dial(url, protocol))
        self._numbers = count(1)
        self._is_modern: bool | None = None
        self._sessions: OrderedDict[bytes, UpstreamSession] = OrderedDict()
        self._handshake_locks: dict[bytes, asyncio.Lock] = {}
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._listen_task: asyncio.Task[None] | None = None
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host = parts.netloc.rpartition("@")[2]
        self._target = f"{path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: deputize\r\naccept-encoding: identity\r\n"
        self._post = (
            f"POST {self._target}accept: {JSON_MEDIA_TYPE}, {SSE_MEDIA_TYPE}\r\ncontent-type: {JSON_MEDIA_TYPE}\r\n"
        )

    async def fetch_server_info(self, secret: str | None) -> ServerInfo:
        """Fetch the server's current info, and negotiate its protocol version."""
        if self._is_modern is not False:
            info = await self._discover_server(secret)
            if info is not None:
                self._is_modern = True
                return info
            self._is_modern = False
        session = self._sessions.get(self._hash_secret(secret))
        if session is not None and session.id is None:
            # Without a session id a replaced server would go unnoticed, so the handshake is repeated.
            self._forget_session(secret, session)
        return (await self._get_session(secret)).server_info

    async def send_request(self, request: UpstreamRequest) -> dict[str, Any]:
        """Send a request and return its result; raise `UpstreamRpcError` or the Problem it ended in."""
        for _ in range(3):
            if self._is_modern is None:
                await self.fetch_server_info(request.secret)
            session = None if self._is_modern else await self._get_session(request.secret)
            try:
                return await self._exchange_messages(request, session)
            except SessionLost:
                request.is_sent = False
                # The server may have been replaced by one with another protocol version.
                self._forget_session(request.secret, session)
                self._is_modern = None
            except UpstreamRpcError as rpc_error:
                if rpc_error.code != VERSION_UNSUPPORTED or not self._is_modern:
                    raise
                request.is_sent = False
                self._is_modern = None
            except HttpStatusError as status_error:
                raise status_error.to_problem(self._server.name) from status_error
        raise UpstreamUnavailable(f"the server {self._server.name} keeps losing its sessions", nothing_happened=True)

    async def _discover_server(self, secret: str | None) -> ServerInfo | None:
        for _ in range(2):
            try:
                return parse_discover_result(
                    await self._exchange_messages(UpstreamRequest(method="server/discover", secret=secret), None)
                )
            except UpstreamRpcError as error:
                if has_no_common_version(error):
                    raise UpstreamUnavailable(
                        f"the server {self._server.name} supports no MCP protocol version that this gateway supports",
                        nothing_happened=True,
                    ) from error
                if not has_modern_version(error):
                    break
            except (HttpStatusError, SessionLost):
                break
        return None

    # Sessions.

    async def _get_session(self, secret: str | None) -> UpstreamSession:
        key = self._hash_secret(secret)
        session = self._sessions.get(key)
        if session is not None:
            self._sessions.move_to_end(key)
            return session
        lock = self._handshake_locks.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                return self._sessions.get(key) or await self._initialize_session(key, secret)
        finally:
            if not lock.locked():
                self._handshake_locks.pop(key, None)

    async def _initialize_session(self, key: bytes, secret: str | None) -> UpstreamSession:
        state = ExchangeState()
        request = UpstreamRequest(method="initialize", params=build_initialize_params(), secret=secret)
        try:
            info = parse_initialize_result(await self._exchange_messages(request, None, is_legacy=True, state=state))
        except (UpstreamRpcError, HttpStatusError) as error:
            problem = error.to_problem(self._server.name)
            raise UpstreamUnavailable(problem.message, nothing_happened=True) from error
        except SessionLost as session_error:
            raise UpstreamUnavailable(
                f"there is no MCP server at the URL of {self._server.name}", nothing_happened=True
            ) from session_error
        session = UpstreamSession(id=state.session_id, server_info=info)
        self._sessions[key] = session
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        await self._send_notification(build_notification("notifications/initialized"), session, secret)
        return session

    def _forget_session(self, secret: str | None, session: UpstreamSession | None) -> None:
        key = self._hash_secret(secret)
        if self._sessions.get(key) is session:
            self._sessions.pop(key, None)

    def _hash_secret(self, secret: str | None) -> bytes:
        """Derive a key for a credential without storing it."""
        return b"" if secret is None else hmac.digest(self._key, secret.encode(), "sha256")

    # Requests and responses.

    async def _exchange_messages(
        self,
        request: UpstreamRequest,
        session: UpstreamSession | None,
        *,
        is_legacy: bool = False,
        state: ExchangeState | None = None,
    ) -> dict[str, Any]:
        number = next(self._numbers)
        is_modern = session is None and not is_legacy
        body = request.encode_body(number, is_modern)
        head = self._build_post_head(request, session, is_modern, len(body))
        state = state or ExchangeState()
        try:
            result = await self._send_and_read(
                await self._get_connection(), head + body, number, request, session, state
            )
            return result if result is not None else await self._resume_stream(number, request, session, state)
        except asyncio.CancelledError:
            if request.is_sent and not is_modern and request.method != "initialize":
                self._run_in_background(
                    self._send_notification(build_cancel_notification(number), session, request.secret)
                )
            raise

    async def _send_and_read(
        self,
        connection: HttpConnection,
        data: bytes,
        number: int,
        request: UpstreamRequest,
        session: UpstreamSession | None,
        state: ExchangeState,
    ) -> dict[str, Any] | None:
        """Send bytes and read the result; None if the stream ended without it. The connection is always given back."""
        try:
            request.is_sent = True
            connection.send(data)
            return await read_answer(connection, number, request, state, self._make_message_handler(request, session))
        except (UpstreamRpcError, HttpStatusError, SessionLost):
            raise
        except BaseException:
            connection.abort()
            raise
        finally:
            self._connections.give_back(connection)

    async def _get_connection(self) -> HttpConnection:
        try:
            return await self._connections.acquire()
        except Problem as problem:
            raise problem.replace(nothing_happened=True) from problem.__cause__

    async def _resume_stream(
        self, number: int, request: UpstreamRequest, session: UpstreamSession | None, state: ExchangeState
    ) -> dict[str, Any]:
        """Resume a stream that ended without its result, if the server gave an event id; else raise."""
        for _ in range(_MAX_RETURNS):
            if session is None or session.id is None or state.last_event_id is None:
                break
            await asyncio.sleep((1_000 if state.pause_ms is None else state.pause_ms) / 1000)
            connection = await self._connections.acquire()
            head = self._build_get_head(session, request.secret, state.last_event_id)
            try:
                result = await self._send_and_read(connection, head, number, request, session, state)
            except (HttpStatusError, SessionLost):
                break
            if result is not None:
                return result
        raise UpstreamUnavailable(f"the server {self._server.name} ended its response stream without a result")

    def _build_post_head(
        self, request: UpstreamRequest, session: UpstreamSession | None, is_modern: bool, size: int
    ) -> bytes:
        lines = [self._post]
        if is_modern:
            lines.append(f"{VERSION_HEADER}: {MODERN_VERSION}\r\n{METHOD_HEADER}: {request.method}\r\n")
            if request.method in _NAME_PARAMS:
                lines.append(f"{NAME_HEADER}: {encode_header_value(request.params[_NAME_PARAMS[request.method]])}\r\n")
            lines += [f"{name}: {value}\r\n" for name, value in request.headers.items()]
        lines.append(self._build_identity_headers(session, request.secret))
        lines.append(f"content-length: {size}\r\n\r\n")
        return "".join(lines).encode("latin-1")

    def _build_get_head(self, session: UpstreamSession | None, secret: str | None, last_id: str | None) -> bytes:
        last = "" if last_id is None else f"last-event-id: {encode_header_value(last_id)}\r\n"
        identity = self._build_identity_headers(session, secret)
        return f"GET {self._target}accept: {SSE_MEDIA_TYPE}\r\n{identity}{last}\r\n".encode("latin-1")

    def _build_identity_headers(self, session: UpstreamSession | None, secret: str | None) -> str:
        lines = ""
        if session is not None:
            lines = f"{VERSION_HEADER}: {session.server_info.protocol}\r\n"
            if session.id is not None:
                lines += f"{SESSION_HEADER}: {session.id}\r\n"
        if secret is not None:
            lines += "{}: {}\r\n".format(*build_credential_header(self._server.header, secret))
        return lines

    # Notifications in both directions.

    def _make_message_handler(
        self, request: UpstreamRequest, session: UpstreamSession | None
    ) -> Callable[[dict[str, Any], bytes | None], None]:
        replies = ReplyLimit(asyncio.get_running_loop().time)

        def handle_message(message: dict[str, Any], reply: bytes | None) -> None:
            if reply is not None:
                if replies.count_reply():
                    self._run_in_background(self._send_notification(reply, session, request.secret))
            elif message.get("method") in LIST_CHANGED_METHODS:
                self._on_change()
            else:
                request.handle_notification(str(message.get("method")), message.get("params"))

        return handle_message

    async def _send_notification(self, body: bytes, session: UpstreamSession | None, secret: str | None) -> None:
        """Send a message that has no response."""
        head = f"{self._post}{self._build_identity_headers(session, secret)}content-length: {len(body)}\r\n\r\n"
        connection = await self._get_connection()
        try:
            connection.send(head.encode("latin-1") + body)
            await connection.wait_for_status()
        except BaseException:
            connection.abort()
            raise
        finally:
            self._connections.give_back(connection)

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in the background for a limited time and ignore its errors; drop it if too much is running."""
        if len(self._background_tasks) >= _MAX_BACKGROUND_TASKS:
            work.close()
            return

        async def run_quietly() -> None:
            with contextlib.suppress(Problem, TimeoutError):
                async with asyncio.timeout(_BACKGROUND_SECONDS):
                    await work

        task = asyncio.get_running_loop().create_task(run_quietly())
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    def listen_for_changes(self, secret: str | None) -> None:
        """Listen for list-changed notifications, unless a task does already."""
        if self._listen_task is not None and not self._listen_task.done():
            return
        self._listen_task = asyncio.get_running_loop().create_task(self._read_changes(secret))

    async def _read_changes(self, secret: str | None) -> None:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        session = None if self._is_modern else self._sessions.get(self._hash_secret(secret))
        number = next(self._numbers)
        request = UpstreamRequest(method="subscriptions/listen", secret=secret)
        if self._is_modern:
            request.params = {"notifications": LIST_CHANGED_FILTER}
            body = request.encode_body(number, True)
            data = self._build_post_head(request, None, True, len(body)) + body
        elif session is not None and session.id is not None:
            data = self._build_get_head(session, secret, None)
        else:
            return
        del secret
        try:
            connection = await self._connections.acquire()
        except Problem:
            return
        try:
            connection.send(data)
            await read_answer(
                connection, number, request, ExchangeState(), self._make_message_handler(request, session)
            )
        except (Problem, UpstreamRpcError, HttpStatusError, SessionLost):
            pass
        finally:
            connection.abort()
            self._connections.give_back(connection)
        if loop.time() - started_at >= _USEFUL_SECONDS:
            self._on_change()

    async def aclose(self) -> None:
        """Stop background tasks, end the session and close all connections."""
        anonymous_session = self._sessions.pop(b"", None)
        tasks = [*self._background_tasks, *([self._listen_task] if self._listen_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if anonymous_session is not None and anonymous_session.id is not None:
            with contextlib.suppress(Problem, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._delete_session(anonymous_session)
        await self._connections.aclose()

    async def _delete_session(self, session: UpstreamSession) -> None:
        """Tell the server that its session has ended, which is optional."""
        connection = await self._connections.acquire()
        try:
            connection.send(
                f"DELETE {self._target}{self._build_identity_headers(session, None)}content-length: 0\r\n\r\n".encode()
            )
            await connection.wait_for_status()
        finally:
            connection.abort()
            self._connections.give_back(connection)
