"""The server that everything is measured in front of: the official SDK's, with one tool that does next to nothing.

It counts its calls, so that nobody answers in its place, and every message, so that nobody sends more than it takes.
Above: `proxy.py`. Below: the SDK, uvicorn.
"""

import argparse
import socket
from typing import Any, Final

import mcp_types as t
import uvicorn
from mcp.server.lowlevel import Server
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from proofs.kit.serving import READY

TOOL: Final = "quote"
_ITEM: Final = {"type": "object", "properties": {"sku": {"type": "string"}, "quantity": {"type": "integer"}}}
_INPUT: Final = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "maxLength": 100},
        "items": {"type": "array", "items": {**_ITEM, "required": ["sku", "quantity"], "additionalProperties": False}},
    },
    "required": ["customer", "items"],
    "additionalProperties": False,
}
_OUTPUT: Final = {
    "type": "object",
    "properties": {"cents": {"type": "integer"}, "currency": {"type": "string"}},
    "required": ["cents", "currency"],
    "additionalProperties": False,
}
_seen = {"calls": 0, "messages": 0}


async def list_tools(ctx: Any, params: t.PaginatedRequestParams | None) -> t.ListToolsResult:
    described = t.Tool(name=TOOL, description="What an order costs.", input_schema=_INPUT, output_schema=_OUTPUT)
    return t.ListToolsResult(tools=[described])


async def call_tool(ctx: Any, asked: t.CallToolRequestParams) -> t.CallToolResult:
    _seen["calls"] += 1
    cents = 999 * sum(item["quantity"] for item in (asked.arguments or {})["items"])
    structured = {"cents": cents, "currency": "EUR"}
    return t.CallToolResult(content=[t.TextContent(text=f"{cents} cents")], structured_content=structured)


async def seen(request: Request) -> JSONResponse:
    return JSONResponse(_seen)


def counting(app: ASGIApp) -> ASGIApp:
    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            _seen["messages"] += 1
        await app(scope, receive, send)

    return counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    server: Server[Any] = Server("upstream", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    app = counting(server.streamable_http_app(custom_starlette_routes=[Route("/seen", seen)]))
    listener = socket.create_server(("127.0.0.1", given.port), backlog=2048)
    config = uvicorn.Config(app, loop="uvloop", http="httptools", access_log=False, log_level="warning")
    print(f"{READY}http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
