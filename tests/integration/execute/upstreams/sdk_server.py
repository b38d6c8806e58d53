"""Run an MCP server of the official SDK as a process, over HTTP or stdio.

It supports both protocol eras or, with `--legacy`, only versions before 2026-07-28.
"""

import argparse
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import mcp_types as t
import uvicorn
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

Tool = Callable[[Any, dict[str, Any]], Awaitable[t.CallToolResult]]
PAGE = 4
TOOLS: dict[str, Tool] = {}
SCHEMAS: dict[str, dict[str, Any]] = {}
state: dict[str, Any] = {
    "effects": 0,
    "canceled": [],
    "hanging": anyio.Event(),
    "stopped": anyio.Event(),
    "description": "Says what it was told, and how it was asked.",
}
bus = InMemorySubscriptionBus()


def tool(**properties: Any) -> Callable[[Tool], Tool]:
    def register(function: Tool) -> Tool:
        TOOLS[function.__name__] = function
        SCHEMAS[function.__name__] = {"type": "object", "properties": properties}
        return function

    return register


def text_result(text: str, **structured_content: Any) -> t.CallToolResult:
    return t.CallToolResult(content=[t.TextContent(text=text)], structured_content=structured_content or None)


@tool(text={"type": "string"})
async def echo(ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
    return text_result(
        arguments.get("text", ""), meta=dict(ctx.meta or {}), protocol=ctx.protocol_version, pid=os.getpid()
    )


@tool()
async def effect(ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
    state["effects"] += 1
    return text_result(str(state["effects"]), effects=state["effects"])


@tool()
async def fail(ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
    return t.CallToolResult(content=[t.TextContent(text="the shop is closed")], is_error=True)


@tool()
async def who(ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
    headers = {} if ctx.request is None else dict(ctx.request.headers)
    return text_result("who", headers=headers, environment=dict(os.environ), cwd=os.getcwd(), pid=os.getpid())


@tool(steps={"type": "integer"})
async def steps(ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
    for number in range(arguments["steps"]):
        await ctx.session.report_progress(number + 1, arguments["steps"], f"step {number + 1}")
    return text_result("done")


@tool()
async def die(ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
    os._exit(3)


@tool()
async def hang(ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
    state["hanging"].set()
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        state["canceled"].append("hang")
        state["stopped"].set()
        raise
    raise AssertionError


@tool()
async def wait_for_hang(ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
    """Answer once a call hangs."""
    await state["hanging"].wait()
    return text_result("hangs")


@tool()
async def list_canceled(ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
    """Answer once a call was canceled."""
    await state["stopped"].wait()
    return text_result("canceled", canceled=state["canceled"])


@tool()
async def asks_back(ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
    try:
        await ctx.session.elicit_form("Really?", {"type": "object", "properties": {}}, ctx.request_id)
    except MCPError as error:
        return text_result(f"{error.error.code} {error.error.message}")
    return text_result("answered")


@tool(size={"type": "integer"})
async def large(ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
    return text_result("x" * arguments["size"])


@tool(region={"type": "string", "x-mcp-header": "Region"})
async def echo_region(ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
    return text_result(arguments["region"])


@tool(description={"type": "string"})
async def change(ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
    state["description"] = arguments["description"]
    await bus.publish(ToolsListChanged())
    await ctx.session.send_tool_list_changed()
    return text_result("changed")


@tool()
async def spawn(ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
    """Leave a detached process behind."""
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.closerange(0, 64)
        os.execvp("sleep", ["sleep", "86400"])
    os.waitpid(child, 0)
    return text_result("spawned")


async def list_tools(ctx: Any, params: t.PaginatedRequestParams | None) -> t.ListToolsResult:
    start = int(params.cursor) if params is not None and params.cursor else 0
    names = list(TOOLS)
    described = [
        t.Tool(
            name=name,
            description=state["description"] if name == "echo" else f"The tool {name} of the tests.",
            input_schema=SCHEMAS[name],
        )
        for name in names[start : start + PAGE]
    ]
    following = str(start + PAGE) if start + PAGE < len(names) else None
    return t.ListToolsResult(tools=described, next_cursor=following)


async def call_tool(ctx: Any, params: t.CallToolRequestParams) -> t.CallToolResult:
    return await TOOLS[params.name](ctx, params.arguments or {})


def legacy_only(app: ASGIApp) -> ASGIApp:
    """Reject the modern protocol version, as older servers do."""

    async def reject_modern(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and Request(scope).headers.get("mcp-protocol-version") == "2026-07-28":
            error = {"code": -32600, "message": "Bad Request: Unsupported protocol version: 2026-07-28"}
            body = {"jsonrpc": "2.0", "id": "server-error", "error": error}
            await JSONResponse(body, status_code=400)(scope, receive, send)
            return
        await app(scope, receive, send)

    return reject_modern


async def run_stdio(server: Server[Any], legacy: bool) -> None:
    async with stdio_server() as (read, write):
        if legacy:
            await serve_loop(server, read, write, lifespan_state={})
        else:
            await server.run(read, write, server.create_initialization_options())


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--http", action="store_true")
    options.add_argument("--legacy", action="store_true")
    options.add_argument("--stateless", action="store_true")
    options.add_argument("--json", action="store_true")
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--instructions", default="Be kind to the shop.")
    chosen = options.parse_args()
    server: Server[Any] = Server(
        "fixture",
        version="7",
        instructions=chosen.instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_subscriptions_listen=ListenHandler(bus),
    )
    # Sessions get change notifications too, but the SDK announces them only if this option is set.
    promised = server.create_initialization_options(NotificationOptions(tools_changed=True))
    server.create_initialization_options = lambda *_: promised  # type: ignore[method-assign]  # the SDK has no setting
    if not chosen.http:
        anyio.run(run_stdio, server, chosen.legacy)
        return
    app: ASGIApp = server.streamable_http_app(stateless_http=chosen.stateless, json_response=chosen.json)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", chosen.port))
    listener.listen(128)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(legacy_only(app) if chosen.legacy else app, log_level="error", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
