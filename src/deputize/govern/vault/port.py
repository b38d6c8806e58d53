"""What the lifecycle asks a vault for, and what every vault holds to.

A secret is fetched for one attempt of one call and never kept. Whatever goes wrong is a problem of the E36xx branch:
no vault answers with an empty secret, an old one, or another tenant's. Above: `lifecycle/credentials.py`. Two stand
behind it: `local.py`, sealed in our own database, and `openbao.py`, OpenBao or Vault.
"""

from typing import Protocol

from deputize.core.definition import Secret
from deputize.core.errors import CredentialMissing

# A shorter value would be found by chance in answers that do not quote it, and is no secret anyway.
LEAST_CHARACTERS = 8
MOST_CHARACTERS = 65_536


class Vault(Protocol):
    async def fetch(self, tenant: str, name: str, *, seconds: float) -> Secret:
        """The tenant's secret of this name, within so many seconds; the caller closes it.

        Raises `VaultUnavailable`, `CredentialMissing`, `CredentialExpired` or `SealBroken`.
        """

    def close(self) -> None: ...


def secret_of(value: object, name: str) -> Secret:
    """What a vault holds under a name, if it can be a secret."""
    if not isinstance(value, str):
        raise CredentialMissing(f"the secret {name} holds no text", details={"secret": name})
    if not LEAST_CHARACTERS <= len(value) <= MOST_CHARACTERS or not _is_text(value):
        raise CredentialMissing(
            f"what lies under {name} cannot be a secret: it must be text of {LEAST_CHARACTERS} characters or more",
            details={"secret": name},
        )
    return Secret(value, name=name)


def _is_text(value: str) -> bool:
    """Half a character (a lone surrogate) cannot be sent anywhere."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
