"""A gateway that keeps no line to its servers: for every call it introduces itself anew."""

from typing import Any

from deputize.execute.upstreams.server_pool import UpstreamPool
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_internals import get_runtime
from proofs.kit.gateway_variant import serve_variant


def change(gateway: Gateway) -> Gateway:
    upstreams = get_runtime(gateway).upstreams
    real = upstreams.call_tool

    async def call_afresh(tenant: str, server: str, *positional: Any, **keywords: Any) -> dict[str, Any]:
        connection = upstreams._transports.pop((tenant, server), None)
        if connection is not None:
            await connection.aclose()
        return await real(tenant, server, *positional, **keywords)

    setattr(upstreams, UpstreamPool.call_tool.__name__, call_afresh)
    return gateway


if __name__ == "__main__":
    serve_variant(change)
