"""A gateway that, while the vault is away, lets tools go on with an empty credential."""

from dataclasses import replace

from deputize.core.definition import Secret
from deputize.core.errors import VaultUnavailable
from deputize.govern.vault.port import Vault
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.run import Lifecycle
from proofs.kit.variant import serve_changed


class Obliging:
    """Asks the real vault, and makes do without it."""

    def __init__(self, real: Vault) -> None:
        self._real = real

    async def fetch(self, tenant: str, name: str, *, seconds: float) -> Secret:
        try:
            return await self._real.fetch(tenant, name, seconds=seconds)
        except VaultUnavailable:
            return Secret("")

    def close(self) -> None:
        self._real.close()


def change(gateway: Gateway) -> Gateway:
    rooms = gateway.lifecycle.rooms
    credentials = replace(rooms.credentials, vault=Obliging(rooms.credentials.vault))
    return replace(gateway, lifecycle=Lifecycle(replace(rooms, credentials=credentials)))


if __name__ == "__main__":
    serve_changed(change)
