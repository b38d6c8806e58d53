"""An MCP server in a process of its own that declares, byte for byte, what a proof tells it to, and notes what it did.

POST /mcp       MCP, in the era it was started for
PUT  /tools     the text of the list of tools from now on, as it is sent
PUT  /instructions
GET  /done      how often each tool was called since the last time this was asked
"""

import argparse
from collections import Counter
from typing import Any

import orjson

from deputize.core.mcp.constants import (
    HANDSHAKE_VERSIONS,
    METHOD_NOT_FOUND,
    MODERN_VERSION,
    SERVER_INFO,
    VERSION_UNSUPPORTED,
)
from proofs.kit.asgi_server import Receive, Scope, Send, read_body, send_json, serve_app

_INFO = {"name": "drifting", "version": "1"}


class DeclaringServer:
    def __init__(self, *, modern: bool) -> None:
        self._modern = modern
        self._tools = b"[]"
        self._instructions = ""
        self._call_counts: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        match scope["method"], scope["path"]:
            case "PUT", "/tools":
                self._tools = body
                await send_json(send, 200, b"{}")
            case "PUT", "/instructions":
                self._instructions = body.decode()
                await send_json(send, 200, b"{}")
            case "GET", "/done":
                call_counts, self._call_counts = self._call_counts, Counter()
                await send_json(send, 200, orjson.dumps(call_counts))
            case "POST", "/mcp":
                await self._handle_mcp(orjson.loads(body), send)
            case _:
                await send_json(send, 405, b"")

    async def _handle_mcp(self, request: dict[str, Any], send: Send) -> None:
        if "id" not in request:
            await send_json(send, 202, b"")
            return
        status, answer_bytes = self._answer_method(request["method"], request.get("params") or {})
        number = orjson.dumps(request["id"])
        await send_json(send, status, b'{"jsonrpc": "2.0", "id": ' + number + b", " + answer_bytes + b"}")

    def _answer_method(self, method: str, params: dict[str, Any]) -> tuple[int, bytes]:
        match method:
            case "server/discover" if self._modern:
                discovery = {"supportedVersions": [MODERN_VERSION], "_meta": {SERVER_INFO: _INFO}}
                return 200, self._encode_result({**discovery, **self._describe_server()})
            case "initialize" if not self._modern:
                return 200, self._encode_result(
                    {"protocolVersion": HANDSHAKE_VERSIONS[0], "serverInfo": _INFO, **self._describe_server()}
                )
            case "tools/list":
                kind = b'"resultType": "complete", ' if self._modern else b""
                return 200, b'"result": {' + kind + b'"tools": ' + self._tools + b"}"
            case "tools/call":
                self._call_counts[params["name"]] += 1
                return 200, self._encode_result(
                    {"content": [{"type": "text", "text": "done"}], "structuredContent": {}}
                )
            case "server/discover":
                return 400, self._encode_error(
                    VERSION_UNSUPPORTED, {"supported": list(HANDSHAKE_VERSIONS), "requested": MODERN_VERSION}
                )
            case _:
                return 404 if self._modern else 200, self._encode_error(METHOD_NOT_FOUND, None)

    def _describe_server(self) -> dict[str, Any]:
        return {"capabilities": {"tools": {}}, "instructions": self._instructions}

    def _encode_result(self, value: dict[str, Any]) -> bytes:
        kind = {"resultType": "complete"} if self._modern else {}
        return b'"result": ' + orjson.dumps({**kind, **value})

    def _encode_error(self, code: int, data: Any) -> bytes:
        return b'"error": ' + orjson.dumps({"code": code, "message": "not here", "data": data})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", choices=("modern", "legacy"), required=True)
    serve_app(DeclaringServer(modern=parser.parse_args().era == "modern"))
