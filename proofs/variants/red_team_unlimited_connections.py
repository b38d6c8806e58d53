"""A gateway that limits neither the heads of requests nor the time they take, as 0.1.0 did not."""

from unittest.mock import patch

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deputize.interfaces import server
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


def change(gateway: Gateway) -> Gateway:
    return gateway


if __name__ == "__main__":
    patch.object(server, "make_connection_class", lambda limiter: HttpToolsProtocol).start()
    serve_variant(change)
