"""Open the gateway and dispatch each HTTP request to its interface, as one ASGI application.

    POST /v1/calls    rest/calls/post_call.py
    /rpc              jsonrpc.py
    /mcp              mcp/endpoint.py
    /, /console/…     console/app.py
    everything else   rest/app.py

`server.py` runs it; so can any ASGI server, which then runs the lifespan.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from deputize.core.errors import MalformedRequest, Problem, Unavailable
from deputize.core.settings.urls import CALLS_PATH, CONSOLE_PATH, MCP_PATH, RPC_PATH
from deputize.interfaces.asgi_http import ASGIApp, Receive, Scope, Send, read_trace_id, send_problem
from deputize.interfaces.console.app import build_console_app
from deputize.interfaces.jsonrpc import JsonRpc
from deputize.interfaces.mcp.endpoint import McpEndpoint
from deputize.interfaces.rest.app import build_rest_app
from deputize.interfaces.rest.calls.post_call import post_call
from deputize.operations.gateway import Gateway

# Without a gateway no caller authenticates, and there is nothing to count.
_NO_REQUEST = contextlib.nullcontext()
OpenGateway = Callable[[], AbstractAsyncContextManager[Gateway]]


class Api:
    """The HTTP interfaces of one gateway. Until the gateway is open, and once it closes, they answer 503."""

    def __init__(self, open_gateway: OpenGateway) -> None:
        self._open_gateway = open_gateway
        self._gateway: Gateway | None = None
        self.shutdown = asyncio.Event()
        """Set when the server stops: streams end, calls run to their end."""
        self.rest = build_rest_app(self.get_gateway, self._post_call, self.shutdown)
        self._rpc = JsonRpc(self.get_gateway)
        self._mcp = McpEndpoint(self.get_gateway, self.shutdown)
        self._console = build_console_app(self.get_gateway, self.shutdown)

    def get_gateway(self) -> Gateway:
        if self._gateway is None:
            raise Unavailable("the gateway is starting or stopping", retry_after_ms=1000)
        return self._gateway

    def count_refused_connection(self, reason: str) -> None:
        if self._gateway is not None:
            self._gateway.count_refused_connection(reason)

    @contextlib.asynccontextmanager
    async def open_gateway(self) -> AsyncIterator[Gateway]:
        async with self._open_gateway() as gateway:
            self._gateway = gateway
            try:
                yield gateway
            finally:
                self._gateway = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            gateway = self._gateway
            with _NO_REQUEST if gateway is None else gateway.open_request():
                await self._dispatch_request(gateway, scope, receive, send)
        elif kind == "lifespan":
            await self._run_lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def _dispatch_request(self, gateway: Gateway | None, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == CALLS_PATH and scope["method"] == "POST" and gateway is not None:
            await post_call(gateway, scope, receive, send)
        elif path == MCP_PATH:
            await self._mcp(scope, receive, send)
        elif path == RPC_PATH:
            await self._rpc(scope, receive, send)
        elif path in ("/", CONSOLE_PATH) or path.startswith(f"{CONSOLE_PATH}/"):
            await self._run_app(self._console, scope, receive, send)
        else:
            await self._run_app(self.rest, scope, receive, send)

    async def _post_call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request that the framework routed here because no gateway was open."""
        try:
            gateway = self.get_gateway()
        except Problem as problem:
            await send_problem(send, problem, read_trace_id(scope))
        else:
            await post_call(gateway, scope, receive, send)

    async def _run_app(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            await send_problem(send, MalformedRequest("the URL contains a NUL character"), read_trace_id(scope))
            return
        # The framework answers an unexpected error by its handler, then raises it again for the server to log.
        with contextlib.suppress(Exception):
            await app(scope, receive, send)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self.open_gateway())
            except Exception as error:  # noqa: BLE001 -- the server gets the reason and prints it
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self.shutdown.set()
        await send({"type": "lifespan.shutdown.complete"})


def build_api(open_gateway: OpenGateway) -> Api:
    """Build the application for a gateway that it opens itself."""
    return Api(open_gateway)
