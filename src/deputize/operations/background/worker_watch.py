"""Count the workers of this cell, so that readiness can say when none executes queued calls."""

import structlog

from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import CONNECTION_ERRORS
from deputize.store.queries import load_statements

_SQL = load_statements("runs")
_MAX_PAUSE = 2.5
log = structlog.get_logger(__name__)


class WorkerWatch(PeriodicTask):
    """Reads how many workers on this database hold a valid lease, whichever process they run in."""

    task_name = "worker watch"
    tolerated_errors = CONNECTION_ERRORS
    runs_at_start = False

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self.worker_count = 0
        """How many workers were alive at the last look."""
        self._has_warned = False

    @property
    def interval_seconds(self) -> float:
        return min(self._runtime.settings.timing.lease_seconds / 4, _MAX_PAUSE)

    async def start(self) -> None:
        """Look once, so that the first answer is true, then again and again."""
        await self.refresh()
        await super().start()

    async def run_step(self) -> float:
        before = self.worker_count
        await self.refresh()
        if before and not self.worker_count:
            log.warning("no_worker_runs", advice="queued and approved calls wait: start deputize work")
            self._has_warned = True
        elif self.worker_count and self._has_warned:
            log.info("worker_runs", workers=self.worker_count)
            self._has_warned = False
        return self.interval_seconds

    async def refresh(self) -> None:
        """Count the workers now."""
        async with self._runtime.store.write_transaction() as connection:
            self.worker_count = await connection.fetchval(_SQL["count_live_workers"])

    def report_error(self, error: Exception) -> None:
        log.warning("workers_not_counted", reason=repr(error))
