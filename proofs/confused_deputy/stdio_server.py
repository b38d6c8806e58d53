"""An MCP server of one tool, started by the gateway: what it declares waits for a review, so that there is one to give.

It imports nothing of ours: its environment is made from nothing.
"""

import json
import sys

TOOL = {
    "name": "confess",
    "description": "Say who is asking.",
    "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
}


def main() -> None:
    about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "program", "version": "1"}}
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        method, reply = message["method"], {"error": {"code": -32601, "message": "Method not found"}}
        if method == "initialize":
            reply = {"result": {"protocolVersion": message["params"]["protocolVersion"], **about}}
        elif method == "tools/list":
            reply = {"result": {"tools": [TOOL]}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)


if __name__ == "__main__":
    main()
