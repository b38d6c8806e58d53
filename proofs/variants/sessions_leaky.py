"""A gateway that keeps something of every call to a server: memory, an open file, now and then a process."""

import os
import subprocess
from typing import Any

from deputize.execute.upstreams.server_pool import UpstreamPool
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_internals import get_runtime
from proofs.kit.gateway_variant import serve_variant
from proofs.variants import sessions_fast_clock

_BYTES = 500_000
_EVERY = 20


def change(gateway: Gateway) -> Gateway:
    upstreams, leaks = get_runtime(sessions_fast_clock.change(gateway)).upstreams, list[Any]()
    real = upstreams.call_tool

    async def call_and_leak(*positional: Any, **keywords: Any) -> dict[str, Any]:
        leaks.append((b"x" * _BYTES, os.dup(1)))
        if len(leaks) % _EVERY == 1:
            leaks.append(subprocess.Popen(["sleep", "3600"]))
        return await real(*positional, **keywords)

    setattr(upstreams, UpstreamPool.call_tool.__name__, call_and_leak)
    return gateway


if __name__ == "__main__":
    serve_variant(change)
