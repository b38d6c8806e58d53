"""An MCP server of the scripted week, started by the gateway with the name of its part. It imports nothing of ours.

A call that asks for fifty customers gets a large answer, and one about `customer-x` fails.
"""

import json
import sys
from typing import Any

TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
TEXTS = {"type": "array", "items": TEXT}
TOOLS: dict[str, dict[str, dict[str, Any]]] = {
    "crm": {"get_customer": {"customer": TEXT}, "list_customers": {"limit": NUMBER},
            "update_customer": {"customer": TEXT, "tier": TEXT}},
    "mail": {"send_mail": {"to": TEXT, "subject": TEXT}, "search_mail": {"query": TEXT},
             "send_group": {"to": TEXTS, "subject": TEXT}},
    "files": {"read_file": {"path": TEXT}, "write_file": {"path": TEXT, "overwrite": FLAG, "mode": TEXT}},
    "billing": {"get_invoice": {"invoice": NUMBER}, "refund_invoice": {"invoice": NUMBER, "amount": NUMBER}},
    "web": {"fetch_page": {"url": TEXT}},
    "git": {"list_commits": {"branch": TEXT, "limit": NUMBER}, "delete_branch": {"branch": TEXT}},
}  # fmt: skip


def main() -> None:
    part = sys.argv[1]
    about = {"capabilities": {"tools": {}}, "serverInfo": {"name": part, "version": "1"}}
    tools = [
        {"name": name, "description": f"{name} of {part}.", "inputSchema": {"type": "object", "properties": properties}}
        for name, properties in TOOLS[part].items()
    ]
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        method, reply = message["method"], {"error": {"code": -32601, "message": "Method not found"}}
        if method == "initialize":
            reply = {"result": {"protocolVersion": message["params"]["protocolVersion"], **about}}
        elif method == "tools/list":
            reply = {"result": {"tools": tools}}
        elif method == "tools/call":
            arguments = message["params"].get("arguments", {})
            size = 200_000 if arguments.get("limit") == 50 else 200
            content = [{"type": "text", "text": "x" * size}]
            reply = {"result": {"content": content, "isError": arguments.get("customer") == "customer-x"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)


if __name__ == "__main__":
    main()
