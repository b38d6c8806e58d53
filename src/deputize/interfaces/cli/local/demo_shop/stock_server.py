"""Serve the shop's stock over MCP, on standard input and output: a server as people find them, with one tool."""

import json
import sys
from typing import Any

STOCK = {"lamp": 12, "chair": 4, "table": 1}
COUNT = {
    "name": "count",
    "description": "Count how many of an item are in stock.",
    "inputSchema": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    "annotations": {"readOnlyHint": True},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            server = {"name": "stock", "version": "1.0.0"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
        case "ping":
            return {}
        case "tools/list":
            return {"tools": [COUNT]}
        case "tools/call":
            text = str(STOCK.get(params["arguments"]["item"], 0))
            return {"content": [{"type": "text", "text": text}]}
        case _:
            return None


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = answer(request["method"], request.get("params") or {})
        unknown = {"code": -32601, "message": f"no method {request['method']}"}
        body = {"error": unknown} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **body}), flush=True)
