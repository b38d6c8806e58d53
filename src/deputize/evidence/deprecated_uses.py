"""Count who calls deprecated versions, in memory, and store the counts every few seconds.

A call of any other version costs nothing here. A process that is killed loses the counts of its last seconds.
"""

import asyncio
from datetime import UTC, datetime
from typing import Final

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract
from deputize.store.pool import Store
from deputize.store.queries import load_statements

_SQL = load_statements("deprecations")
# Of more callers between two writes, only the version is counted.
_MAX_KEYS: Final = 50_000
_NO_CALLER: Final = ("", "")

# Tenant, tool, version, user and chain of agents.
_Key = tuple[str, str, str, str, str]


class DeprecatedUses:
    """The uses of deprecated versions that are not stored yet."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[_Key, tuple[int, int]] = {}
        self._store_lock = asyncio.Lock()

    def record_use(self, caller: Caller, contract: Contract) -> None:
        """Count a call that was executed."""
        version = (caller.tenant, contract.full_name, contract.version)
        key = (*version, caller.user, caller.agent_chain)
        if len(self._counts) >= _MAX_KEYS and key not in self._counts:
            key = (*version, *_NO_CALLER)
        self._add(key, 1, self._clock.epoch_ms())

    async def store_uses(self, store: Store) -> None:
        """Store what was counted since the last time; keep it if that fails.

        Once this returns, everything that was counted before is stored, also what another task was storing.
        """
        async with self._store_lock:
            await self._store_counts(store)

    async def _store_counts(self, store: Store) -> None:
        counts, self._counts = self._counts, {}
        if not counts:
            return
        # In one order, so that two processes cannot wait for each other.
        items = sorted(counts.items())
        times = [datetime.fromtimestamp(last_ms / 1000, UTC) for _, (_, last_ms) in items]
        columns = [list(column) for column in zip(*(key for key, _ in items), strict=True)]
        try:
            async with store.write_transaction() as connection:
                await connection.execute(
                    _SQL["add_uses"], *columns, [each.date() for each in times], [each[0] for _, each in items], times
                )
        except BaseException:
            for key, (count, last_ms) in counts.items():
                self._add(key, count, last_ms)
            raise

    def _add(self, key: _Key, count: int, last_ms: int) -> None:
        before, last_before = self._counts.get(key, (0, 0))
        self._counts[key] = (before + count, max(last_ms, last_before))
