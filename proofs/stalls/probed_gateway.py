"""Serve the gateway as it is, with a probe in its event loop."""

from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant
from proofs.stalls.loop_probe import start_probe


def add_probe(gateway: Gateway) -> Gateway:
    start_probe()
    return gateway


if __name__ == "__main__":
    serve_variant(add_probe)
