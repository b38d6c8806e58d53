"""Count words, as a program that speaks MCP."""

import json
import sys

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
# Two servers must not offer the same tool: one of them could stand in for the other.
TOOL = {"name": sys.argv[1], "description": "Count the words of a text.", "inputSchema": SCHEMA}


def answer(method: str, params: dict) -> dict:  # type: ignore[type-arg]  # plain JSON
    if method == "initialize":
        server = {"name": "words", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        return {"tools": [TOOL]}
    return {"content": [{"type": "text", "text": str(len(params["arguments"]["text"].split()))}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        is_known = message["method"] in ("initialize", "tools/list", "tools/call")
        error = {"error": {"code": -32601, "message": "Method not found"}}
        reply = {"result": answer(message["method"], message.get("params", {}))} if is_known else error
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)
