"""A gateway that asks the vault on its own loop, where everybody waits until it has answered."""

from dataclasses import replace

from deputize.core.definition import Secret
from deputize.govern.vault.openbao import OpenBao
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.run import Lifecycle
from proofs.kit.variant import serve_changed


class Blocking:
    """The real vault's own steps, without its threads."""

    def __init__(self, real: OpenBao) -> None:
        self._real = real

    async def fetch(self, tenant: str, name: str, *, seconds: float) -> Secret:
        return self._real._secret(self._real._read(tenant, name), name)

    def close(self) -> None:
        self._real.close()


def change(gateway: Gateway) -> Gateway:
    rooms = gateway.lifecycle.rooms
    real = rooms.credentials.vault
    assert isinstance(real, OpenBao)
    credentials = replace(rooms.credentials, vault=Blocking(real))
    return replace(gateway, lifecycle=Lifecycle(replace(rooms, credentials=credentials)))


if __name__ == "__main__":
    serve_changed(change)
