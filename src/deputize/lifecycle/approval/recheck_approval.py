"""Check that a call starts only as what people approved.

Everything the approval is bound to is computed again from the current state and compared. `durable/resume.py` does this
between the decision and the commit that starts the run; that commit uses the approval up.
"""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

import structlog

from deputize.core.errors import ApprovalExpired, ApprovalVoid
from deputize.core.states import State
from deputize.evidence.audit_entries import encode_entry
from deputize.govern.approvals.binding import compute_binding, list_changed_parts
from deputize.lifecycle.approval.approval_request import (
    ApprovalContents,
    build_approval_request,
    collect_binding_parts,
    plan_approval,
)
from deputize.lifecycle.approval.gate import compute_deadlines, show_code_on_terminal
from deputize.lifecycle.phases import ApprovalGrant, Authorized
from deputize.lifecycle.preview.preview import PreviewResult, preview_call
from deputize.lifecycle.recording.audit import build_context, trace_step
from deputize.lifecycle.recording.redaction import run_for_document
from deputize.lifecycle.runtime import Runtime
from deputize.store.commit_functions import REQUEST_APPROVAL_AGAIN
from deputize.store.queries import load_statements

_SQL = load_statements("approvals")
log = structlog.get_logger(__name__)


class PreviewChanged(Exception):
    """The call's preview differs from what people saw."""

    def __init__(self, call_preview: PreviewResult, authorized: Authorized, contents: ApprovalContents) -> None:
        super().__init__("the preview differs")
        self.call_preview = call_preview
        self.authorized = authorized
        self.contents = contents


async def require_approval(
    runtime: Runtime, authorized: Authorized, *, has_started: bool, may_have_acted: bool
) -> Authorized:
    """Return the call as it was approved; raise `ApprovalExpired`, `ApprovalVoid` or `PreviewChanged` if it is not.

    A call that started before used its approval then; if its owner may have acted, the approval no longer expires, but
    the call must still be the same.
    """
    call = authorized.call
    tenant, call_id = call.tenant, call.call_id
    keys = await runtime.keys.get(tenant)
    async with runtime.store.write_transaction() as connection:
        row = await connection.fetchrow(_SQL["load_newest_approval_request"], tenant, call_id)
    if row is None or row["state"] not in (("approved", "used") if has_started else ("approved",)):
        raise ApprovalVoid("this call is not approved", details={"changed": ["approval"]}, nothing_happened=True)
    approval_id = str(row["id"])
    if not may_have_acted and (row["expired"] or has_expired(runtime, row["expires_at"])):
        raise ApprovalExpired(
            "the approval expired before the call started",
            details={"approval_id": approval_id},
            nothing_happened=True,
        )
    contents = ApprovalContents.decrypt(keys, approval_id, row["presentation"])
    policy_decision = authorized.decision
    demands = policy_decision.requirements + contents.further_demands
    authorized = replace(authorized, decision=replace(policy_decision, requirements=demands))
    code_digest = runtime.driver.get_code_digest(authorized.contract)
    binding_parts = collect_binding_parts(
        runtime, authorized, call_id, contents.bound_preview, code_digest, row["expires_at"]
    )
    if not hmac.compare_digest(compute_binding(keys.fingerprint_key, binding_parts), row["binding"]):
        changed_parts = list_changed_parts(contents.binding_digests, binding_parts)
        raise ApprovalVoid(
            _explain_change(contents.binding_digests, changed_parts),
            details={"changed": changed_parts, "approval_id": approval_id},
            nothing_happened=True,
        )
    guards = contents.guards
    if row["stale"] and not may_have_acted:
        new_preview = await preview_call(runtime, authorized)
        if new_preview.digest != contents.preview or new_preview.unmet_preconditions:
            raise PreviewChanged(new_preview, authorized, contents)
        guards = new_preview.guards
    approval = ApprovalGrant(
        request_id=approval_id,
        demands=policy_decision.requirements,
        policy_digest=policy_decision.policy_digest,
        code_digest=code_digest,
        guards=guards,
    )
    return replace(authorized, decision=policy_decision, approval=approval)


def _explain_change(binding_digests: Mapping[str, str], changed_parts: Sequence[str]) -> str:
    if "code" not in changed_parts:
        return "the call is no longer what was approved"
    if "code" not in binding_digests:
        return "the approval was requested by a release that did not record the tool's code, so it must be given again"
    return "the code of the tool changed after its approval was requested, so the approval does not hold for it"


def has_expired(runtime: Runtime, at: datetime) -> bool:
    """Tell whether a time has passed by this process's clock; PostgreSQL's is checked too, and either one suffices."""
    return at.timestamp() * 1000 <= runtime.clock.epoch_ms()


async def request_new_approval(runtime: Runtime, change: PreviewChanged, epoch: int) -> None:
    """Open a new approval request for the same call, with its current preview, and the steps that the last one had."""
    authorized = change.authorized
    call = authorized.call
    tenant = call.tenant
    keys = await runtime.keys.get(tenant)
    entry_id = runtime.clock.new_id()
    async with runtime.store.write_transaction() as connection:
        _, expires_at = await compute_deadlines(runtime, connection, authorized, plan_approval(runtime, authorized))
        approval_request = await run_for_document(
            authorized.validated.canonical,
            partial(
                build_approval_request,
                runtime, authorized, call.call_id, change.call_preview, expires_at, keys, change.contents.undo,
            ),
        )  # fmt: skip
        approval_request = replace(
            approval_request,
            contents=replace(approval_request.contents, further_demands=change.contents.further_demands),
        )
        body = encode_entry(
            build_context(authorized, approval_id=approval_request.id), id=entry_id, kind="refusal",
            time=runtime.stamps.now(), decision=authorized.decision, outcome=State.AWAITING_APPROVAL,
            error=ApprovalVoid.spec.e_number, command="ask_again",
            passage=trace_step(State.QUEUED, State.AWAITING_APPROVAL),
        )  # fmt: skip
        arguments = REQUEST_APPROVAL_AGAIN.build_row_arguments(
            tenant, call.call_id, epoch, entry_id, body, approval=approval_request.build_row(keys)
        )
        is_reopened = await connection.fetchval(REQUEST_APPROVAL_AGAIN.sql, *arguments)
    if is_reopened:
        log.info("people_asked_again", call_id=call.call_id)
        show_code_on_terminal(runtime, tenant, approval_request)
