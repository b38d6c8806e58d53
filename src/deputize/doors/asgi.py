"""The API as one ASGI application: opens the gateway, and sends each request to its door.

    POST /v1/calls    rest/hot.py
    /rpc              jsonrpc.py
    /mcp              mcp/door.py
    /console/…        console/app.py
    everything else   rest/app.py

Above: `server.py`, or any ASGI server, which then runs the lifespan. Below: the doors.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from deputize.core.errors import Malformed, Problem, Unavailable
from deputize.doors.console.app import console_app
from deputize.doors.jsonrpc import JsonRpc
from deputize.doors.mcp.door import McpDoor
from deputize.doors.rest.app import rest_app
from deputize.doors.rest.hot import post_call
from deputize.doors.wire import ASGIApp, Receive, Scope, Send, answer_problem, trace_id_of
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.wellknown import MCP_PATH

OpenGateway = Callable[[], AbstractAsyncContextManager[Gateway]]


class Api:
    """One gateway's HTTP face. Until the gateway is open, and once it closes, everything answers 503."""

    def __init__(self, open_gateway: OpenGateway) -> None:
        self._open_gateway = open_gateway
        self._gateway: Gateway | None = None
        self.closing = asyncio.Event()
        """Set when the server wants to stop: streams end, calls go on to their end."""
        self.rest = rest_app(self.gateway, self._hot, self.closing)
        self._rpc = JsonRpc(self.gateway)
        self._mcp = McpDoor(self.gateway, self.closing)
        self._console = console_app(self.gateway)

    def gateway(self) -> Gateway:
        if self._gateway is None:
            raise Unavailable("the gateway is just starting or stopping", retry_after_ms=1000)
        return self._gateway

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Gateway]:
        async with self._open_gateway() as gateway:
            self._gateway = gateway
            try:
                yield gateway
            finally:
                self._gateway = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            path, gateway = scope["path"], self._gateway
            if path == "/v1/calls" and scope["method"] == "POST" and gateway is not None:
                await post_call(gateway, scope, receive, send)
            elif path == MCP_PATH:
                await self._mcp(scope, receive, send)
            elif path == "/rpc":
                await self._rpc(scope, receive, send)
            elif path == "/console" or path.startswith("/console/"):
                await self._cool(self._console, scope, receive, send)
            else:
                await self._cool(self.rest, scope, receive, send)
        elif kind == "lifespan":
            await self._lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def _hot(self, scope: Scope, receive: Receive, send: Send) -> None:
        """For requests that come through the framework: those that find no gateway open."""
        try:
            gateway = self.gateway()
        except Problem as problem:
            await answer_problem(send, problem, trace_id_of(scope))
        else:
            await post_call(gateway, scope, receive, send)

    async def _cool(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            await answer_problem(send, Malformed("the address contains a NUL character"), trace_id_of(scope))
            return
        # The framework answers a fault as its door tells it to, and then raises it again for the server to log.
        with contextlib.suppress(Exception):
            await app(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self.opened())
            except Exception as error:  # noqa: BLE001 -- the server is told why, and prints it
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self.closing.set()
        await send({"type": "lifespan.shutdown.complete"})


def build(open_gateway: OpenGateway) -> Api:
    return Api(open_gateway)
