"""Cancel a call that has not ended: end it if it has not begun, or record that it is to stop."""

from typing import Any

import asyncpg

from deputize.core.caller import Caller
from deputize.core.entry_kinds import EntryKind
from deputize.core.errors import Canceled
from deputize.core.outcome import render_failure_envelope
from deputize.core.states import State
from deputize.core.value_types import frozen
from deputize.evidence.audit_entries import AuditContext, encode_entry
from deputize.lifecycle.recording.audit import trace_step
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("calls")
_RUNS = load_statements("runs")


@frozen
class Cancellation:
    """What became of a cancellation: the reason why nothing was executed, or that the request is recorded; neither if
    the call has just ended.
    """

    unstarted_reason: str | None = None
    is_recorded: bool = False


async def cancel_open_call(runtime: Runtime, caller: Caller, row: asyncpg.Record) -> Cancellation:
    """Cancel the call of a row, which has its `id`, `tool`, `trace` and `state`; the caller may do so."""
    tenant, call_id = caller.tenant, str(row["id"])
    await runtime.keys.load(tenant)
    async with runtime.store.write_transaction() as connection:
        previous_state = await connection.fetchval(_SQL["cancel_queued_call"], tenant, call_id)
        if previous_state is not None:
            reason = "it was not approved yet" if previous_state == State.AWAITING_APPROVAL else "it had not started"
            await _record_end(runtime, connection, caller, row, reason)
            return Cancellation(unstarted_reason=reason)
        request_id = await connection.fetchval(_SQL["request_cancel"], tenant, call_id)
        await add_cancel_entry(runtime, connection, caller, row, "command", command="cancel", outcome="recorded")
        if request_id is not None and row["state"] == State.QUEUED:
            # A flow that waits for its steps is not resumed before one of them ends.
            await connection.execute(_RUNS["return_run_to_queue"], tenant, call_id, 0.0, False)
    return Cancellation(is_recorded=request_id is not None)


async def _record_end(
    runtime: Runtime, connection: Connection, caller: Caller, row: asyncpg.Record, reason: str
) -> None:
    """Record who canceled the call and how it ended, each in an audit entry, and store the envelope."""
    call_id = str(row["id"])
    problem = Canceled(f"the call was canceled: {reason}", nothing_happened=True)
    body = render_failure_envelope(
        problem, call_id=call_id, state=State.CANCELED, trace_id=row["trace"], extra_fields={}
    )
    keys = runtime.keys.find(caller.tenant)
    assert keys is not None  # loaded before the transaction began
    await connection.execute(_SQL["save_outcome"], caller.tenant, call_id, keys.seal(call_id, "outcome", body))
    await add_cancel_entry(runtime, connection, caller, row, "command", command="cancel", outcome="succeeded")
    await add_cancel_entry(
        runtime, connection, caller, row, "outcome",
        outcome=State.CANCELED, error=problem.spec.e_number, passage=trace_step(None, State.CANCELED),
    )  # fmt: skip


async def add_cancel_entry(
    runtime: Runtime, connection: Connection, caller: Caller, row: asyncpg.Record, kind: EntryKind, **fields: Any
) -> None:
    """Add an audit entry about the call of a row."""
    call_id, entry_id = str(row["id"]), runtime.clock.new_id()
    about = AuditContext(
        caller=caller, trace_id=row["trace"], call_id=call_id, session=caller.session, tool=row["tool"]
    )
    if kind == "command":
        fields["subject"] = call_id
    body = encode_entry(about, id=entry_id, kind=kind, time=runtime.stamps.now(), **fields)
    await connection.execute(_RUNS["insert_audit_entry"], caller.tenant, entry_id, call_id, body, None)
