"""A program that speaks MCP until it is called, and then does what it was started for."""

import json
import sys
import time


def say(message: str) -> None:
    sys.stdout.write(message + "\n")
    sys.stdout.flush()


def harm(how: str, number: int) -> None:
    if how == "deep-id":
        say('{"jsonrpc":"2.0","method":"ping","id":' + "[" * 600 + "]" * 600 + "}")
    elif how == "no-method":
        say('{"jsonrpc":"2.0","method":["x"],"params":{}}')
    elif how == "asks":
        for each in range(12_000):
            say(json.dumps({"jsonrpc": "2.0", "method": "ping", "id": f"{each}" + "x" * 10_000}))
    elif how == "deaf":
        time.sleep(3600)
    say(json.dumps({"jsonrpc": "2.0", "id": number, "result": {"content": []}}))


def main() -> None:
    for line in iter(sys.stdin.readline, ""):
        asked = json.loads(line)
        if asked.get("method") == "initialize":
            result = {
                "protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "hostile", "version": "1"},
            }  # fmt: skip
            say(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}))
        elif asked.get("method") == "tools/call":
            harm(sys.argv[1], asked["id"])
        elif "id" in asked:
            say(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "none"}}))


main()
