"""Resume a run: load its call, authorize it as of now, claim it, and dispatch it.

Only `Lifecycle.resume_run` leads here. The decision from when the run was queued no longer counts: meanwhile the caller
may have been revoked, the delegation may have ended, or the policies may have changed.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

import asyncpg
import structlog

from deputize.catalog.tool_entry import ToolVersion
from deputize.core.call import CallRequest
from deputize.core.caller import Caller, Epochs
from deputize.core.canonical import canonicalize
from deputize.core.clock import Deadline
from deputize.core.contract.contract import is_safe_to_repeat
from deputize.core.contract.flow import MAX_FLOW_DEPTH
from deputize.core.contract.tools import AnyTool
from deputize.core.decision import Decision
from deputize.core.errors import (
    Canceled,
    FlowFailed,
    GrantEnded,
    OutcomeUnknown,
    Problem,
    TokenIssuerUntrusted,
    ToolNotAdmitted,
    ToolNotFound,
    ToolRequiresSetup,
    TooManyTakeovers,
    Unavailable,
    UnsealFailed,
)
from deputize.core.injection.suspicions import find_suspicions
from deputize.core.states import State
from deputize.core.telemetry import Span
from deputize.core.value_types import frozen
from deputize.lifecycle.approval.recheck_approval import PreviewChanged, request_new_approval, require_approval
from deputize.lifecycle.approval.unstarted_call import end_unstarted_call
from deputize.lifecycle.authorize import authorize
from deputize.lifecycle.claim import confirm_authorization
from deputize.lifecycle.durable.flow_effects import report_lost_flow
from deputize.lifecycle.durable.flow_end import cancel_steps, name_steps
from deputize.lifecycle.durable.flow_steps import FlowSteps, has_flow_ended, load_steps_of_lost_flow, settle_plans
from deputize.lifecycle.durable.resource_locks import list_resource_locks
from deputize.lifecycle.execute import find_approved_tool
from deputize.lifecycle.limits import Charge, admit_run, compute_hold_seconds, release_lost_execution
from deputize.lifecycle.phases import Authorized, CallContext, Claim, Executed, Validated
from deputize.lifecycle.recording import audit
from deputize.lifecycle.recording.audit import trace_step
from deputize.lifecycle.recording.redaction import prepare_redaction
from deputize.lifecycle.recording.stored_call import StoredInput, restore_caller
from deputize.lifecycle.runtime import Runtime
from deputize.store.commit_rows import BeginRunRow, CommitResult, ResourceLock
from deputize.store.keys import KeySet
from deputize.store.pool import CONNECTION_ERRORS
from deputize.store.queries import load_statements

_SQL = load_statements("runs")
_NO_EPOCHS = Epochs()
# A run's time limit starts with its tool, however long it waited before.
_NO_DEADLINE: Final = Deadline(at=float("inf"))
_RETRY_SOON_SECONDS, _RETRY_LATER_SECONDS = 2.0, 10.0
log = structlog.get_logger(__name__)


class RunNotReady(Exception):
    """The run must be requeued after so many seconds; `unable` if this worker lacks something the run needs."""

    def __init__(self, why: str, *, seconds: float, unable: bool = False) -> None:
        super().__init__(why)
        self.seconds = seconds
        self.unable = unable


@frozen
class PendingRun:
    """A stored run with what is needed to resume it, and the epoch it was loaded at."""

    validated: Validated
    state: State
    epoch: int
    is_untouched: bool
    is_expired: bool
    takeovers: int
    cancel_requested: bool
    queued_at: datetime
    # Since it was begun for the first time.
    age_seconds: float = 0.0
    # The process that began it last, if any.
    owner: str | None = None
    # It waited for approval, and may start only as what people approved.
    has_approval_request: bool = False
    # Some worker was unable to go on with it, and none has since then.
    was_unable: bool = False

    @property
    def is_flow_begun(self) -> bool:
        """True of a flow that may have made calls: they are ended first, and its outcome names them."""
        return self.validated.contract.flow is not None and self.epoch > 0

    @property
    def may_have_acted(self) -> bool:
        """Whether a previous owner may have acted."""
        return self.epoch > 0 and not self.is_untouched


@frozen
class ClaimedRun:
    """A run that this worker began, under its current authorization, and what its limits were charged."""

    authorized: Authorized
    tool: AnyTool
    claim: Claim
    charge: Charge
    # Why a flow that had begun had to stop; it is claimed to record what its steps did.
    refusal: Problem | None = None


async def load_pending_run(runtime: Runtime, tenant: str, call_id: str) -> PendingRun | None:
    """Load the pending run, or None if nothing is left to do for it."""
    async with runtime.store.write_transaction() as connection:
        row = await connection.fetchrow(
            _SQL["load_pending_run"], tenant, call_id, runtime.settings.timing.margin_seconds
        )
    if row is None:
        return None
    if row["owner_alive"]:
        raise RunNotReady("another worker executes it", seconds=runtime.settings.timing.lease_seconds / 2)
    try:
        return await _restore_run(runtime, tenant, call_id, row)
    except RunNotReady as not_ready:
        if not not_ready.unable or (row["unable_seconds"] or 0.0) < runtime.settings.runs.unable_seconds:
            raise
        problem: Problem = ToolRequiresSetup(f"no worker could execute this call: {not_ready}")
    except UnsealFailed as error:
        problem = error
    unknown_caller, request = Caller(tenant=tenant, user=""), CallRequest(tool=row["tool"], arguments={})
    await _end_run(runtime, _build_received(runtime, call_id, unknown_caller, request, row), row, problem)
    return None


async def _restore_run(runtime: Runtime, tenant: str, call_id: str, row: asyncpg.Record) -> PendingRun | None:
    if row["input"] is None:
        raise UnsealFailed("the arguments of this call were deleted while it waited")
    keys = runtime.keys.find(tenant) or await _load_keys(runtime, tenant)
    try:
        try:
            stored_input, caller = _decrypt_call(runtime, keys, call_id, row)
        except UnsealFailed:
            # The key may be newer than this process's copy: load the keys again.
            stored_input, caller = _decrypt_call(runtime, await _load_keys(runtime, tenant), call_id, row)
    except ValueError as format_error:
        raise RunNotReady(str(format_error), seconds=_RETRY_LATER_SECONDS, unable=True) from format_error
    except TokenIssuerUntrusted as issuer_error:
        # The issuer was removed, or other workers have newer settings than this one.
        raise RunNotReady(issuer_error.message, seconds=_RETRY_LATER_SECONDS, unable=True) from issuer_error
    request = stored_input.build_request(row["tool"], row["version"], row["session"])
    call = _build_received(runtime, call_id, caller, request, row, traceparent=stored_input.traceparent)
    try:
        version = await _resolve_version(runtime, tenant, row)
    except Problem as tool_error:
        if tool_error.spec.retryable:
            raise RunNotReady(tool_error.message, seconds=_RETRY_SOON_SECONDS) from tool_error
        await _end_run(runtime, call, row, tool_error)
        return None
    validated = Validated(
        call=call,
        tool=version.tool,
        deprecation=version.deprecation,
        deadline=_NO_DEADLINE
        if request.max_seconds is None
        else Deadline.after(request.max_seconds, runtime.clock.monotonic()),
        canonical=(canonical := canonicalize(stored_input.arguments)),
        suspicions=find_suspicions(stored_input.arguments, canonical),
        call_input=stored_input.call_input,
        mutations=stored_input.mutations,
        input_round=stored_input.input_round,
    )
    return PendingRun(
        validated=await prepare_redaction(validated),
        state=State(row["state"]),
        epoch=row["owner_epoch"],
        is_untouched=row["untouched_epoch"] == row["owner_epoch"],
        is_expired=row["over"],
        takeovers=row["takeovers"],
        cancel_requested=row["cancel_requested"],
        queued_at=row["queued_at"],
        age_seconds=row["age_seconds"] or 0.0,
        owner=None if row["owner"] is None or row["owner_epoch"] == 0 else str(row["owner"]),
        has_approval_request=row["needs_approval"],
        was_unable=row["unable_seconds"] is not None,
    )


async def _load_keys(runtime: Runtime, tenant: str) -> KeySet:
    """Load the current keys; a worker with a wrong master key leaves the run to others instead of failing it."""
    try:
        return await runtime.keys.load(tenant)
    except UnsealFailed as error:
        raise RunNotReady(error.message, seconds=_RETRY_LATER_SECONDS, unable=True) from error


def _decrypt_call(runtime: Runtime, keys: KeySet, call_id: str, row: asyncpg.Record) -> tuple[StoredInput, Caller]:
    stored_input = StoredInput(keys.unseal(call_id, "input", row["input"]))
    return stored_input, restore_caller(
        keys.unseal(call_id, "caller", row["caller"]), runtime.settings.identity.issuers
    )


def _build_received(
    runtime: Runtime,
    call_id: str,
    caller: Caller,
    request: CallRequest,
    row: asyncpg.Record,
    traceparent: str | None = None,
) -> CallContext:
    return CallContext(
        call_id=call_id, caller=caller, request=request, session=row["session"], started_at=runtime.clock.monotonic(),
        deadline=None, trail=runtime.tracing.start_trace(traceparent, call_id, caller),
    )  # fmt: skip


async def _resolve_version(runtime: Runtime, tenant: str, row: asyncpg.Record) -> ToolVersion:
    """Resolve exactly the version that was authorized when the call was queued, even if there are newer ones.

    A worker without its function, or with one that declares more than this version, leaves the run to others for a
    while: releases of a project run side by side.
    """
    version = (await runtime.authority.load_tenant(tenant)).tools.resolve_version(row["tool"], row["version"])
    if version.digest != row["tool_digest"]:
        raise ToolNotFound(f"{row['tool']} {row['version']} was replaced while the call waited")
    try:
        runtime.driver.find_tool(version.tool.contract)
    except (ToolRequiresSetup, ToolNotAdmitted) as missing:
        raise RunNotReady(missing.message, seconds=_RETRY_SOON_SECONDS, unable=True) from missing
    return version


async def claim_run(runtime: Runtime, run: PendingRun) -> ClaimedRun | None:
    """Claim the run inside its limits and authorize it again under that commit; None if it must not be dispatched here.

    Raises `RunNotReady` for a run that a limit holds back.
    """
    if run.is_flow_begun:
        return await _claim_flow(runtime, run)
    validated = run.validated
    refusal: Problem | None = None
    charge: Charge | None = None
    resource_locks: tuple[ResourceLock, ...] = ()
    try:
        with validated.call.trail.start_phase(Span.AUTHORIZE):
            _require_runnable(runtime, run)
            await _require_open_flow(runtime, run)
            authority = await runtime.authority.load_tenant(validated.call.tenant)
            authorized = await authorize(runtime, validated, authority, may_ask=run.has_approval_request)
            if run.has_approval_request:
                authorized = await require_approval(
                    runtime, authorized, has_started=run.epoch > 0, may_have_acted=run.may_have_acted
                )
            tool = find_approved_tool(runtime, authorized)
            resource_locks = list_resource_locks(runtime, validated)
            charge = await admit_run(runtime, authorized, tool, run.epoch, run.owner)
            authorized = charge.authorized
    except PreviewChanged as differs:
        await request_new_approval(runtime, differs, run.epoch)
        return None
    except Problem as problem:
        hold_seconds = compute_hold_seconds(runtime, validated.call.tenant, problem)
        if hold_seconds is not None or problem.spec.retryable:
            raise RunNotReady(problem.message, seconds=hold_seconds or _RETRY_SOON_SECONDS) from problem
        refusal, decision = problem, problem.decision
        authorized = Authorized(validated=validated, decision=decision or Decision(rules=(), epochs=_NO_EPOCHS))
    if charge is None:
        assert refusal is not None
        await _end_refused_run(runtime, authorized, run, refusal)
        return None
    try:
        start = await _begin_run(runtime, authorized, run, resource_locks)
    except BaseException:
        charge.refund()
        raise
    if start is None:
        charge.refund()
        return None
    claim, epochs = start
    try:
        authorized = await confirm_authorization(runtime, authorized, epochs, claim)
    except BaseException as error:
        charge.settle(error)
        raise
    guards = None if authorized.approval is None else authorized.approval.guards
    return ClaimedRun(authorized=authorized, tool=tool, claim=replace(claim, guards=guards), charge=charge)


async def authorize_flow(runtime: Runtime, run: PendingRun) -> tuple[Authorized, Problem | None]:
    """Authorize a flow that has begun as of now. What ends its authority is returned: its outcome says it."""
    validated = run.validated
    try:
        _require_runnable(runtime, run)
        if validated.call.request.flow_depth > MAX_FLOW_DEPTH:
            raise FlowFailed(f"flows call flows more than {MAX_FLOW_DEPTH} levels deep; one of them may call itself")
        authority = await runtime.authority.load_tenant(validated.call.tenant)
        return await authorize(runtime, validated, authority, may_ask=run.has_approval_request), None
    except Problem as problem:
        if problem.spec.retryable:
            raise RunNotReady(problem.message, seconds=_RETRY_SOON_SECONDS) from problem
        decision = problem.decision or Decision(rules=(), epochs=_NO_EPOCHS)
        return Authorized(validated=validated, decision=decision), problem


async def _claim_flow(runtime: Runtime, run: PendingRun) -> ClaimedRun | None:
    """Claim a flow that has begun, to record its end.

    Its approval and its limits were for its beginning: what its steps have done is done, and nobody can refuse that.
    """
    authorized, refusal = await authorize_flow(runtime, run)
    if run.has_approval_request and refusal is None:
        # Its entries name the approval, as long as that still is for this call.
        with contextlib.suppress(Problem):
            authorized = await require_approval(runtime, authorized, has_started=True, may_have_acted=True)
    if run.state is not State.QUEUED:
        release_lost_execution(runtime, authorized, run.epoch, run.owner)
    start = await _begin_run(runtime, authorized, run, ())
    if start is None:
        return None
    return ClaimedRun(
        authorized=authorized,
        tool=runtime.driver.find_tool(authorized.contract),
        # What an owner before this one did is known: it is recorded of the steps.
        claim=replace(start[0], is_untouched=True),
        charge=Charge(runtime, authorized, None),
        refusal=refusal,
    )


async def _end_refused_run(runtime: Runtime, authorized: Authorized, run: PendingRun, refusal: Problem) -> None:
    """End a run that may not be executed: it is begun only to record its end."""
    release_lost_execution(runtime, authorized, run.epoch, run.owner)
    if isinstance(refusal, OutcomeUnknown):
        await _record_unknown(runtime, authorized, run)
        return
    if run.has_approval_request and run.epoch == 0:
        await end_unstarted_call(runtime, authorized.call, run.queued_at, refusal)
        return
    start = await _begin_run(runtime, authorized, run, ())
    if start is not None:
        claim = start[0]
        refusal = refusal.replace(nothing_happened=not claim.is_takeover)
        await runtime.writer.put(audit.build_abandoned_row(runtime, authorized, claim, refusal))


def _require_runnable(runtime: Runtime, run: PendingRun) -> None:
    contract = run.validated.contract
    if run.state is not State.QUEUED and not is_safe_to_repeat(contract):
        # Its owner is gone and may have acted, and the upstream cannot recognise a repeated call.
        raise OutcomeUnknown("the worker that executed this call is gone, and it is unknown whether the tool acted")
    if run.cancel_requested and not run.is_flow_begun:
        raise Canceled("the call was canceled before it was resumed", nothing_happened=run.epoch == 0)
    max_takeovers = runtime.settings.runs.most_takeovers
    if run.state is not State.QUEUED and run.takeovers >= max_takeovers:
        raise TooManyTakeovers(
            f"{run.takeovers + 1} workers died while they executed this call",
            details={"takeovers": run.takeovers, "most": max_takeovers},
        )
    if run.is_expired:
        raise GrantEnded("the delegation behind this call ended while it waited", nothing_happened=True)


async def _require_open_flow(runtime: Runtime, run: PendingRun) -> None:
    """Refuse to begin a step whose flow has ended: a worker that stood still for long made it too late."""
    call = run.validated.call
    origin = call.request.origin
    if call.request.flow_depth == 0 or origin is None or origin.parent_call_id is None or run.epoch > 0:
        return
    if await has_flow_ended(runtime, call.tenant, origin.parent_call_id, is_step=call.request.undoes is None):
        raise Canceled("the flow that made this call had ended before it began", nothing_happened=True)


async def _record_unknown(runtime: Runtime, authorized: Authorized, run: PendingRun) -> None:
    """Record the outcome as UNKNOWN under the lost owner's epoch: if it still lives, its own outcome replaces this."""
    if run.state is State.RUNNING:
        claim = Claim(call_id=authorized.call.call_id, epoch=run.epoch)
        await runtime.writer.put(audit.build_lost_row(runtime, authorized, claim))


async def _begin_run(
    runtime: Runtime, authorized: Authorized, run: PendingRun, resource_locks: tuple[ResourceLock, ...]
) -> tuple[Claim, Epochs] | None:
    validated = authorized.validated
    call, seconds = validated.call, validated.contract.timeout.effective_seconds
    intent = audit.build_intent_entry(runtime, authorized, call.call_id, trace_step(None, State.RUNNING))
    commit = await _commit_begin(runtime, call, run.epoch, seconds, intent, resource_locks)
    if commit is None:
        return None
    claim = Claim(
        call_id=call.call_id, epoch=run.epoch + 1, resource_locks=resource_locks, is_untouched=run.is_untouched
    )
    return claim, commit.epochs


async def _commit_begin(
    runtime: Runtime,
    call: CallContext,
    epoch: int,
    seconds: float,
    entry: tuple[str, bytes, bytes | None],
    resource_locks: tuple[ResourceLock, ...] = (),
) -> CommitResult | None:
    """Begin the run by compare-and-set: of all workers that try, one succeeds.

    None if the run waits for a resource lock or has ended. Waits for the commit's result however long it takes: without
    it, the run's owner would be unknown.
    """
    if not runtime.lease.is_valid:
        raise RunNotReady("this worker's lease is not valid", seconds=_RETRY_SOON_SECONDS)
    margin = runtime.settings.timing.margin_seconds
    row = BeginRunRow(call.tenant, call.call_id, epoch, seconds, margin, *entry, resource_locks)
    commit = await runtime.queue.put(row, seconds=float("inf"))
    if commit.begin_result in ("busy", "lapsed"):
        raise RunNotReady("another worker has it, or this worker's lease has expired", seconds=_RETRY_SOON_SECONDS)
    if commit.begin_result == "unapproved":
        # It expired just now, or it was withdrawn: the next attempt finds that out and ends the call.
        raise RunNotReady("its approval no longer holds", seconds=_RETRY_SOON_SECONDS)
    return commit if commit.begin_result == "begun" else None


async def _end_run(runtime: Runtime, call: CallContext, row: asyncpg.Record, problem: Problem) -> None:
    """End a run that can no longer be executed: begin it only to record its end."""
    if row["needs_approval"] and row["owner_epoch"] == 0:
        await end_unstarted_call(runtime, call, row["queued_at"], problem)
        return
    entry, epoch = audit.build_unmade_entry(runtime, call, problem), row["owner_epoch"]
    load_steps = partial(
        load_steps_of_lost_flow, runtime, call.tenant, call.call_id, has_input=row["input"] is not None
    )
    if epoch > 0 and not await _end_steps(runtime, call, load_steps):
        return
    if await _commit_begin(runtime, call, epoch, 1.0, entry) is not None:
        steps = await load_steps() if epoch > 0 else FlowSteps()
        is_untouched = steps.has_calls or row["untouched_epoch"] == epoch
        claim = Claim(call_id=call.call_id, epoch=epoch + 1, is_untouched=is_untouched)
        problem = problem.replace(nothing_happened=not claim.is_takeover)
        if steps.has_calls:
            report = await report_lost_flow(runtime, call, steps, problem.spec.slug) if steps.may_have_acted else None
            problem = name_steps(problem, steps, compensation=report)
        await runtime.writer.put(audit.build_unmade_closing_row(runtime, call, claim, problem))


async def _end_steps(runtime: Runtime, call: CallContext, load_steps: Callable[[], Awaitable[FlowSteps]]) -> bool:
    """Cancel the steps of a flow whose definition or input is gone; tell whether all have ended.

    The end of each wakes the flow. A call that is no flow has no steps.
    """
    steps = await load_steps()
    if steps.plans and await settle_plans(runtime, call.tenant, call.call_id, steps.plans):
        steps = await load_steps()
    if steps.plans:
        raise RunNotReady("another worker may be making a call of it", seconds=_RETRY_SOON_SECONDS)
    # Without the keys of the tenant none of them can be canceled, nor go on.
    with contextlib.suppress(UnsealFailed):
        if await cancel_steps(runtime, call.caller, steps.calls.values()):
            steps = await load_steps()
    return not any(each.record.is_open for each in steps.calls.values())


def should_requeue(executed: Executed) -> bool:
    """True if this worker lost its lease before dispatch, so the run can be requeued."""
    problem = executed.problem
    cause = problem.__cause__ if isinstance(problem, OutcomeUnknown) else problem
    return isinstance(cause, Unavailable) and cause.nothing_happened


async def requeue_run(
    runtime: Runtime, authorized: Authorized, claim: Claim, *, seconds: float = _RETRY_SOON_SECONDS
) -> None:
    """Requeue a run as it was before this worker began it; retry until it succeeds, since no other worker can."""
    tenant, is_untouched = authorized.call.tenant, not claim.is_takeover
    entry_row = audit.build_yield_entry(runtime, authorized, claim.call_id, State.RUNNING)
    while True:
        try:
            async with runtime.store.write_transaction() as connection:
                await connection.execute(
                    _SQL["undo_run_begin"],
                    tenant,
                    claim.call_id,
                    claim.epoch,
                    is_untouched,
                    seconds,
                )
                await connection.execute(_SQL["insert_audit_entry"], *entry_row)
        except CONNECTION_ERRORS as error:
            log.warning("run_not_handed_back", call_id=claim.call_id, reason=repr(error))
            await asyncio.sleep(_RETRY_SOON_SECONDS)
        else:
            return
