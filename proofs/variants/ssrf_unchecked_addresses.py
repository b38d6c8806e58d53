"""Places that connect wherever a name leads: no address is checked."""

from unittest.mock import patch

from deputize.execute import address_guard, egress
from proofs.ssrf import arena


def connect_anywhere() -> None:
    """Take every address for a public one from now on."""
    patch.object(egress, "is_forbidden_address", lambda _: False).start()
    patch.object(egress, "is_public_address", lambda _: True).start()
    patch.object(address_guard, "is_forbidden_address", lambda _: False).start()


if __name__ == "__main__":
    connect_anywhere()
    arena.main()
