"""Store who uses deprecated versions, and report once a week whether their callers have moved on."""

import contextlib
from datetime import timedelta
from typing import Final

import structlog

from deputize.core.contract.deprecation import REPORT_TIME, format_time
from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import CONNECTION_ERRORS
from deputize.store.queries import load_statements

_SQL = load_statements("deprecations")
_RUNS = load_statements("runs")
_INTERVAL_SECONDS: Final = 10.0
_CHECK_SECONDS: Final = 3600.0
_MAX_REPORTS: Final = 500
log = structlog.get_logger(__name__)


class DeprecationReports(PeriodicTask):
    """Stores uses every few seconds; of all processes, one looks every hour which reports are due."""

    task_name = "deprecation reports"
    tolerated_errors = CONNECTION_ERRORS
    runs_at_start = False

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._check_due = 0.0

    @property
    def interval_seconds(self) -> float:
        return _INTERVAL_SECONDS

    async def run_step(self) -> float:
        """Store what was counted, and report what is due."""
        await self._runtime.deprecated_uses.store_uses(self._runtime.store)
        if self._runtime.clock.monotonic() >= self._check_due:
            self._check_due = self._runtime.clock.monotonic() + _CHECK_SECONDS
            await self._take_turn()
        return self.interval_seconds

    async def stop(self) -> None:
        """Stop, and store what is left."""
        await super().stop()
        with contextlib.suppress(*CONNECTION_ERRORS):
            await self._runtime.deprecated_uses.store_uses(self._runtime.store)

    def report_error(self, error: Exception) -> None:
        log.warning("deprecation_reports_failed", reason=repr(error))

    async def _take_turn(self) -> None:
        async with self._runtime.store.write_transaction() as connection:
            if not await connection.fetchval(_RUNS["claim_periodic_task"], "deprecation reports", 50):
                return
        await self.report_due_versions()

    async def report_due_versions(self) -> int:
        """Log the usage of each deprecated version whose weekly report is due; return how many there were."""
        now = self._runtime.clock.now()
        async with self._runtime.store.write_transaction() as connection:
            days = self._runtime.settings.database.retention_days
            kept_days = timedelta(days=max(days, 2 * REPORT_TIME.days))
            await connection.execute(_SQL["delete_old_uses"], (now - kept_days).date())
            due_versions = await connection.fetch(_SQL["take_due_reports"], now, now - REPORT_TIME, _MAX_REPORTS)
            for row in due_versions:
                version = (row["tenant"], row["name"], row["version"])
                usage = await connection.fetchrow(_SQL["count_uses"], *version, now - REPORT_TIME)
                assert usage is not None
                log.info(
                    "deprecation_migration_progress" if usage["calls"] else "deprecation_migration_complete",
                    tenant=row["tenant"],
                    tool=row["name"],
                    version=row["version"],
                    removal_date=format_time(row["removal_at"]),
                    callers=usage["callers"],
                    calls=usage["calls"],
                )
        return len(due_versions)
