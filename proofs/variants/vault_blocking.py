"""A gateway that asks the vault on its own loop, where everybody waits until it has answered."""

from dataclasses import replace

from deputize.core.contract.tools import Secret
from deputize.govern.vault.openbao import OpenBaoVault
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_internals import get_runtime, replace_runtime
from proofs.kit.gateway_variant import serve_variant


class BlockingVault:
    """The real vault's own steps, without its threads."""

    def __init__(self, real: OpenBaoVault) -> None:
        self._real = real

    async def fetch(self, tenant: str, name: str, *, seconds: float) -> Secret:
        return self._real._parse_secret(self._real._read_secret(tenant, name), name)

    def close(self) -> None:
        self._real.close()


def change(gateway: Gateway) -> Gateway:
    runtime = get_runtime(gateway)
    real = runtime.credentials.vault
    assert isinstance(real, OpenBaoVault)
    credentials = replace(runtime.credentials, vault=BlockingVault(real))
    return replace_runtime(gateway, credentials=credentials)


if __name__ == "__main__":
    serve_variant(change)
