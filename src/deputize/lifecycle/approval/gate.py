"""Request approval: claim and store the call and open its approval request in one commit, and answer at once.

A repeated key gets the same approval request. The stored input is encrypted and cannot change; a worker executes the
call once it is approved (`recheck_approval.py`).
"""

import contextlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import asyncpg

from deputize.core.canonical import compute_fingerprint
from deputize.core.errors import GrantEnded, Problem, Unavailable
from deputize.core.outcome import Envelope, Outcome
from deputize.core.states import State
from deputize.govern.approvals.requirements import ApprovalPlan
from deputize.lifecycle.approval.approval_request import ApprovalRequest, build_approval_request, plan_approval
from deputize.lifecycle.approval.planned_undos import PlannedApproval, ReceiveCall, plan_undo_approval
from deputize.lifecycle.approval.presentation import describe_new_request, describe_request
from deputize.lifecycle.approval.unstarted_call import withdraw_approval_request
from deputize.lifecycle.callbacks import serialize_callback
from deputize.lifecycle.claim import derive_key, reauthorize_if_stale, require_known_key
from deputize.lifecycle.envelope import build_refusal_outcome
from deputize.lifecycle.phases import Authorized
from deputize.lifecycle.preview.preview import PreviewResult, require_preview
from deputize.lifecycle.recording import audit
from deputize.lifecycle.recording.redaction import run_for_document
from deputize.lifecycle.recording.stored_call import serialize_caller, serialize_input
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.submit import build_accepted_outcome, parse_epochs, resolve_repeat
from deputize.store.commit_functions import SUBMIT_FOR_APPROVAL
from deputize.store.commit_rows import OpenCallRow, RunRow
from deputize.store.keys import KeySet
from deputize.store.pool import CONNECTION_ERRORS, Connection
from deputize.store.queries import load_statements

_SQL = load_statements("approvals")
_CALLS = load_statements("calls")


async def request_approval(runtime: Runtime, authorized: Authorized, receive: ReceiveCall) -> Outcome:
    validated = authorized.validated
    call, contract = validated.call, validated.contract
    tenant = call.tenant
    keys = await runtime.keys.get(tenant)
    arguments_digest = compute_fingerprint(keys.fingerprint_key, contract.full_name, validated.request_bytes)
    key = derive_key(authorized, arguments_digest)
    call_row = audit.build_opening_row(runtime, authorized, arguments_digest, key, State.AWAITING_APPROVAL)
    holder_id = call.request.retry_of or await _find_key_holder(runtime, call_row)
    if holder_id is not None:
        # No new preview: people decide on the one they were shown.
        return await _answer_repeated_key(runtime, authorized, keys, holder_id, arguments_digest)
    await require_known_key(runtime, authorized, call_row)
    await runtime.request_limits.count_approval_request(call.caller)
    call_preview = await require_preview(runtime, authorized)
    plan = await plan_undo_approval(runtime, authorized, call_preview, receive)
    try:
        approval_request, rows = await _insert_approval_request(runtime, authorized, keys, call_row, call_preview, plan)
    except CONNECTION_ERRORS as error:
        problem = Unavailable("PostgreSQL became unreachable while approval was requested", retry_after_ms=1000)
        problem.__cause__ = error
        # The commit may have succeeded: repeating the key or reading the call by its id shows it.
        return build_refusal_outcome(call, problem, State.UNKNOWN)
    other_holder_id = next((str(each["holder"]) for each in rows if each["kind"] == "claimed"), None)
    try:
        await reauthorize_if_stale(runtime, authorized, parse_epochs(rows))
    except Problem as refusal:
        if other_holder_id is None and not refusal.spec.retryable:
            # No one is asked on behalf of a caller who lost the right to ask before the request was committed. If the
            # database is lost now, the request stays open, and its call is refused when a worker would begin it.
            with contextlib.suppress(*CONNECTION_ERRORS):
                await withdraw_approval_request(runtime, call, refusal)
        raise
    if other_holder_id is not None:
        return await _answer_repeated_key(runtime, authorized, keys, other_holder_id, arguments_digest)
    runtime.metrics.show_tool(authorized.contract)
    show_code_on_terminal(runtime, tenant, approval_request)
    return _add_approval(
        build_accepted_outcome(authorized, call.call_id, State.AWAITING_APPROVAL),
        describe_new_request(runtime, approval_request),
    )


async def _find_key_holder(runtime: Runtime, call_row: OpenCallRow) -> str | None:
    if call_row.key is None:
        return None
    async with runtime.store.write_transaction() as connection:
        holder_id = await connection.fetchval(
            _CALLS["find_key_holder"], call_row.tenant, call_row.scope, call_row.key, call_row.replaces
        )
    return None if holder_id is None else str(holder_id)


async def _insert_approval_request(
    runtime: Runtime,
    authorized: Authorized,
    keys: KeySet,
    call_row: OpenCallRow,
    call_preview: PreviewResult,
    plan: PlannedApproval,
) -> tuple[ApprovalRequest, list[asyncpg.Record]]:
    # People approve what the steps demand together.
    authorized = plan.add_demands(authorized)
    async with runtime.store.write_transaction() as connection:
        not_after, expires_at = await compute_deadlines(
            runtime, connection, authorized, plan_approval(runtime, authorized)
        )
        approval_request = await run_for_document(
            authorized.validated.canonical,
            partial(
                build_approval_request,
                runtime, authorized, call_row.call_id, call_preview, expires_at, keys, plan.undo, plan.demands,
            ),
        )  # fmt: skip
        arguments = SUBMIT_FOR_APPROVAL.build_row_arguments(
            runtime.lease.boot_id,
            opening=audit.name_approval(runtime, authorized, call_row, approval_request.id),
            run=_build_run_row(runtime, authorized, keys, not_after),
            callback=(_seal_callback(authorized, keys),),
            approval=approval_request.build_row(keys),
        )
        rows = await connection.fetch(SUBMIT_FOR_APPROVAL.sql, *arguments)
    return approval_request, rows


async def compute_deadlines(
    runtime: Runtime, connection: Connection, authorized: Authorized, plan: ApprovalPlan
) -> tuple[datetime, datetime]:
    """Compute until when the call may act for its caller, and until when people may decide: never later."""
    caller = authorized.call.caller
    now: datetime = await connection.fetchval(_SQL["compute_time_after"], 0.0)
    expires_at = now + timedelta(seconds=plan.seconds)
    if not caller.agents:
        # A user's own call stays valid while people decide, and then as long as a grant may last.
        return expires_at + timedelta(seconds=runtime.settings.identity.max_grant_seconds), expires_at
    not_after = datetime.fromtimestamp(caller.expires_at, UTC)
    if caller.grants:
        # A delegation is stored and may outlive the token that showed it.
        not_after = await connection.fetchval(_SQL["find_first_grant_end"], caller.tenant, list(caller.grants)) or now
    if not_after <= now:
        raise GrantEnded("the delegation behind this call has ended", nothing_happened=True)
    return not_after, min(expires_at, not_after)


def _build_run_row(runtime: Runtime, authorized: Authorized, keys: KeySet, not_after: datetime) -> RunRow:
    validated = authorized.validated
    call = validated.call
    return RunRow(
        input=keys.seal(call.call_id, "input", serialize_input(validated)),
        caller=keys.seal(call.call_id, "caller", serialize_caller(call.caller)),
        not_after=not_after,
        priority=call.request.priority or validated.contract.priority,
        release=runtime.release,
    )


def _seal_callback(authorized: Authorized, keys: KeySet) -> bytes | None:
    call = authorized.call
    callback = call.request.callback
    return None if callback is None else keys.seal(call.call_id, "callback", serialize_callback(callback))


async def _answer_repeated_key(
    runtime: Runtime, authorized: Authorized, keys: KeySet, holder_id: str, arguments_digest: bytes
) -> Outcome:
    """Return the open approval request of the call that holds the key, or the call's outcome."""
    outcome = await resolve_repeat(runtime, authorized, keys, holder_id, arguments_digest)
    if outcome.state is not State.AWAITING_APPROVAL:
        return outcome
    async with runtime.store.write_transaction() as connection:
        row = await connection.fetchrow(_SQL["load_approval_request"], authorized.call.tenant, holder_id)
        groups = [] if row is None else await connection.fetch(_SQL["list_current_groups"], row["tenant"], row["id"])
    return (
        outcome
        if row is None
        else _add_approval(outcome, describe_request(runtime, row, [each["grp"] for each in groups]))
    )


def _add_approval(outcome: Outcome, approval: dict[str, Any]) -> Outcome:
    return replace(outcome, envelope=Envelope({**outcome.envelope.fields, "approval": approval}))


def show_code_on_terminal(runtime: Runtime, tenant: str, approval_request: ApprovalRequest) -> None:
    """Show the request's code on the terminal, in development: only a person at the terminal can decide."""
    if runtime.approval_codes is not None:
        runtime.approval_codes.show_code(
            tenant,
            approval_request.id,
            approval_request.binding,
            approval_request.binding_parts.tool
            if approval_request.step_count == 1
            else f"an undo of {approval_request.step_count} steps",
            approval_request.binding_parts.chain[0],
        )
