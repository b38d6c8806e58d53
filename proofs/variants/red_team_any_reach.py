"""A gateway whose tokens reach every call of their user, whatever tools, effects and scopes they have."""

from unittest.mock import patch

from deputize.lifecycle import call_access
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


async def cover_everything(*_: object) -> bool:
    return True


def change(gateway: Gateway) -> Gateway:
    patch.object(call_access, "is_within_token", cover_everything).start()
    return gateway


if __name__ == "__main__":
    serve_variant(change)
