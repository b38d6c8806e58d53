"""Encrypt what is kept without end with the newest version of its tenant's key: secrets, accounts, clients, keys.

Arguments and results keep the version that they were written with, because their retention deletes them. Every batch is
one short transaction and each ciphertext names its version, so that a run that was killed is continued by starting it
again; gateways keep running.
"""

from typing import Final

from deputize.store.keys import KeySet
from deputize.store.pool import Store
from deputize.store.queries import load_statements

BATCH_ROWS: Final = 100
# Each table with the purpose that its values are sealed for.
SEAL_PURPOSES: Final = {
    "secrets": "secret",
    "server_links": "server link",
    "server_clients": "server client",
    "signing_keys": "signing-key",
    "log_keys": "log-key",
}
_SQL = load_statements("resealing")


async def reseal_batch(store: Store, keys: KeySet, *, limit: int = BATCH_ROWS) -> int:
    """Encrypt a batch of a tenant's values again, in one transaction for each table; return how many there were."""
    version, reseal_count = keys.newest_version.to_bytes(4, "big"), 0
    for table, purpose in SEAL_PURPOSES.items():
        async with store.write_transaction() as connection:
            rows = await connection.fetch(_SQL[f"lock_{table}"], keys.tenant, version, limit)
            for row in rows:
                plaintext = keys.unseal(row["seal_name"], purpose, row["sealed"])
                ciphertext = keys.seal(row["seal_name"], purpose, plaintext)
                await connection.execute(_SQL[f"update_{table}"], keys.tenant, row["key"], ciphertext)
        reseal_count += len(rows)
    return reseal_count


async def count_old_values(store: Store, keys: KeySet) -> int:
    """Count the values of a tenant that an older version of its key encrypts."""
    version = keys.newest_version.to_bytes(4, "big")
    async with store.write_transaction() as connection:
        return sum(
            [int(await connection.fetchval(_SQL[f"count_{table}"], keys.tenant, version)) for table in SEAL_PURPOSES]
        )
