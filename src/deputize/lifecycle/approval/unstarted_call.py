"""End a call that waits for approval, or was approved, and may not start any more."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from deputize.core.caller import Caller
from deputize.core.errors import AuthorityRevoked, Problem
from deputize.core.outcome import render_failure_envelope
from deputize.core.states import State, require_transition
from deputize.evidence.audit_entries import AuditContext, encode_entry
from deputize.lifecycle.envelope import get_refusal_state
from deputize.lifecycle.phases import CallContext
from deputize.lifecycle.recording.audit import trace_step
from deputize.lifecycle.recording.stored_call import load_grants, restore_caller
from deputize.lifecycle.runtime import Runtime
from deputize.store.keys import KeySet
from deputize.store.queries import load_statements

_SQL = load_statements("approvals")
_BATCH_SIZE: Final = 200
_MAX_COUNTED: Final = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class _CallEnd:
    """The rows that end a call: its state, its sealed outcome and its audit entry."""

    state: State
    slug: str
    ciphertext: bytes
    entry_id: str
    entry: bytes


async def end_unstarted_call(runtime: Runtime, call: CallContext, queued_at: datetime, problem: Problem) -> None:
    """End a call that was queued and may no longer start.

    Not if another worker with the same run has requested approval again meanwhile: then people decide.
    """
    tenant, call_id = call.tenant, call.call_id
    end = await _build_end(runtime, call, problem)
    async with runtime.store.write_transaction() as connection:
        await connection.execute(
            _SQL["end_unstarted_run"], tenant, call_id, queued_at, problem.message, end.state, end.slug,
            end.ciphertext, end.entry_id, end.entry,
        )  # fmt: skip


async def withdraw_approval_request(runtime: Runtime, call: CallContext, problem: Problem) -> None:
    """End a call whose approval request was just opened and whose caller lost its authority before that commit."""
    tenant = call.tenant
    end = await _build_end(runtime, call, problem)
    async with runtime.store.write_transaction() as connection:
        await connection.execute(
            _SQL["end_approval_request"], [tenant], "void", "", problem.message, [tenant], [call.call_id], [0],
            [end.state], [end.slug], [end.ciphertext], [end.entry_id], [end.entry],
        )  # fmt: skip


async def withdraw_revoked_requests(runtime: Runtime, tenant: str) -> int:
    """End the calls that wait for approval and whose caller was revoked, so that nobody decides on them in vain.

    Return how many. A request that is missed here, as when this process dies, is void when it is approved.
    """
    revocations = (await runtime.authority.load_tenant(tenant)).revocations
    keys = await runtime.keys.get(tenant)
    withdrawn_count, before = 0, None
    while True:
        async with runtime.store.write_transaction() as connection:
            rows = await connection.fetch(_SQL["list_waiting_callers"], tenant, before, _BATCH_SIZE)
        for row in rows:
            try:
                caller_bytes = keys.unseal(str(row["call_id"]), "caller", row["caller"])
                revocations.check(restore_caller(caller_bytes, runtime.settings.identity.issuers))
            except AuthorityRevoked as problem:
                withdrawn_count += await _withdraw_waiting_call(runtime, tenant, row, problem)
            except (Problem, ValueError):
                # Whatever else is wrong with it is found when it is approved.
                continue
        if len(rows) < _BATCH_SIZE:
            return withdrawn_count
        before = rows[-1]["id"]


async def count_waiting_calls(runtime: Runtime, tenant: str, grant_id: str) -> int | None:
    """Count the calls that wait for approval and would be withdrawn with a grant; None if the tenant has too many."""
    keys = await runtime.keys.get(tenant)
    async with runtime.store.write_transaction() as connection:
        rows = await connection.fetch(_SQL["list_waiting_callers"], tenant, None, _MAX_COUNTED + 1)
    if len(rows) > _MAX_COUNTED:
        return None
    return await asyncio.to_thread(_count_calls_under_grant, keys, rows, grant_id)


def _count_calls_under_grant(keys: KeySet, rows: Sequence[asyncpg.Record], grant_id: str) -> int:
    return sum(grant_id in load_grants(keys.unseal(str(row["call_id"]), "caller", row["caller"])) for row in rows)


async def _withdraw_waiting_call(runtime: Runtime, tenant: str, row: asyncpg.Record, problem: Problem) -> bool:
    """End one waiting call, unless it was decided meanwhile. Its entry names no caller: that is in its intent."""
    call_id = str(row["call_id"])
    context = AuditContext(
        caller=Caller(tenant=tenant, user=""), trace_id=row["trace"], call_id=call_id, session=row["session"],
        tool=row["tool"], approval_id=str(row["id"]),
    )  # fmt: skip
    end = await _seal_end(runtime, context, call_id, problem)
    async with runtime.store.write_transaction() as connection:
        ended = await connection.fetchval(
            _SQL["end_approval_request"], [tenant], "void", "", problem.message, [tenant], [call_id],
            [row["owner_epoch"]], [end.state], [end.slug], [end.ciphertext], [end.entry_id], [end.entry],
        )  # fmt: skip
    return ended is not None


async def _build_end(runtime: Runtime, call: CallContext, problem: Problem) -> _CallEnd:
    context = AuditContext(
        caller=call.caller, trace_id=call.trail.trace_id, call_id=call.call_id, session=call.session,
        tool=call.request.tool, origin=call.request.origin,
    )  # fmt: skip
    return await _seal_end(runtime, context, call.call_id, problem)


async def _seal_end(runtime: Runtime, context: AuditContext, call_id: str, problem: Problem) -> _CallEnd:
    keys = await runtime.keys.get(context.caller.tenant)
    problem = problem.replace(nothing_happened=True)
    state, entry_id = require_transition(State.QUEUED, get_refusal_state(problem)), runtime.clock.new_id()
    outcome = render_failure_envelope(problem, call_id=call_id, state=state, trace_id=context.trace_id, extra_fields={})
    entry = encode_entry(
        context, id=entry_id, kind="outcome", time=runtime.stamps.now(), decision=problem.decision, outcome=state,
        error=problem.spec.e_number, passage=trace_step(None, state),
    )  # fmt: skip
    ciphertext = keys.seal(call_id, "outcome", outcome)
    return _CallEnd(state=state, slug=problem.spec.slug, ciphertext=ciphertext, entry_id=entry_id, entry=entry)
