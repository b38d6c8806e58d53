"""Share the circuits of this process with all gateways: apply what happened here, and take over what others did.

A failure is shared within half a second, and what others did is read as often, so that every gateway knows of an open
circuit within two seconds. While the database does not answer, this process goes on with what it knows.
"""

from typing import Final

import structlog

from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.core.event_loop.timed_wait import wait_for_event
from deputize.execute.circuits.circuit import MAX_WINDOW_SECONDS
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import CONNECTION_ERRORS
from deputize.store.queries import load_statements

_SQL = load_statements("circuits")
_RUNS = load_statements("runs")
_INTERVAL_SECONDS: Final = 0.5
# Between two times of sharing, so that many failures cause few transactions.
_MIN_PAUSE_SECONDS: Final = 0.1
_CLEANUP_SECONDS: Final = 600.0
_BATCH_ROWS: Final = 1000
log = structlog.get_logger(__name__)


class CircuitSync(PeriodicTask):
    """Shares circuits, at once when something happened here and else twice a second."""

    task_name = "circuit sync"
    tolerated_errors = CONNECTION_ERRORS

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._is_reported = False
        self._cleanup_due = runtime.clock.monotonic() + _CLEANUP_SECONDS

    @property
    def interval_seconds(self) -> float:
        return _INTERVAL_SECONDS

    async def run_step(self) -> float:
        """Share what happened, and wait for more."""
        await self.share_circuits()
        if self._is_reported:
            self._is_reported = False
            log.info("circuits_shared_again")
        if self._runtime.clock.monotonic() >= self._cleanup_due:
            self._cleanup_due = self._runtime.clock.monotonic() + _CLEANUP_SECONDS
            await self._delete_old_rows()
        await wait_for_event(self._runtime.circuits.wake_event, _INTERVAL_SECONDS - _MIN_PAUSE_SECONDS)
        return _MIN_PAUSE_SECONDS

    async def share_circuits(self) -> None:
        """Apply what happened in this process to the shared circuits, then take them over."""
        circuits, shared_circuits = self._runtime.circuits, self._runtime.shared_circuits
        events_by_key = circuits.take_events()
        # In one order, so that two processes do not wait for each other.
        for key in sorted(events_by_key):
            try:
                circuits.update_circuit(await shared_circuits.apply_events(key, events_by_key[key]))
            except BaseException:
                for rest in events_by_key:
                    circuits.return_events(rest, events_by_key[rest])
                raise
            events_by_key[key] = []
        rates = self._runtime.service_gate.rates
        # A pause that cannot be stored now is not stored later: this process keeps it, and it ends soon.
        for key, seconds in sorted(rates.take_pauses().items()):
            await shared_circuits.store_pause(key, seconds)
        request_counts = circuits.count_requests()
        unclosed_circuits, pauses = await shared_circuits.list_circuits_and_pauses()
        circuits.update_circuits(unclosed_circuits, request_counts)
        rates.update_pauses(pauses)

    def report_error(self, error: Exception) -> None:
        if not self._is_reported:
            self._is_reported = True
            log.warning("circuits_not_shared", reason=repr(error))

    async def _delete_old_rows(self) -> None:
        self._runtime.circuits.drop_idle_circuits(MAX_WINDOW_SECONDS)
        self._runtime.retry_budgets.drop_idle_budgets()
        async with self._runtime.store.write_transaction() as connection:
            if await connection.fetchval(_RUNS["claim_periodic_task"], self.task_name, 50):
                days = self._runtime.settings.database.retention_days
                await connection.execute(_SQL["delete_idle_circuits"], days, _BATCH_ROWS)
