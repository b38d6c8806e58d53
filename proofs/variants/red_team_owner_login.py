"""A gateway that starts with any login of its database, the owner's included, as 0.1.0 did."""

from unittest.mock import patch

from deputize.core.settings import Settings
from deputize.interfaces.cli.local import database
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


def _accept_login(settings: Settings) -> None:
    """In place of the question what the login may do."""


def change(gateway: Gateway) -> Gateway:
    return gateway


if __name__ == "__main__":
    patch.object(database, "require_gateway_login", _accept_login).start()
    serve_variant(change)
