"""Store secrets in the gateway's own database, sealed with the tenant's key: for gateways without a vault.

`fetch` loads and unseals one secret per attempt and caches nothing. `put_secret` and `delete_secret` run inside the
transaction of `operations/admin/commands.py`, which audits them. Only `fetch` returns a value.
"""

import asyncio
from typing import Any, Literal

import asyncpg

from deputize.core.contract.tools import Secret
from deputize.core.errors import CredentialMissing, VaultUnavailable
from deputize.govern.vault.port import make_secret
from deputize.store.keys import KeySet, TenantKeys
from deputize.store.pool import Connection, Store
from deputize.store.queries import load_statements

_SQL = load_statements("secrets")
PutResult = Literal["created", "replaced"]
_SEAL_PURPOSE = "secret"
_DATABASE_ERRORS = (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError)


class LocalVault:
    """A vault in the gateway's own database."""

    def __init__(self, store: Store, keys: TenantKeys, *, seconds: float) -> None:
        self._store = store
        self._keys = keys
        self._seconds = seconds

    async def fetch(self, tenant: str, name: str, *, seconds: float) -> Secret:
        try:
            async with asyncio.timeout(max(min(seconds, self._seconds), 0.0)):
                keys = await self._keys.get(tenant)
                async with self._store.read_transaction(tenant) as connection:
                    ciphertext = await connection.fetchval(_SQL["load_secret"], tenant, name)
        except _DATABASE_ERRORS as error:
            raise VaultUnavailable(
                "the gateway's database is not available, so the secret cannot be read", details={"secret": name}
            ) from error
        if ciphertext is None:
            raise _build_missing_error(name)
        return make_secret(keys.unseal(name, _SEAL_PURPOSE, ciphertext).decode(), name)

    def close(self) -> None:
        """Do nothing: the owner of the store closes it."""


async def put_secret(connection: Connection, keys: KeySet, name: str, value: str, *, by: str) -> PutResult:
    """Seal and store a secret inside the caller's transaction."""
    ciphertext = keys.seal(name, _SEAL_PURPOSE, make_secret(value, name).reveal().encode())
    is_new = await connection.fetchval(_SQL["upsert_secret"], keys.tenant, name, ciphertext, by)
    return "created" if is_new else "replaced"


async def delete_secret(connection: Connection, tenant: str, name: str) -> None:
    """Delete a secret inside the caller's transaction."""
    if await connection.fetchval(_SQL["delete_secret"], tenant, name) is None:
        raise CredentialMissing(
            f"there is no secret {name}",
            details={"secret": name},
            advice="Run deputize secrets list to see all secrets.",
        )


async def list_secrets(connection: Connection, tenant: str) -> list[dict[str, Any]]:
    """List the names of all secrets, with who updated each and when."""
    rows = await connection.fetch(_SQL["list_secrets"], tenant)
    return [
        {"name": row["name"], "updated_at": row["updated_at"].isoformat(), "updated_by": row["updated_by"]}
        for row in rows
    ]


def _build_missing_error(name: str) -> CredentialMissing:
    return CredentialMissing(
        f"there is no secret {name}",
        details={"secret": name},
        advice=f"Ask the gateway's operator to set it: deputize secrets set {name}",
    )
