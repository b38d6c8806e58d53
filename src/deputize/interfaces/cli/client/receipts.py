"""Get receipts from the gateway, and wait for the checkpoint that covers an entry of the last second."""

import time
from typing import TYPE_CHECKING, Any

from deputize.interfaces.cli.client.refusal import GatewayRefusal

if TYPE_CHECKING:
    from deputize.interfaces.cli.client.rest_client import GatewayClient

_PENDING = "receipt-pending"
_ATTEMPTS = 20


def load_receipt(gateway: "GatewayClient", path: str) -> dict[str, Any]:
    """Get a receipt, and ask again for ten seconds while it is pending."""
    for _ in range(_ATTEMPTS):
        try:
            answer: dict[str, Any] = gateway.get(path)
        except GatewayRefusal as refusal:
            if refusal.slug != _PENDING:
                raise
            time.sleep(0.5)
        else:
            return answer
    last_answer: dict[str, Any] = gateway.get(path)
    return last_answer
