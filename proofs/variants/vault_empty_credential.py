"""A gateway that, while the vault is away, lets tools go on with an empty credential."""

from dataclasses import replace

from deputize.core.contract.tools import Secret
from deputize.core.errors import VaultUnavailable
from deputize.govern.vault.port import SecretVault
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_internals import get_runtime, replace_runtime
from proofs.kit.gateway_variant import serve_variant


class EmptyCredentialVault:
    """Asks the real vault, and makes do without it."""

    def __init__(self, real: SecretVault) -> None:
        self._real = real

    async def fetch(self, tenant: str, name: str, *, seconds: float) -> Secret:
        try:
            return await self._real.fetch(tenant, name, seconds=seconds)
        except VaultUnavailable:
            return Secret("")

    def close(self) -> None:
        self._real.close()


def change(gateway: Gateway) -> Gateway:
    runtime = get_runtime(gateway)
    credentials = replace(runtime.credentials, vault=EmptyCredentialVault(runtime.credentials.vault))
    return replace_runtime(gateway, credentials=credentials)


if __name__ == "__main__":
    serve_variant(change)
