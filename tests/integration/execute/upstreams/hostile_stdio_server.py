"""Serve MCP over stdio until a tool is called, then misbehave as the command line says."""

import json
import sys
import time


def write_line(message: str) -> None:
    sys.stdout.write(message + "\n")
    sys.stdout.flush()


def misbehave(how: str, number: int) -> None:
    if how == "deep-id":
        write_line('{"jsonrpc":"2.0","method":"ping","id":' + "[" * 600 + "]" * 600 + "}")
    elif how == "no-method":
        write_line('{"jsonrpc":"2.0","method":["x"],"params":{}}')
    elif how == "asks":
        for each in range(12_000):
            write_line(json.dumps({"jsonrpc": "2.0", "method": "ping", "id": f"{each}" + "x" * 10_000}))
    elif how == "deaf":
        time.sleep(3600)
    write_line(json.dumps({"jsonrpc": "2.0", "id": number, "result": {"content": []}}))


def main() -> None:
    for line in iter(sys.stdin.readline, ""):
        asked = json.loads(line)
        if asked.get("method") == "initialize":
            result = {
                "protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "hostile", "version": "1"},
            }  # fmt: skip
            write_line(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}))
        elif asked.get("method") == "tools/call":
            misbehave(sys.argv[1], asked["id"])
        elif "id" in asked:
            write_line(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "none"}}))


main()
