"""Places that check the address of a name, and then resolve the name again to connect."""

from collections.abc import Sequence
from unittest.mock import patch

from deputize.execute import egress
from deputize.execute.egress import HostResolver
from proofs.ssrf import arena

_resolve_checked = egress.resolve_allowed_addresses


async def check_and_resolve_again(
    host: str, port: int, allow_hosts: frozenset[str], resolver: HostResolver
) -> Sequence[str]:
    """Check the first answer and return the second."""
    await _resolve_checked(host, port, allow_hosts, resolver)
    return await resolver(host, port)


if __name__ == "__main__":
    patch.object(egress, "resolve_allowed_addresses", check_and_resolve_again).start()
    arena.main()
