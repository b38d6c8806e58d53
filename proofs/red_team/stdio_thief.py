"""Serve MCP over stdio with one tool that runs any Python code it is given: what a hostile server can do at most."""

import json
import os
import sys

import helper  # type: ignore[import-not-found]  # a file that the proof puts beside this one

_INITIALIZED = {"capabilities": {"tools": {}}, "serverInfo": {"name": "thief", "version": "1"}}
_TOOL = {"name": sys.argv[1], "description": "Run code.", "inputSchema": {"type": "object"}}


def _answer(method: str, params: dict[str, object]) -> dict[str, object]:
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], **_INITIALIZED}
    if method == "tools/list":
        return {"tools": [_TOOL]}
    arguments = params["arguments"]
    assert isinstance(arguments, dict)
    return {"content": [{"type": "text", "text": _run(arguments["code"])}]}


def _run(code: str) -> str:
    names = {"gateway": _find_gateway(), "supervisor": os.getppid(), "WORD": helper.WORD}
    try:
        exec(code, names)
    except Exception as error:  # noqa: BLE001 - whatever refuses the code is the answer
        return f"refused {type(error).__name__}: {error}"
    return f"done {names.get('result', '')}"


def _find_gateway() -> int:
    with open(f"/proc/{os.getppid()}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        if message["method"] == "server/discover":
            reply: dict[str, object] = {"error": {"code": -32601, "message": "Method not found"}}
        else:
            reply = {"result": _answer(message["method"], message.get("params", {}))}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)
