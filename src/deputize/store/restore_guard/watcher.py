"""Check again and again that the database still has what was committed to it, and write the records to the disk."""

import asyncio

import structlog

from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.store.pool import CONNECTION_ERRORS, Store
from deputize.store.restore_guard.lineage import Lineage, WentBackError

log = structlog.get_logger(__name__)


class LineageWatcher(PeriodicTask):
    """Notices what other gateways found, and a database that a connection pooler exchanged."""

    task_name = "lineage"
    tolerated_errors = CONNECTION_ERRORS
    runs_at_start = False

    def __init__(self, lineage: Lineage, store: Store, seconds: float) -> None:
        super().__init__()
        self._lineage = lineage
        self._store = store
        self._seconds = seconds

    @property
    def interval_seconds(self) -> float:
        return self._seconds

    async def run_step(self) -> float:
        await asyncio.to_thread(self._lineage.flush)
        try:
            async with asyncio.timeout(10), self._store.writers.acquire() as connection:
                await self._lineage.verify(connection)
        except WentBackError:
            # Connections that were open before would still be used for administrative acts.
            await self._store.reconnect()
            raise
        return self._seconds

    def report_error(self, error: Exception) -> None:
        if not isinstance(error, WentBackError):
            log.warning("lineage_not_checked", reason=repr(error))
