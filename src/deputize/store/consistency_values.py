"""Store what tools said about the same thing, and return what other tools said to the same user.

All gateways share the values, and a restart keeps them. They are encrypted, of a thing only a keyed digest is stored,
and they live for at most a day: the key of a tenant is rotated without them.
"""

import asyncio
from collections.abc import Sequence
from typing import Final
from weakref import WeakValueDictionary

import asyncpg

from deputize.core.clock import Clock
from deputize.core.value_types import frozen
from deputize.store.pool import Store
from deputize.store.queries import load_statements

# Of one user and rule; the oldest make room.
MAX_VALUES: Final = 5_000
# Of one tenant and rule in a window: owners are told of the first ones.
MAX_DISAGREEMENTS: Final = 20
# Leases, sweeps and administrative acts need connections of the same pool.
_MAX_CONNECTIONS: Final = 2
_BATCH_ROWS: Final = 1_000
_MAX_BATCHES: Final = 100
_SQL = load_statements("consistency")


@frozen
class ValueKey:
    """What a value is about: the pseudonym of the user who saw it, the rule, and the digest of the thing."""

    tenant: str
    subject: str
    rule: str
    entity: bytes


class ConsistencyValues:
    """The values and disagreements in the database."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._connections = asyncio.Semaphore(_MAX_CONNECTIONS)
        # One at a time of each tenant, so that none keeps the others from the connections.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def observe_value(
        self, key: ValueKey, *, tool: str, authority_rank: int, call_id: str, sealed_value: bytes, within_seconds: float
    ) -> list[asyncpg.Record]:
        """Store a value, and return it with those of the other tools in the window, in one statement."""
        async with self._take_turn(key.tenant), self._connections, self._store.write_transaction() as connection:
            return await connection.fetch(
                _SQL["observe_value"], key.tenant, key.subject, key.rule, key.entity, tool, authority_rank, call_id,
                sealed_value, within_seconds, MAX_VALUES,
            )  # fmt: skip

    async def record_disagreement(
        self, key: ValueKey, *, tools: Sequence[str], call_ids: Sequence[str], within_seconds: float
    ) -> None:
        """Record a disagreement that owners are told of, unless they were told of the same thing in this window."""
        async with self._take_turn(key.tenant), self._connections, self._store.write_transaction() as connection:
            await connection.execute(
                _SQL["insert_disagreement"], key.tenant, key.rule, key.entity, self._clock.new_id(), list(tools),
                list(call_ids), within_seconds, MAX_DISAGREEMENTS,
            )  # fmt: skip

    def _take_turn(self, tenant: str) -> asyncio.Lock:
        turn = self._turns.get(tenant)
        if turn is None:
            turn = self._turns[tenant] = asyncio.Lock()
        return turn

    async def delete_expired(self) -> int:
        """Delete values and disagreements whose window is over, batch by batch; return how many."""
        deleted_count = 0
        for statement in ("delete_expired_values", "delete_old_disagreements"):
            for _ in range(_MAX_BATCHES):
                async with self._store.write_transaction() as connection:
                    batch_count: int = await connection.fetchval(_SQL[statement], _BATCH_ROWS)
                deleted_count += batch_count
                if batch_count < _BATCH_ROWS:
                    break
        return deleted_count
