"""The gateway of 0.1.0, in which the administrator's scope alone gives authority."""

from unittest.mock import patch

from deputize.acts import act
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


def change(gateway: Gateway) -> Gateway:
    patch.object(act, "require_operator", lambda *_, **__: None).start()
    return gateway


if __name__ == "__main__":
    serve_variant(change)
