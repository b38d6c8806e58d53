"""Serve MCP over stdio with one tool that runs any Python code it is given: what a hostile server can do at most."""

import json
import os
import sys


def run(code: str) -> str:
    names: dict[str, object] = {"result": ""}
    try:
        exec(code, names)
    except Exception as error:  # noqa: BLE001 - whatever refuses the code is the answer
        return f"refused {type(error).__name__}: {error}"
    return str(names["result"])


def answer(method: str, params: dict) -> dict:  # type: ignore[type-arg]  # plain JSON
    if method == "initialize":
        server = {"name": "exec", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        return {"tools": [{"name": "run", "description": "Run code.", "inputSchema": {"type": "object"}}]}
    return {"content": [{"type": "text", "text": run(params["arguments"]["code"])}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        if message["method"] == "server/discover":
            reply: dict[str, object] = {"error": {"code": -32601, "message": "Method not found"}}
        else:
            reply = {"result": answer(message["method"], message.get("params", {}))}
        os.write(1, json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}).encode() + b"\n")
