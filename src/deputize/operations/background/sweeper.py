"""Find calls whose process died before their outcome, and mark them UNKNOWN.

Every gateway runs one; they share the work by skipping locked rows. It never executes anything.
"""

import asyncpg
import structlog

from deputize.core.caller import Caller, Epochs
from deputize.core.decision import Decision
from deputize.core.errors import OutcomeUnknown
from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.core.states import State
from deputize.evidence.audit_entries import AuditContext, encode_entry
from deputize.lifecycle.recording.audit import trace_step
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import CONNECTION_ERRORS
from deputize.store.queries import load_statements

_SQL = load_statements("runs")
_JOURNAL = load_statements("journal")
_PARTITION_SECONDS = 3600.0
# Much more often than KEY_OVERLAP_SECONDS, in which a new key is not used yet.
_KEY_REFRESH_SECONDS = 15.0
_OWNER_GONE = Decision(rules=("owner-gone",), epochs=Epochs())
log = structlog.get_logger(__name__)


class Sweeper(PeriodicTask):
    """Marks abandoned calls as unknown, and makes partitions."""

    task_name = "sweeper"
    tolerated_errors = CONNECTION_ERRORS
    runs_at_start = False

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._partitions_due = 0.0
        self._key_refresh_due = 0.0

    @property
    def interval_seconds(self) -> float:
        return self._runtime.settings.timing.sweep_seconds

    async def start(self) -> None:
        """Make the partitions that are due at once, then start the loop."""
        await self._make_partitions()
        await super().start()

    async def run_step(self) -> float:
        """Mark abandoned calls as unknown, and make partitions when they are due."""
        await self.mark_abandoned_calls()
        if self._runtime.clock.monotonic() >= self._key_refresh_due:
            await self._runtime.keys.refresh_rotated()
            self._key_refresh_due = self._runtime.clock.monotonic() + _KEY_REFRESH_SECONDS
        if self._runtime.clock.monotonic() >= self._partitions_due:
            await self._make_partitions()
        return self.interval_seconds

    def report_error(self, error: Exception) -> None:
        log.warning("sweep_failed", reason=repr(error))

    async def mark_abandoned_calls(self) -> int:
        """Mark one batch of abandoned calls as UNKNOWN; return how many there were."""
        async with self._runtime.store.write_transaction() as connection:
            calls = await connection.fetch(_SQL["lock_abandoned_calls"], self._runtime.settings.timing.margin_seconds)
            for call in calls:
                await connection.execute(_SQL["mark_call_unknown"], call["tenant"], call["id"], call["owner_epoch"])
                entry_id, body = self._build_entry(call)
                await connection.execute(_SQL["insert_audit_entry"], call["tenant"], entry_id, call["id"], body, None)
                await connection.execute(_JOURNAL["insert_abandoned_effect"], call["tenant"], call["id"], entry_id)
        if calls:
            log.warning("calls_unknown", count=len(calls))
        return len(calls)

    def _build_entry(self, call: asyncpg.Record) -> tuple[str, bytes]:
        """Build the audit entry. It names no caller: the caller chain is in the call's intent."""
        entry_id = self._runtime.clock.new_id()
        about = AuditContext(
            caller=Caller(tenant=call["tenant"], user=""),
            trace_id=call["trace"],
            call_id=str(call["id"]),
            session=call["session"],
            tool=call["tool"],
        )
        body = encode_entry(
            about,
            id=entry_id,
            kind="outcome",
            time=self._runtime.stamps.now(),
            decision=_OWNER_GONE,
            outcome=State.UNKNOWN,
            passage=trace_step(State.RUNNING, State.UNKNOWN),
            error=OutcomeUnknown.spec.e_number,
        )
        return entry_id, body

    async def _make_partitions(self) -> None:
        async with self._runtime.store.write_transaction() as connection:
            await connection.execute(_SQL["create_partitions"])
            await connection.execute(_SQL["delete_dead_leases"])
        self._partitions_due = self._runtime.clock.monotonic() + _PARTITION_SECONDS
