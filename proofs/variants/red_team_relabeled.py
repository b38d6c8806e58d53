"""A gateway that runs a function under any contract, whatever the function declares."""

from unittest.mock import patch

from deputize.execute.drivers import python
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


def change(gateway: Gateway) -> Gateway:
    # Both ask it: the loaded tools before a call, and the driver when a contract is registered.
    patch.object(python, "list_weakenings", lambda *_: []).start()
    return gateway


if __name__ == "__main__":
    serve_variant(change)
