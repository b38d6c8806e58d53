"""A gateway that keeps its circuits to itself: what another one learned about a service, it has to learn anew."""

from deputize.operations.background.circuit_sync import CircuitSync
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


def change(gateway: Gateway) -> Gateway:
    return gateway


async def _share_nothing(self: CircuitSync) -> None:
    pass


if __name__ == "__main__":
    CircuitSync.share_circuits = _share_nothing  # type: ignore[method-assign]  # the part that is left out
    serve_variant(change)
