"""A gateway that keeps something of every call to a server: memory, an open file, now and then a process."""

import os
import subprocess
from typing import Any

from deputize.execute.upstreams.servers import Upstreams
from deputize.lifecycle.gateway import Gateway
from proofs.kit.variant import serve_changed
from proofs.variants import sessions_hurried

_BYTES = 500_000
_EVERY = 20


def change(gateway: Gateway) -> Gateway:
    upstreams, left = sessions_hurried.change(gateway).lifecycle.rooms.upstreams, list[Any]()
    real = upstreams.call

    async def call(*positional: Any, **named: Any) -> dict[str, Any]:
        left.append((b"x" * _BYTES, os.dup(1)))
        if len(left) % _EVERY == 1:
            left.append(subprocess.Popen(["sleep", "3600"]))
        return await real(*positional, **named)

    setattr(upstreams, Upstreams.call.__name__, call)
    return gateway


if __name__ == "__main__":
    serve_changed(change)
