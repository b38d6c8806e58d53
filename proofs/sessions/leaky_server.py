"""A server of a few lines that starts in a moment and leaves something behind on purpose, for a proof that ends many.

It imports nothing of ours: anyone who starts it gives it an environment made from nothing.
"""

import json
import os
import sys

TOOL = {
    "name": "visit",
    "description": "Say which processes there are of this program.",
    "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
}


def start_orphan() -> int:
    """A process of another session, whose parent is gone; its number comes back through a pipe."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        grandchild = os.fork()
        if grandchild == 0:
            os.closerange(0, 64)
            os.execvp("sleep", ["sleep", "86400"])
        os.write(write_fd, str(grandchild).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write_fd)
    with os.fdopen(read_fd) as pipe:
        return int(pipe.read())


def main() -> None:
    orphan_pid = start_orphan()
    server_info = {"capabilities": {"tools": {}}, "serverInfo": {"name": "program", "version": "1"}}
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        method, reply = message["method"], {"error": {"code": -32601, "message": "Method not found"}}
        if method == "initialize":
            reply = {"result": {"protocolVersion": message["params"]["protocolVersion"], **server_info}}
        elif method == "tools/list":
            reply = {"result": {"tools": [TOOL]}}
        elif method == "tools/call":
            pids = {"pid": os.getpid(), "beside": orphan_pid}
            reply = {"result": {"content": [{"type": "text", "text": "here"}], "structuredContent": pids}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)


if __name__ == "__main__":
    main()
