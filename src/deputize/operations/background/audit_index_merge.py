"""Merge the terms of new audit entries into their index every few seconds, so that no commit has to do it."""

from typing import Final

import structlog

from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import CONNECTION_ERRORS
from deputize.store.queries import load_statements

_SQL = load_statements("audit_search")
_INTERVAL_SECONDS: Final = 10.0
log = structlog.get_logger(__name__)


class AuditIndexMerge(PeriodicTask):
    """Merges what was written since the last time. Several processes may do so at once."""

    task_name = "audit index merge"
    tolerated_errors = CONNECTION_ERRORS
    runs_at_start = False

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    @property
    def interval_seconds(self) -> float:
        return _INTERVAL_SECONDS

    async def run_step(self) -> float:
        """Merge the terms of the last seconds."""
        async with self._runtime.store.write_transaction() as connection:
            await connection.execute(_SQL["merge_terms"])
        return self.interval_seconds

    def report_error(self, error: Exception) -> None:
        log.warning("audit_index_not_merged", reason=repr(error))
