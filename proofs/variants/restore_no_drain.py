"""A gateway that closes its listeners at once on SIGTERM, while load balancers still send it requests."""

from deputize.interfaces import server
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


async def close_at_once(*_: object) -> None:
    """Wait for no load balancer."""


def change(gateway: Gateway) -> Gateway:
    return gateway


if __name__ == "__main__":
    vars(server)["_drain"] = close_at_once
    serve_variant(change)
