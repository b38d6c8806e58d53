"""Delete what is past its retention, beside the sweeper: however much it is, abandoned calls are still found.

The first time is a minute after the start, so that a backlog delays no start.
"""

from typing import Final

import structlog

from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.lifecycle.runtime import Runtime
from deputize.operations.background.entry_retention import expire_entries
from deputize.store.pool import CONNECTION_ERRORS
from deputize.store.queries import load_statements

_SQL = load_statements("runs")
_CHECKPOINTS = load_statements("checkpoints")
_JOURNAL = load_statements("journal")
_HOLDS = load_statements("holds")
_WEBHOOKS = load_statements("webhooks")
_INTERVAL_SECONDS: Final = 3600.0
_FIRST_SECONDS: Final = 60.0
# Each batch is a transaction of its own; the rest waits for the next hour.
_BATCH_ROWS: Final = 1000
_MAX_BATCHES: Final = 100
log = structlog.get_logger(__name__)


class Retention(PeriodicTask):
    """Deletes what is past its retention, every hour."""

    task_name = "retention"
    tolerated_errors = CONNECTION_ERRORS
    runs_at_start = False

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    @property
    def interval_seconds(self) -> float:
        """The pause before the first time, and after an error."""
        return _FIRST_SECONDS

    async def run_step(self) -> float:
        """Delete what is past its retention."""
        await self.delete_old_data()
        return _INTERVAL_SECONDS

    def report_error(self, error: Exception) -> None:
        log.warning("retention_failed", reason=repr(error))

    async def delete_old_data(self) -> None:
        """Delete data past its retention; of all processes one does it, and some of it only once a day."""
        days = self._runtime.settings.database.retention_days
        async with self._runtime.store.write_transaction() as connection:
            if await connection.fetchval(_SQL["claim_periodic_task"], "forget", 50):
                await connection.execute(_HOLDS["lock_to_delete"])
                await connection.execute(_CHECKPOINTS["delete_checkpoints_of_ended_calls"], days)
                await connection.execute(_SQL["delete_old_progress"], days)
                await connection.execute(_WEBHOOKS["delete_old_deliveries"], days)
                await connection.execute(_WEBHOOKS["delete_old_callbacks"], days)
                await connection.execute(_SQL["delete_old_turns"])
        async with self._runtime.store.write_transaction() as connection:
            if await connection.fetchval(_SQL["claim_periodic_task"], "forget originals", 23 * 60):
                await connection.execute(_SQL["delete_old_payloads"], days)
                await connection.execute(_JOURNAL["delete_old_journal"], self._runtime.settings.database.journal_days)
        await self._runtime.consistency_values.delete_expired()
        await self._runtime.stored_results.delete_expired()
        await self.delete_old_authority()
        async with self._runtime.store.write_transaction() as connection:
            is_due = await connection.fetchval(_SQL["claim_periodic_task"], "expire audit entries", 50)
        if is_due:
            await expire_entries(self._runtime)

    async def delete_old_authority(self) -> int:
        """Delete delegations that ended and decision records past their retention, batch by batch; return how many."""
        async with self._runtime.store.write_transaction() as connection:
            if not await connection.fetchval(_SQL["claim_periodic_task"], "delete old authority", 50):
                return 0
        database, deleted_count = self._runtime.settings.database, 0
        tasks = (("delete_ended_grants", database.retention_days), ("delete_old_decisions", database.decision_days))
        for statement, days in tasks:
            for _ in range(_MAX_BATCHES):
                async with self._runtime.store.write_transaction() as connection:
                    batch_count: int = await connection.fetchval(_SQL[statement], days, _BATCH_ROWS)
                deleted_count += batch_count
                if not batch_count:
                    break
        return deleted_count
