"""A server of a few lines that starts in a moment, for tests that start many: of the era with a handshake."""

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
    return called(params["name"])


def called(name: str) -> dict:  # type: ignore[type-arg]  # plain JSON
    if name == "die":
        os._exit(3)
    if name == "spawn":
        leave_something_behind()
    if name == "memory":
        bytearray(4_000_000_000)
    return {"content": [{"type": "text", "text": name}], "structuredContent": {"pid": os.getpid()}}


def leave_something_behind() -> None:
    """A process of another session, whose parent is gone."""
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
        # Written by somebody who expected the handshake and nothing else.
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
