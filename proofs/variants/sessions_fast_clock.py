"""A gateway whose programs need no pause between one start and the next: their clock is a thousand times as fast.

Nothing else is changed: a proof that ends a program a thousand times would wait for hours otherwise.
"""

import time

from deputize.core.clock import Clock
from deputize.core.settings import McpServerSettings
from deputize.execute.upstreams.server_pool import UpstreamPool, UpstreamTransport
from deputize.execute.upstreams.stdio_transport import StdioTransport
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_internals import get_runtime
from proofs.kit.gateway_variant import serve_variant

FAST_CLOCK = Clock(monotonic=lambda: 1000 * time.monotonic())


def speed_up(connection: UpstreamTransport) -> UpstreamTransport:
    if isinstance(connection, StdioTransport):
        connection._clock = FAST_CLOCK
    return connection


def change(gateway: Gateway) -> Gateway:
    upstreams = get_runtime(gateway).upstreams
    real = upstreams._create_transport

    def open_fast(tenant: str, settings: McpServerSettings) -> UpstreamTransport:
        return speed_up(real(tenant, settings))

    for connection in upstreams._transports.values():
        speed_up(connection)
    setattr(upstreams, UpstreamPool._create_transport.__name__, open_fast)
    return gateway


if __name__ == "__main__":
    serve_variant(change)
