"""A gateway whose HTTP client reads whatever has arrived at once, and counts nothing but content."""

import httpcore2

from deputize.execute.network_stream import MeteredStream
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant
from proofs.stalls.probed_gateway import add_probe


async def open_raw(address: str, port: int, timeout: float | None) -> httpcore2.AsyncNetworkStream:
    return await httpcore2.AnyIOBackend().connect_tcp(address, port, timeout)


def change(gateway: Gateway) -> Gateway:
    MeteredStream.open = staticmethod(open_raw)  # type: ignore[assignment, method-assign] # the point of this variant
    return add_probe(gateway)


if __name__ == "__main__":
    serve_variant(change)
