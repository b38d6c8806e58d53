"""Look at the queues of the database every few seconds: calls that wait for a worker, entries that wait for the log."""

from typing import Any, Final

import structlog

from deputize.core.clock import parse_id_time_ms
from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.evidence.process_metrics import QueueSizes
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import CONNECTION_ERRORS
from deputize.store.queries import load_statements

_SQL = load_statements("runs")
_INTERVAL_SECONDS: Final = 10.0
# Longer queues count as this long, so that a look stays quick.
_MAX_COUNT: Final = 100_000
log = structlog.get_logger(__name__)


class QueueWatch(PeriodicTask):
    """Runs in every process, so that metrics are there as long as one of them lives."""

    task_name = "queue watch"
    tolerated_errors = CONNECTION_ERRORS
    runs_at_start = True

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    @property
    def interval_seconds(self) -> float:
        return _INTERVAL_SECONDS

    async def run_step(self) -> float:
        """Count what waits, and find the oldest."""
        async with self._runtime.store.write_transaction() as connection:
            row = await connection.fetchrow(_SQL["inspect_queues"], _MAX_COUNT)
        assert row is not None
        self._runtime.metrics.process.queue_sizes = QueueSizes(
            queued_calls=row["queued_calls"],
            queued_call_seconds=_compute_age(row["oldest_call"], row["now_ms"]),
            unlogged_entries=row["unlogged_entries"],
            sequencer_lag_seconds=_compute_age(row["oldest_entry"], row["now_ms"]),
        )
        return self.interval_seconds

    def report_error(self, error: Exception) -> None:
        # Old numbers would look like current ones.
        self._runtime.metrics.process.queue_sizes = None
        log.warning("queues_not_counted", reason=repr(error))


def _compute_age(oldest_id: Any, now_ms: int) -> float:
    """Compute the age of what has this UUIDv7, by the time in it."""
    return 0.0 if oldest_id is None else max(now_ms - parse_id_time_ms(str(oldest_id)), 0) / 1000
