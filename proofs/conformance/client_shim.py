"""What the suite starts for each client scenario: tells `client.py` which server to try, and waits until it has.

It imports as little as it can, for it is started dozens of times.
"""

import json
import os
import socket
import sys


def main() -> int:
    path, url = sys.argv[1:3]
    context = os.environ.get("MCP_CONFORMANCE_CONTEXT")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(
            json.dumps({"url": url, "context": json.loads(context) if context else None}).encode() + b"\n"
        )
        with connection.makefile() as answer:
            faults = json.loads(answer.readline())
    print("\n".join(faults))
    # Whether the scenario was passed is for its own checks to say.
    return 0


if __name__ == "__main__":
    sys.exit(main())
