"""An MCP server in a process of its own, under many names, that sends byte for byte what a proof tells it to.

POST /NAME           MCP; unavailable until tools are declared under this name
PUT  /NAME/tools     the list of tools, as it is sent
PUT  /NAME/result    the result of every call; with ?stream=1, the whole event stream around it
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import orjson

from deputize.core.mcp.constants import HANDSHAKE_VERSIONS, METHOD_NOT_FOUND, MODERN_VERSION, SERVER_INFO
from proofs.kit.asgi_server import Receive, Scope, Send, read_body, send_json, serve_app

_PLAIN_RESULT = b'{"resultType":"complete","content":[]}'


@dataclass(slots=True)
class HostileDeclarations:
    tools: bytes = b""
    result: bytes = _PLAIN_RESULT
    stream_start: bytes | None = None


class HostileServer:
    def __init__(self) -> None:
        self._servers: defaultdict[str, HostileDeclarations] = defaultdict(HostileDeclarations)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        _, name, *rest = scope["path"].split("/")
        server = self._servers[name]
        match scope["method"], rest:
            case "PUT", ["tools"]:
                server.tools = body
                await send_json(send, 200, b"{}")
            case "PUT", ["result"]:
                server.result, server.stream_start = body, None
                await send_json(send, 200, b"{}")
            case "PUT", ["stream"]:
                server.result, server.stream_start = _PLAIN_RESULT, body
                await send_json(send, 200, b"{}")
            case "POST", [] if server.tools:
                await _handle_mcp(server, orjson.loads(body), send)
            case _:
                await send_json(send, 503, b"")


async def _handle_mcp(server: HostileDeclarations, request: dict[str, Any], send: Send) -> None:
    if "id" not in request:
        await send_json(send, 202, b"")
        return
    message = b'{"jsonrpc":"2.0","id":' + orjson.dumps(request["id"]) + b"," + answer_request(server, request) + b"}"
    if server.stream_start is None or request["method"] != "tools/call":
        await send_json(send, 200, message)
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": server.stream_start + b"data: " + message + b"\n\n"})


def answer_request(server: HostileDeclarations, request: dict[str, Any]) -> bytes:
    """Build the member of a JSON-RPC message that answers a request."""
    match request["method"]:
        case "server/discover":
            discovery = {
                "resultType": "complete",
                "supportedVersions": [MODERN_VERSION],
                "capabilities": {"tools": {}},
                "_meta": {SERVER_INFO: {"name": "hostile", "version": "1"}},
            }
            return b'"result":' + orjson.dumps(discovery)
        case "initialize":
            # A gateway that met this name before anything was declared takes the server for an older one.
            greeting = {
                "protocolVersion": HANDSHAKE_VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "hostile", "version": "1"},
            }
            return b'"result":' + orjson.dumps(greeting)
        case "tools/list":
            return b'"result":{"resultType":"complete","tools":' + server.tools + b"}"
        case "tools/call":
            return b'"result":' + server.result
        case _:
            return b'"error":' + orjson.dumps({"code": METHOD_NOT_FOUND, "message": "no"})


if __name__ == "__main__":
    serve_app(HostileServer())
