"""A gateway that runs a function under any contract, whatever the function declares."""

from unittest.mock import patch

from deputize.execute.drivers.python import PythonDriver
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


def change(gateway: Gateway) -> Gateway:
    patch.object(PythonDriver, "list_weakenings", lambda *_: []).start()
    return gateway


if __name__ == "__main__":
    serve_variant(change)
