"""Store what was measured of calls every few seconds, and delete what no report can show any more."""

import contextlib
from datetime import timedelta
from typing import Final

import structlog

from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.evidence.call_costs import KEPT_COST_DAYS, delete_old_costs
from deputize.evidence.call_measurements import KEPT_DAYS, delete_old_measurements
from deputize.evidence.health_score import delete_old_minutes
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import CONNECTION_ERRORS
from deputize.store.queries import load_statements

_RUNS = load_statements("runs")
_INTERVAL_SECONDS: Final = 10.0
_CLEANUP_SECONDS: Final = 3600.0
log = structlog.get_logger(__name__)


class MeasurementStorage(PeriodicTask):
    """Stores measurements every few seconds; of all processes, one deletes old ones every hour."""

    task_name = "measurement storage"
    tolerated_errors = CONNECTION_ERRORS
    runs_at_start = False

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._cleanup_due = 0.0

    @property
    def interval_seconds(self) -> float:
        return _INTERVAL_SECONDS

    async def run_step(self) -> float:
        """Store what was measured, and delete what is old."""
        await self._store()
        if self._runtime.clock.monotonic() >= self._cleanup_due:
            self._cleanup_due = self._runtime.clock.monotonic() + _CLEANUP_SECONDS
            await self._take_turn()
        return self.interval_seconds

    async def stop(self) -> None:
        """Stop, and store what is left."""
        await super().stop()
        with contextlib.suppress(*CONNECTION_ERRORS):
            await self._store()

    def report_error(self, error: Exception) -> None:
        log.warning("measurements_not_stored", reason=repr(error))

    async def _store(self) -> None:
        await self._runtime.call_measurements.store_measurements(self._runtime.store)
        await self._runtime.call_costs.store_costs(self._runtime.store)

    async def _take_turn(self) -> None:
        async with self._runtime.store.write_transaction() as connection:
            if await connection.fetchval(_RUNS["claim_periodic_task"], self.task_name, 50):
                now = self._runtime.clock.now()
                await delete_old_measurements(connection, now.date() - timedelta(days=KEPT_DAYS))
                await delete_old_minutes(connection, now)
                await delete_old_costs(connection, now.date() - timedelta(days=KEPT_COST_DAYS))
