"""A gateway whose programs need no pause between one start and the next: their clock is a thousand times as fast.

Nothing else is changed: a proof that ends a program a thousand times would wait for hours otherwise.
"""

import time

from deputize.core.clock import Clock
from deputize.core.settings import McpServer
from deputize.execute.upstreams.servers import Line, Upstreams
from deputize.execute.upstreams.stdio import Programs
from deputize.lifecycle.gateway import Gateway
from proofs.kit.variant import serve_changed

HURRIED = Clock(monotonic=lambda: 1000 * time.monotonic())


def hurry(line: Line) -> Line:
    if isinstance(line, Programs):
        line._clock = HURRIED
    return line


def change(gateway: Gateway) -> Gateway:
    upstreams = gateway.lifecycle.rooms.upstreams
    real = upstreams._opened

    def opened(tenant: str, settings: McpServer) -> Line:
        return hurry(real(tenant, settings))

    for line in upstreams._lines.values():
        hurry(line)
    setattr(upstreams, Upstreams._opened.__name__, opened)
    return gateway


if __name__ == "__main__":
    serve_changed(change)
