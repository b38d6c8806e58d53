"""Define the vault interface that `lifecycle/credentials/broker.py` uses; `local.py` and `openbao.py` implement it.

A secret is fetched for one attempt of one call and never cached. Every failure is a problem of the E36xx branch: no
vault ever returns an empty or outdated secret, or another tenant's.
"""

from typing import Protocol

from deputize.core.contract.tools import Secret
from deputize.core.errors import CredentialMissing

# Results are searched for leaked secrets: a shorter value would match by chance.
MIN_CHARACTERS = 8
MAX_CHARACTERS = 65_536


class SecretVault(Protocol):
    """A store of secrets by tenant and name."""

    async def fetch(self, tenant: str, name: str, *, seconds: float) -> Secret:
        """Fetch a tenant's secret within so many seconds; the caller closes it.

        Raises `VaultUnavailable`, `CredentialMissing`, `CredentialExpired` or `UnsealFailed`.
        """

    def close(self) -> None:
        """Release threads and connections."""


def make_secret(value: object, name: str) -> Secret:
    """Make a secret from a vault's value, or raise `CredentialMissing` if the value cannot be one."""
    if not isinstance(value, str):
        raise CredentialMissing(f"the secret {name} is not text", details={"secret": name})
    if not MIN_CHARACTERS <= len(value) <= MAX_CHARACTERS or not _is_encodable(value):
        raise CredentialMissing(
            f"the secret {name} must be text of {MIN_CHARACTERS} to {MAX_CHARACTERS} characters",
            details={"secret": name},
        )
    return Secret(value, name=name)


def _is_encodable(value: str) -> bool:
    """Tell whether a text can be encoded: a lone surrogate cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
