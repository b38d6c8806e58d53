"""A gateway that keeps no line to its servers: for every call it introduces itself anew."""

from typing import Any

from deputize.execute.upstreams.servers import Upstreams
from deputize.lifecycle.gateway import Gateway
from proofs.kit.variant import serve_changed


def change(gateway: Gateway) -> Gateway:
    upstreams = gateway.lifecycle.rooms.upstreams
    real = upstreams.call

    async def call(tenant: str, server: str, *positional: Any, **named: Any) -> dict[str, Any]:
        line = upstreams._lines.pop((tenant, server), None)
        if line is not None:
            await line.aclose()
        return await real(tenant, server, *positional, **named)

    setattr(upstreams, Upstreams.call.__name__, call)
    return gateway


if __name__ == "__main__":
    serve_changed(change)
