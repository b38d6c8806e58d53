"""Escalate, remind about and expire approval requests when they are due.

Every gateway runs one; they share the work by skipping locked rows. Only PostgreSQL's clock says what is due, so a
gateway with a wrong clock can neither expire a request early nor keep it open. Nothing is ever approved here. Notices
are written in the same commit as the change they report; `notifications/notifier.py` sends them.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

import asyncpg
import orjson
import structlog

from deputize.core.caller import Caller, Epochs
from deputize.core.decision import Decision
from deputize.core.errors import ApprovalExpired, Problem
from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.core.outcome import render_failure_envelope
from deputize.core.states import State
from deputize.evidence.audit_entries import ESCALATE_APPROVAL, NOBODY_DECIDED, AuditContext, encode_entry
from deputize.govern.approvals.requirements import parse_plan
from deputize.lifecycle.recording.audit import trace_step
from deputize.lifecycle.runtime import Runtime
from deputize.store.keys import KeySet
from deputize.store.pool import CONNECTION_ERRORS, Connection
from deputize.store.queries import load_statements

_SQL = load_statements("approval_time")
BATCH_SIZE: Final = 500
MAX_REMINDERS: Final = 10
# After this time another process expires what a dead process had taken; until then the request cannot be approved.
EXPIRY_RETRY_SECONDS: Final = 15.0
# Encrypting and writing entries blocks the event loop; yield to other tasks after this many.
_YIELD_EVERY: Final = 25
# Counting reads every pending request: do it seldom, and the more seldom the longer it takes.
_COUNT_INTERVAL_SECONDS: Final = 15.0
_COUNT_MAX_LOAD: Final = 0.01
_MAX_SERIES: Final = 1000
_EXPIRY_DECISION = Decision(rules=(NOBODY_DECIDED,), epochs=Epochs())
_EXPIRY_REASON: Final = "no approver decided in time"
log = structlog.get_logger(__name__)


class ApprovalEscalator(PeriodicTask):
    """Escalates, reminds about and expires approval requests when their time has come."""

    task_name = "approval escalation"
    tolerated_errors = CONNECTION_ERRORS
    runs_at_start = False

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._count_due = 0.0

    @property
    def interval_seconds(self) -> float:
        return self._runtime.settings.timing.sweep_seconds

    async def run_step(self) -> float:
        """Process one batch; when more is due, pause only as long as this batch took."""
        started_at = self._runtime.clock.monotonic()
        if await self.sweep() == BATCH_SIZE:
            return min(self.interval_seconds, self._runtime.clock.monotonic() - started_at)
        if started_at >= self._count_due:
            await self.count_pending()
        return self.interval_seconds

    def report_error(self, error: Exception) -> None:
        log.warning("approvals_not_swept", reason=repr(error))

    async def sweep(self) -> int:
        """Process one batch of due approval requests; return how many there were."""
        due = await self.advance_due()
        await self.expire_requests([row for row in due if row["is_expired"]])
        return len(due)

    async def advance_due(self) -> list[asyncpg.Record]:
        """Escalate and remind about due requests; expired ones are postponed and left to `sweep`."""
        async with self._runtime.store.write_transaction() as connection:
            due = await connection.fetch(_SQL["take_due_approvals"], BATCH_SIZE)
            if not due:
                return due
            levels = [max(row["level"], row["due_level"]) for row in due]
            new_groups = [each for row, level in zip(due, levels, strict=True) for each in _list_new_groups(row, level)]
            await connection.execute(
                _SQL["escalate_approvals"],
                [row["tenant"] for row in due],
                [row["id"] for row in due],
                levels,
                [row["tenant"] for row, _ in new_groups],
                [row["id"] for row, _ in new_groups],
                [group for _, group in new_groups],
                float(self._runtime.settings.approvals.remind_seconds),
                MAX_REMINDERS,
                EXPIRY_RETRY_SECONDS,
            )
            await self._record_escalations(connection, new_groups)
        return due

    async def _record_escalations(
        self, connection: Connection, new_groups: Sequence[tuple[asyncpg.Record, str]]
    ) -> None:
        """Record in the audit which groups were asked beside the first, an entry for each request."""
        groups: dict[tuple[str, UUID], list[str]] = {}
        requests = {(row["tenant"], row["call_id"]): row for row, _ in new_groups}
        for row, group in new_groups:
            groups.setdefault((row["tenant"], row["call_id"]), []).append(group)
        if not groups:
            return
        calls = await connection.fetch(_SQL["load_traces"], *map(list, zip(*groups, strict=True)))
        entry_rows = [
            self._build_escalation_row(call, requests[call["tenant"], call["id"]], groups[call["tenant"], call["id"]])
            for call in calls
        ]
        if entry_rows:
            await connection.execute(_SQL["insert_audit_entries"], *map(list, zip(*entry_rows, strict=True)))

    def _build_escalation_row(
        self, call: asyncpg.Record, request: asyncpg.Record, groups: Sequence[str]
    ) -> tuple[object, ...]:
        runtime, tenant, call_id = self._runtime, call["tenant"], str(call["id"])
        entry_id = runtime.clock.new_id()
        body = encode_entry(
            AuditContext(
                caller=Caller(tenant=tenant, user=""), trace_id=call["trace"], call_id=call_id, session=call["session"],
                tool=request["tool"], approval_id=str(request["id"]),
            ),
            id=entry_id,
            kind="command",
            time=runtime.stamps.now(),
            command=ESCALATE_APPROVAL,
            subject=", ".join(groups),
        )  # fmt: skip
        return tenant, entry_id, call["id"], body

    async def expire_requests(self, overdue: Sequence[asyncpg.Record]) -> None:
        """Expire requests with their envelopes and audit entries in one commit; skip those decided meanwhile."""
        tenants = sorted({row["tenant"] for row in overdue})
        key_sets = await asyncio.gather(*map(self._load_keys, tenants))
        keys = {tenant: key_set for tenant, key_set in zip(tenants, key_sets, strict=True) if key_set is not None}
        expiry_rows = []
        for number, row in enumerate(row for row in overdue if row["tenant"] in keys and row["trace"] is not None):
            expiry_rows.append(self._build_expiry_row(row, keys[row["tenant"]]))
            if number % _YIELD_EVERY == _YIELD_EVERY - 1:
                await asyncio.sleep(0)
        if not expiry_rows:
            return
        async with self._runtime.store.write_transaction() as connection:
            ended_rows = await connection.fetch(
                _SQL["expire_approval_request"],
                sorted(keys),
                _EXPIRY_REASON,
                *map(list, zip(*expiry_rows, strict=True)),
            )
        rows_by_call = {row["call_id"]: row for row in overdue}
        for each in ended_rows:
            row = rows_by_call[each["call_id"]]
            self._runtime.metrics.approval_time.labels(row["tool"], "expired").observe(row["age"])
        log.info("approvals_expired", count=len(ended_rows))

    async def count_pending(self) -> None:
        """Count pending approval requests for the metrics."""
        clock, pending = self._runtime.clock, self._runtime.metrics.approvals_pending
        started_at = clock.monotonic()
        async with self._runtime.store.write_transaction() as connection:
            rows = await connection.fetch(_SQL["count_pending_approvals"], _MAX_SERIES)
        pending.clear()
        for row in rows:
            pending.labels(row["tool"], row["grp"]).set(row["calls"])
        now = clock.monotonic()
        self._count_due = now + max(_COUNT_INTERVAL_SECONDS, (now - started_at) / _COUNT_MAX_LOAD)

    async def _load_keys(self, tenant: str) -> KeySet | None:
        """Load a tenant's keys; None if they are unavailable, so its requests are retried without delaying others."""
        runtime = self._runtime
        try:
            return await runtime.keys.get(tenant)
        except Problem as problem:
            log.warning("approvals_not_ended", tenant=tenant, reason=problem.spec.slug)
            return None

    def _build_expiry_row(self, row: asyncpg.Record, keys: KeySet) -> tuple[object, ...]:
        """Build a row in the order of `end_unstarted_calls`. It names no caller: the chain is in the call's intent."""
        runtime, tenant, call_id = self._runtime, row["tenant"], str(row["call_id"])
        problem = ApprovalExpired(
            "no approver decided in time, so the call was denied",
            details={"approval_id": str(row["id"]), "expired_at": row["expires_at"].isoformat()},
            nothing_happened=True,
        )
        outcome = render_failure_envelope(
            problem, call_id=call_id, state=State.DENIED, trace_id=row["trace"], extra_fields={}
        )
        entry_id = runtime.clock.new_id()
        body = encode_entry(
            AuditContext(
                caller=Caller(tenant=tenant, user=""), trace_id=row["trace"], call_id=call_id, session=row["session"],
                tool=row["tool"],
                approval_id=str(row["id"]),
            ),
            id=entry_id,
            kind="outcome",
            time=runtime.stamps.now(),
            passage=trace_step(State.AWAITING_APPROVAL, State.DENIED),
            decision=_EXPIRY_DECISION,
            outcome=State.DENIED,
            error=problem.spec.e_number,
            subject=str(row["id"]),
        )  # fmt: skip
        ciphertext = keys.seal(call_id, "outcome", outcome)
        return tenant, row["call_id"], row["owner_epoch"], State.DENIED, problem.spec.slug, ciphertext, entry_id, body


def _list_new_groups(row: asyncpg.Record, level: int) -> Iterator[tuple[asyncpg.Record, str]]:
    """List the groups that this level adds; none for an expired request."""
    if row["is_expired"] or level == row["level"]:
        return
    try:
        plan = parse_plan(orjson.loads(row["demands"]), levels=row["levels"])
        groups = plan.get_groups(level) - plan.get_groups(row["level"])
    except (ValueError, TypeError, KeyError) as error:
        # An unreadable request must not stop the others; it stays with its current groups and expires in time.
        log.warning("approval_not_escalated", approval_id=str(row["id"]), reason=type(error).__name__)
        return
    for group in sorted(groups):
        yield row, group
