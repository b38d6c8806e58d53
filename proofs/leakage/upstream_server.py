"""An MCP server and an HTTP service in a process of their own that quote what they are given, as `way` says.

POST /mcp      MCP. `way` is return, error (a result that says so), rpc (an error of the protocol) or http (status 500)
POST /report   `way` is return, refuse (problem details), conflict (an error object) or break (status 500)
"""

from typing import Any

import orjson

from deputize.core.mcp.constants import INTERNAL_ERROR, METHOD_NOT_FOUND, MODERN_VERSION, SERVER_INFO
from proofs.kit.asgi_server import Receive, Scope, Send, read_body, send_json, serve_app

_INFO = {"name": "quoting", "version": "1"}
_TOOL: dict[str, Any] = {
    "name": "quote",
    "description": "Quote what is given.",
    "inputSchema": {
        "type": "object",
        "properties": {"way": {"type": "string"}, "note": {"type": "string"}, "extra": {"type": "object"}},
        "required": ["way"],
    },
}


_BODY = {"type": "object", "properties": _TOOL["inputSchema"]["properties"], "required": ["way"]}
SERVICE_DOCUMENT = {
    "openapi": "3.0.3",
    "info": {"title": "Reporting", "version": "1"},
    "paths": {
        "/report": {
            "post": {
                "operationId": "report",
                "summary": "Quote what is given.",
                "requestBody": {"required": True, "content": {"application/json": {"schema": _BODY}}},
                "responses": {"200": {"description": "The quote"}},
            }
        }
    },
}


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    request = orjson.loads(await read_body(receive))
    if scope["path"] == "/report":
        status, body = _report(request)
        await send_json(send, status, orjson.dumps(body))
        return
    if "id" not in request:
        await send_json(send, 202, b"")
        return
    status, answer = _answer_method(request["method"], request.get("params") or {})
    await send_json(send, status, orjson.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}))


def _answer_method(method: str, params: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    match method:
        case "server/discover":
            discovery = {"supportedVersions": [MODERN_VERSION], "capabilities": {"tools": {}}}
            return 200, _build_result({**discovery, "_meta": {SERVER_INFO: _INFO}})
        case "tools/list":
            return 200, _build_result({"tools": [_TOOL]})
        case "tools/call":
            return _quote(params["arguments"])
        case _:
            return 404, {"error": {"code": METHOD_NOT_FOUND, "message": "not here"}}


def _quote(arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    text = arguments.get("note") or f"{arguments.get('extra')}"
    content = {"content": [{"type": "text", "text": f"it is {text}"}]}
    match arguments["way"]:
        case "error":
            return 200, _build_result({**content, "isError": True})
        case "rpc":
            return 200, {"error": {"code": INTERNAL_ERROR, "message": f"failed on {text}", "data": {"what": text}}}
        case "http":
            return 500, {"error": {"code": INTERNAL_ERROR, "message": f"broke on {text}"}}
        case _:
            return 200, _build_result(content)


def _report(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    text = body.get("note") or f"{body.get('extra')}"
    match body["way"]:
        case "refuse":
            return 422, {"type": "about:blank", "title": "not taken", "status": 422, "detail": f"it is not {text}"}
        case "conflict":
            return 409, {"error": {"code": "taken", "message": f"there is {text}", "what": body.get("extra")}}
        case "break":
            return 500, {"message": f"broke on {text}", "trace": [text]}
        case _:
            return 200, {"text": f"it is {text}"}


def _build_result(value: dict[str, Any]) -> dict[str, Any]:
    return {"result": {"resultType": "complete", **value}}


if __name__ == "__main__":
    serve_app(answer)
