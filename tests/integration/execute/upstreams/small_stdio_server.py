"""Serve MCP with a handshake in a few lines that start fast, for tests that start many processes."""

import json
import os
import sys

TOOLS = ("echo", "die", "spawn", "memory")


def answer(method: str, params: dict) -> dict:  # type: ignore[type-arg]  # plain JSON
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "small", "version": "1"},
        }
    if method == "tools/list":
        schema = {"type": "object"}
        return {"tools": [{"name": name, "description": f"Does {name}.", "inputSchema": schema} for name in TOOLS]}
    return call_tool(params["name"])


def call_tool(name: str) -> dict:  # type: ignore[type-arg]  # plain JSON
    if name == "die":
        os._exit(3)
    if name == "spawn":
        leave_orphan_process()
    if name == "memory":
        bytearray(4_000_000_000)
    return {"content": [{"type": "text", "text": name}], "structuredContent": {"pid": os.getpid()}}


def leave_orphan_process() -> None:
    """Start an orphaned process in another session."""
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 64)
            os.execvp("sleep", ["sleep", "86400"])
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    if "--ends-when-probed" in sys.argv:
        # A server that expects only the handshake.
        first = json.loads(sys.stdin.readline())
        assert first["method"] == "initialize"
        print(json.dumps({"jsonrpc": "2.0", "id": first["id"], "result": answer("initialize", first["params"])}))
    sys.stdout.flush()
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        if message["method"] == "server/discover":
            reply = {"error": {"code": -32601, "message": "Method not found"}}
        else:
            try:
                reply = {"result": answer(message["method"], message.get("params", {}))}
            except MemoryError:
                reply = {"error": {"code": -32603, "message": "out of memory"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)


if __name__ == "__main__":
    main()
