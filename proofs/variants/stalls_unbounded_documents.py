"""A gateway that parses and checks documents of any number of values on its event loop, and lists every error."""

from unittest.mock import patch

from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant
from proofs.stalls.probed_gateway import add_probe

_NO_LIMIT = 10**12
_LIMITS = (
    "deputize.interfaces.json_body.MAX_VALUES",
    "deputize.interfaces.json_body._SMALL_BODY_BYTES",
    "deputize.interfaces.json_body._SMALL_BODY_VALUES",
    "deputize.core.json_values._SMALL_VALUES",
    "deputize.core.json_values._SMALL_BYTES",
    "deputize.catalog.schemas._MAX_LISTED_VALUES",
)


def change(gateway: Gateway) -> Gateway:
    for name in _LIMITS:
        patch(name, _NO_LIMIT).start()
    return add_probe(gateway)


if __name__ == "__main__":
    serve_variant(change)
