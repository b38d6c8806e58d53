"""Continue erasures that have not ended: those of processes that died, and those that wait for open calls."""

from typing import Final

import structlog

from deputize.acts.erasure import ErasureCursor, continue_open_erasures
from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import CONNECTION_ERRORS

_INTERVAL_SECONDS: Final = 30.0
# Of one erasure in a step, so that a long one does not hold up the others.
_SECONDS_EACH: Final = 5.0
log = structlog.get_logger(__name__)


class ErasureContinuation(PeriodicTask):
    """Erases what is left of people whose erasure was begun, in every gateway."""

    task_name = "erasures"
    tolerated_errors = CONNECTION_ERRORS
    runs_at_start = False

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._cursor = ErasureCursor()

    @property
    def interval_seconds(self) -> float:
        return _INTERVAL_SECONDS

    async def run_step(self) -> float:
        """Continue the next open erasures for a while."""
        await continue_open_erasures(self._runtime, seconds=_SECONDS_EACH, cursor=self._cursor)
        return self.interval_seconds

    def report_error(self, error: Exception) -> None:
        log.warning("erasures_failed", reason=repr(error))
