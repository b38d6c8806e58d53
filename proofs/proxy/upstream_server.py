"""The server that everything is measured in front of: the official SDK's, with one tool that does next to nothing.

It counts its calls, so that no one answers in its place, and every message, so that no one sends more than it takes.
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

from proofs.kit.asgi_server import READY

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
_counts = {"calls": 0, "messages": 0}


async def list_tools(ctx: Any, params: t.PaginatedRequestParams | None) -> t.ListToolsResult:
    tool = t.Tool(name=TOOL, description="What an order costs.", input_schema=_INPUT, output_schema=_OUTPUT)
    return t.ListToolsResult(tools=[tool])


async def call_tool(ctx: Any, params: t.CallToolRequestParams) -> t.CallToolResult:
    _counts["calls"] += 1
    cents = 999 * sum(item["quantity"] for item in (params.arguments or {})["items"])
    structured_content = {"cents": cents, "currency": "EUR"}
    return t.CallToolResult(content=[t.TextContent(text=f"{cents} cents")], structured_content=structured_content)


async def get_counts(request: Request) -> JSONResponse:
    return JSONResponse(_counts)


def add_counting(app: ASGIApp) -> ASGIApp:
    async def counting_app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            _counts["messages"] += 1
        await app(scope, receive, send)

    return counting_app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    server: Server[Any] = Server("upstream", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    app = add_counting(server.streamable_http_app(custom_starlette_routes=[Route("/seen", get_counts)]))
    listener = socket.create_server(("127.0.0.1", options.port), backlog=2048)
    config = uvicorn.Config(app, loop="uvloop", http="httptools", access_log=False, log_level="warning")
    print(f"{READY}http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
