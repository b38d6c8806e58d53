"""Secrets in our own database, each sealed with its tenant's key under its name: for gateways without a vault.

`fetch` reads and opens one box per attempt and keeps nothing. `put` and `delete` run inside the transaction of
`lifecycle/command.py`, which records them; a value leaves only through `fetch`.
"""

import asyncio
from typing import Any, Literal

import asyncpg

from deputize.core.definition import Secret
from deputize.core.errors import CredentialMissing, VaultUnavailable
from deputize.govern.vault.port import secret_of
from deputize.store.keys import KeySet, TenantKeys
from deputize.store.pool import Connection, Store
from deputize.store.queries import load

_SQL = load("secrets")
Put = Literal["created", "replaced"]
_KIND = "secret"
_AWAY = (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError)


class LocalVault:
    def __init__(self, store: Store, keys: TenantKeys, *, seconds: float) -> None:
        self._store = store
        self._keys = keys
        self._seconds = seconds

    async def fetch(self, tenant: str, name: str, *, seconds: float) -> Secret:
        try:
            async with asyncio.timeout(max(min(seconds, self._seconds), 0.0)):
                keys = self._keys.ready(tenant) or await self._keys.load(self._store, tenant)
                async with self._store.reading(tenant) as connection:
                    sealed = await connection.fetchval(_SQL["secret"], tenant, name)
        except _AWAY as error:
            raise VaultUnavailable("this gateway's secrets cannot be read now", details={"secret": name}) from error
        if sealed is None:
            raise _missing(name)
        return secret_of(keys.open(name, _KIND, sealed).decode(), name)

    def close(self) -> None:
        """The store is closed by whoever opened it."""


async def put(connection: Connection, keys: KeySet, name: str, value: str, *, by: str) -> Put:
    sealed = keys.seal(name, _KIND, secret_of(value, name).reveal().encode())
    created = await connection.fetchval(_SQL["put_secret"], keys.tenant, name, sealed, by)
    return "created" if created else "replaced"


async def delete(connection: Connection, tenant: str, name: str) -> None:
    if await connection.fetchval(_SQL["delete_secret"], tenant, name) is None:
        raise CredentialMissing(
            f"there is no secret {name}",
            details={"secret": name},
            advice="deputize secrets list shows those there are.",
        )


async def listed(connection: Connection, tenant: str) -> list[dict[str, Any]]:
    """Names, and who put each there when."""
    rows = await connection.fetch(_SQL["secrets"], tenant)
    return [
        {"name": row["name"], "updated_at": row["updated_at"].isoformat(), "updated_by": row["updated_by"]}
        for row in rows
    ]


def _missing(name: str) -> CredentialMissing:
    return CredentialMissing(
        f"there is no secret {name}",
        details={"secret": name},
        advice=f"Whoever runs this gateway can put it there: deputize secrets set {name}",
    )
