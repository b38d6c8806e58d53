"""Rotate the keys of the database: a new data key for a tenant, and all data keys wrapped by a new master key.

Every step is one short transaction, and the rows say what is done, so that a rotation that was killed is continued by
starting it again. `deputize keys` calls this; gateways keep running.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from deputize.core.clock import Clock
from deputize.core.errors import Unavailable
from deputize.store.keys import KEY_BYTES, KEY_OVERLAP_SECONDS, MasterKey, TenantKeys
from deputize.store.pool import Connection, Store
from deputize.store.queries import load_statements

BATCH_KEYS = 100
# Record that a tenant's data key of some version is wrapped anew.
RecordRewrap = Callable[[Connection, str, int], Awaitable[None]]
_SQL = load_statements("keys")


async def rotate_tenant_key(connection: Connection, tenant: str, master: MasterKey, clock: Clock) -> int:
    """Add a data key to a tenant and return its version. It encrypts once every gateway knows it."""
    await connection.execute(_SQL["lock_key_rotation"], tenant)
    newest = await connection.fetchrow(_SQL["load_newest_version"], tenant)
    if newest is None:
        raise Unavailable(f"the tenant {tenant} has no key yet: a gateway creates it with the first call")
    if not newest["is_active"]:
        # An interrupted command is started again: the key that it added is the new one.
        return int(newest["version"])
    version: int = newest["version"] + 1
    wrapped_key = master.wrap(tenant, version, clock.random_bytes(KEY_BYTES), clock)
    await connection.execute(
        _SQL["insert_tenant_key"], tenant, version, wrapped_key, master.id, float(KEY_OVERLAP_SECONDS)
    )
    return version


async def rewrap_batch(
    store: Store,
    keys: TenantKeys,
    master: MasterKey,
    clock: Clock,
    *,
    limit: int = BATCH_KEYS,
    record: RecordRewrap | None = None,
) -> int:
    """Wrap a batch of data keys with the current master key; return how many there were.

    `record` is called for each in the transaction that wraps it.
    """
    async with store.write_transaction() as connection:
        rows = await connection.fetch(_SQL["lock_keys_of_other_masters"], master.id, limit)
        for row in rows:
            tenant, version = row["tenant"], row["version"]
            wrapped_key = master.wrap(tenant, version, keys.unwrap(tenant, version, row["wrapped"]), clock)
            # Read back before it replaces the old one: a key that cannot be unwrapped would lose everything.
            keys.unwrap(tenant, version, wrapped_key)
            await connection.execute(_SQL["rewrap_tenant_key"], tenant, version, wrapped_key, master.id)
            if record is not None:
                await record(connection, tenant, version)
    return len(rows)


async def count_keys_by_master(connection: Connection) -> dict[str | None, int]:
    """Count the data keys that each master key wrapped; None for those of a release that did not record it."""
    return {row["master_id"]: row["keys"] for row in await connection.fetch(_SQL["count_keys_by_master"])}


async def list_tenant_keys(connection: Connection) -> list[dict[str, Any]]:
    """List the newest data key of each tenant."""
    return [
        {
            "tenant": row["tenant"],
            "version": row["version"],
            "state": "active" if row["is_active"] else "pending",
            "active_from": row["active_from"].isoformat(timespec="seconds"),
        }
        for row in await connection.fetch(_SQL["list_newest_versions"])
    ]


async def list_tenants(connection: Connection) -> list[str]:
    return [row["tenant"] for row in await connection.fetch(_SQL["list_tenants"])]
