"""Store results in chunks behind references, and load parts of them. Everything is encrypted, chunk by chunk.

A result is written in short transactions and becomes readable with the last of them. What a process that died left
behind has an expiry like everything else here, and is deleted after it. The key of a tenant is rotated without these
values, because they expire.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson

from deputize.core.caller import parse_agents
from deputize.core.clock import Clock
from deputize.core.results.document import ChunkSource, Index
from deputize.core.value_types import frozen
from deputize.store.keys import KeySet, TenantKeys
from deputize.store.pool import Store
from deputize.store.queries import load_statements

# Larger results are not stored. A batch is what the process holds in its encrypted form at a time.
MAX_BYTES: Final = 268_435_456
_BATCH_BYTES: Final = 2_097_152
_REFERENCE_BYTES: Final = 16
# Leases, sweeps and administrative acts need connections of the same pool.
_MAX_CONNECTIONS: Final = 2
_DELETED_AT_ONCE: Final = 20
_MAX_BATCHES: Final = 500
_INDEX_PURPOSE: Final = "result index"
_CHUNK_PURPOSE: Final = "result chunk"
_SQL = load_statements("results")
_HOLDS = load_statements("holds")


@frozen
class ResultOwner:
    """The call that a result belongs to, and who made it.

    `agent_key` is the chain of agents and the delegation they acted by; None if the result is older than its column.
    """

    tenant: str
    call_id: str
    tool: str
    user: str
    agent_key: str | None


@frozen
class StoredReference:
    """A reference to a stored result."""

    reference: str
    expires_at: datetime


@frozen
class StoredResult:
    """A stored result that was found: who owns it, and the indexes of its forms."""

    reference: str
    owner: ResultOwner
    bytes: int
    is_redacted: bool
    is_expired: bool
    # The form without sensitive values, and the original; the same if there are none.
    visible_index: Index
    original_index: Index
    original_start: int


class StoredResults:
    """The stored results of all tenants in the database."""

    def __init__(self, store: Store, keys: TenantKeys, clock: Clock) -> None:
        self._store, self._keys, self._clock = store, keys, clock
        self._connections = asyncio.Semaphore(_MAX_CONNECTIONS)
        # One at a time of each tenant, so that none keeps the others from the connections. Those in use alone are kept.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def store_result(
        self, owner: ResultOwner, visible: Any, original: Any, *, size: int, seconds: float
    ) -> StoredReference:
        """Store a result in the form that is read and, if that differs, the original."""
        reference = f"result_{self._clock.random_bytes(_REFERENCE_BYTES).hex()}"
        keys = await self._keys.get(owner.tenant)
        is_redacted = visible is not original
        async with self._take_turn(owner.tenant), self._connections:
            async with self._store.write_transaction() as connection:
                expires_at: datetime = await connection.fetchval(
                    _SQL["insert_result"], owner.tenant, reference, owner.call_id, owner.tool, owner.user,
                    owner.agent_key, list(parse_agents(owner.agent_key or "")), size, is_redacted, seconds,
                )  # fmt: skip
            visible_index, count = await self._write_chunks(keys, reference, visible, 0)
            indexes = {"visible": visible_index, "original": None, "original_start": count}
            if is_redacted:
                indexes["original"], _ = await self._write_chunks(keys, reference, original, count)
            ciphertext = await asyncio.to_thread(_seal_index, keys, reference, indexes)
            async with self._store.write_transaction() as connection:
                if not await connection.fetchval(_SQL["complete_result"], owner.tenant, reference, ciphertext):
                    raise TimeoutError("the reference expired before its result was stored")
        return StoredReference(reference=reference, expires_at=expires_at)

    def _take_turn(self, tenant: str) -> asyncio.Lock:
        turn = self._turns.get(tenant)
        if turn is None:
            turn = self._turns[tenant] = asyncio.Lock()
        return turn

    async def _write_chunks(self, keys: KeySet, reference: str, value: Any, first: int) -> tuple[Index, int]:
        """Write the chunks of a value from a number on; return its index, and the number after the last one."""
        source, number = ChunkSource(value), first
        while batch := await asyncio.to_thread(_seal_batch, keys, reference, source, number):
            async with self._store.write_transaction() as connection:
                await connection.execute(_SQL["insert_result_chunks"], keys.tenant, reference, number, batch)
            number += len(batch)
        return source.index, number

    async def find_result(self, tenant: str, reference: str) -> StoredResult | None:
        """Find a stored result of a tenant; None if there is none, or it is not complete."""
        async with self._store.read_transaction(tenant) as connection:
            row = await connection.fetchrow(_SQL["load_result"], tenant, reference)
        if row is None:
            return None
        keys = await self._keys.get(tenant)
        indexes = await asyncio.to_thread(_unseal_index, keys, reference, row["sealed"])
        return StoredResult(
            reference=reference,
            owner=ResultOwner(
                tenant=tenant,
                call_id=str(row["call_id"]),
                tool=row["tool"],
                user=row["caller_user"],
                agent_key=row["caller_agent"],
            ),
            bytes=row["bytes"],
            is_redacted=row["is_redacted"],
            is_expired=row["is_expired"],
            visible_index=indexes["visible"],
            original_index=indexes["original"] or indexes["visible"],
            original_start=indexes["original_start"] if row["is_redacted"] else 0,
        )

    async def load_chunk(self, tenant: str, reference: str, number: int) -> bytes:
        """Load a chunk of a result; raise `LookupError` if it was deleted meanwhile."""
        async with self._store.read_transaction(tenant) as connection:
            ciphertext = await connection.fetchval(_SQL["load_result_chunk"], tenant, reference, number)
        if ciphertext is None:
            raise LookupError("the stored result was deleted while it was read")
        keys = await self._keys.get(tenant)
        return keys.unseal(reference, f"{_CHUNK_PURPOSE} {number}", ciphertext)

    async def delete_expired(self) -> int:
        """Delete results that expired and all their bytes, batch by batch; return how many."""
        deleted_count = 0
        for _ in range(_MAX_BATCHES):
            async with self._store.write_transaction() as connection:
                await connection.execute(_HOLDS["lock_to_delete"])
                batch_count: int = await connection.fetchval(_SQL["delete_expired_results"], _DELETED_AT_ONCE)
            deleted_count += batch_count
            if batch_count < _DELETED_AT_ONCE:
                break
        return deleted_count


def _seal_batch(keys: KeySet, reference: str, source: ChunkSource, first: int) -> list[bytes]:
    return [
        keys.seal(reference, f"{_CHUNK_PURPOSE} {number}", chunk)
        for number, chunk in enumerate(source.take_batch(_BATCH_BYTES), first)
    ]


def _seal_index(keys: KeySet, reference: str, indexes: dict[str, Any]) -> bytes:
    return keys.seal(reference, _INDEX_PURPOSE, orjson.dumps(indexes))


def _unseal_index(keys: KeySet, reference: str, ciphertext: bytes) -> dict[str, Any]:
    loads: Callable[[bytes], dict[str, Any]] = orjson.loads
    return loads(keys.unseal(reference, _INDEX_PURPOSE, ciphertext))
