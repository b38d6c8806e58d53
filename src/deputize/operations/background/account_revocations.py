"""Attempt the revocations of tokens of unlinked and relinked accounts that are due, in every gateway."""

from typing import Final

import structlog

from deputize.acts.account_revocations import revoke_due_tokens
from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import CONNECTION_ERRORS

_INTERVAL_SECONDS: Final = 30.0
log = structlog.get_logger(__name__)


class AccountRevocations(PeriodicTask):
    """Revokes tokens that a new link replaced, and those of unlinked accounts where the first attempt failed."""

    task_name = "account revocations"
    tolerated_errors = CONNECTION_ERRORS
    runs_at_start = False

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    @property
    def interval_seconds(self) -> float:
        return _INTERVAL_SECONDS

    async def run_step(self) -> float:
        """Attempt one batch; the next one follows at once while there are any."""
        return 0.0 if await revoke_due_tokens(self._runtime) else self.interval_seconds

    def report_error(self, error: Exception) -> None:
        log.warning("account_revocations_failed", reason=repr(error))
