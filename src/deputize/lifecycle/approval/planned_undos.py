"""Ask people once about an undo of several steps, and begin each of its further steps only as they saw it.

The first step that needs approval waits for it like any call. Its request shows the steps after it, demands what they
demand together, and has for each of them the digests of everything that an approval of that step alone would bind. A
further step is a call of its own that passes the whole lifecycle; only if its decision is to ask, an approved request
is looked for. If anything differs, the step asks alone. Its claim of the journal entry uses it up.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

from deputize.core.call import CallRequest, PlannedUndo
from deputize.core.caller import Caller
from deputize.core.clock import make_first_id
from deputize.core.decision import ApprovalRequirement
from deputize.core.errors import Problem, Unavailable
from deputize.core.value_types import frozen
from deputize.govern.approvals.binding import BindingParts
from deputize.lifecycle.approval.approval_request import (
    UNDO_PLAN_GROUP,
    ApprovalContents,
    UndoApproval,
    collect_binding_parts,
    describe_rules,
    describe_suspicions,
)
from deputize.lifecycle.authorize import authorize
from deputize.lifecycle.journal_reader import load_undone_calls, read_journal
from deputize.lifecycle.phases import ApprovalGrant, Authorized, CallContext
from deputize.lifecycle.preview.preview import PreviewResult, preview_call
from deputize.lifecycle.recording.audit import UNDO_SCOPE
from deputize.lifecycle.recording.redaction import get_redaction_plan
from deputize.lifecycle.recording.stored_call import restore_caller, serialize_caller
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.validate import validate_call
from deputize.store.pool import CONNECTION_ERRORS
from deputize.store.queries import load_statements

ReceiveCall = Callable[[Caller, CallRequest], CallContext]
_SQL = load_statements("approvals")
_AT_ONCE: Final = 8
_STEP_MS: Final = 5_000
# By how much the clock of a gateway may differ from that of the database.
_MAX_SKEW_MS: Final = 3_600_000
# The request itself is bound to when it expires, and so are its steps.
_NO_TIME: Final = datetime.fromtimestamp(0, UTC)
# The preview of a step on which another one stands is not known before its turn.
_NO_PREVIEW: Final = b""


@frozen
class PlannedApproval:
    """What an approval request says of an undo, None for other calls, and what its further steps demand."""

    undo: UndoApproval | None = None
    demands: tuple[ApprovalRequirement, ...] = ()

    def add_demands(self, authorized: Authorized) -> Authorized:
        decision = authorized.decision
        return replace(authorized, decision=replace(decision, requirements=decision.requirements + self.demands))


@frozen
class _Step:
    """A further step of the plan, decided now: as people see it, and what its approval binds if it needs one."""

    entry_id: str
    shown: dict[str, Any]
    parts: BindingParts | None = None
    demands: tuple[ApprovalRequirement, ...] = ()


async def plan_undo_approval(
    runtime: Runtime, authorized: Authorized, call_preview: PreviewResult, receive: ReceiveCall
) -> PlannedApproval:
    """Decide on the steps after an undo that needs approval, so that people can approve them together."""
    call = authorized.call
    request = call.request
    if request.undoes is None:
        return PlannedApproval()
    slots = asyncio.Semaphore(_AT_ONCE)
    waiting_ids = {each.entry_id for each in request.undo_plan}

    async def decide_step(planned: PlannedUndo) -> _Step:
        async with slots:
            return await _decide_step(runtime, call.caller, planned, waiting_ids, receive)

    steps = await asyncio.gather(*(decide_step(each) for each in request.undo_plan[1:]))
    bound_steps = {each.entry_id: each.parts for each in steps if each.parts is not None}
    with _report_lost_database():
        async with read_journal(runtime, call.tenant) as connection:
            undone_calls = await load_undone_calls(connection, call.tenant, [request.undoes, *waiting_ids])
    agents = {entry_id: undone.agents for entry_id, undone in undone_calls.items()}
    undo = UndoApproval(
        requester=serialize_caller(call.caller).decode(),
        source_agents=tuple(
            sorted({agent for each in (request.undoes, *bound_steps) for agent in agents.get(each, ())})
        ),
    )
    if not bound_steps:
        return PlannedApproval(undo=undo)
    first = _show_step(authorized, request.undo_plan[0], call_preview, decision="ask")
    return PlannedApproval(
        undo=replace(
            undo,
            shown=[
                {**each, "source_agents": agents.get(each["entry_id"], ())}
                for each in (first, *(step.shown for step in steps))
            ],
            step_digests={entry_id: parts.compute_part_digests() for entry_id, parts in bound_steps.items()},
        ),
        demands=_list_further_demands(authorized.decision.requirements, [each.demands for each in steps]),
    )


def _list_further_demands(
    own: Sequence[ApprovalRequirement], of_steps: Sequence[Sequence[ApprovalRequirement]]
) -> tuple[ApprovalRequirement, ...]:
    """List what the steps demand beside what the first one does, each demand once."""
    further: list[ApprovalRequirement] = []
    for demands in of_steps:
        further += [each for each in demands if each not in own and each not in further]
    return tuple(further)


async def decide_call(runtime: Runtime, call: CallContext) -> Authorized:
    """Decide on a call that is not made yet, as it will be decided on; raise what would refuse it."""
    authority = await runtime.authority.load_tenant(call.tenant)
    run_job = partial(runtime.jobs.run_job, call.tenant)
    validated = await validate_call(call, authority, runtime.metrics, run_job)
    if (hooks := runtime.hooks.find_tool_hooks(validated.tool.name)) is not None:
        token_decision = authority.check_token(call.caller, validated.contract)
        validated = await hooks.run_before(hooks.begin(validated), token_decision, run_job)
    return await authorize(runtime, validated, authority, may_ask=True)


async def _decide_step(
    runtime: Runtime, caller: Caller, planned: PlannedUndo, waiting_ids: set[str], receive: ReceiveCall
) -> _Step:
    """Decide on a step that is not made yet. One that would be refused is shown, and not approved."""
    try:
        request = replace(planned.request, dry_run=True, deadline_ms=_STEP_MS)
        step = await decide_call(runtime, receive(caller, request))
        if not step.needs_people:
            return _Step(entry_id=planned.entry_id, shown=_show_step(step, planned, None, decision="allow"))
        if step.validated.outlives_request:
            return _Step(entry_id=planned.entry_id, shown=_show_step(step, planned, None, decision="alone"))
        if (await find_plan_approval(runtime, step)).approval is not None:
            return _Step(entry_id=planned.entry_id, shown=_show_step(step, planned, None, decision="approved"))
        preview = None if planned.entries_above & waiting_ids else await preview_call(runtime, step)
    except Problem as problem:
        shown = _show_planned(planned, decision="refused")
        return _Step(entry_id=planned.entry_id, shown={**shown, "detail": problem.message})
    if preview is not None and preview.unmet_preconditions:
        shown = _show_step(step, planned, None, decision="refused")
        return _Step(entry_id=planned.entry_id, shown={**shown, "detail": f"not met: {preview.unmet_preconditions[0]}"})
    return _Step(
        entry_id=planned.entry_id,
        shown=_show_step(step, planned, preview, decision="ask"),
        parts=_collect_parts(runtime, step, planned.entry_id, preview),
        demands=step.decision.requirements,
    )


def _collect_parts(runtime: Runtime, step: Authorized, entry_id: str, preview: PreviewResult | None) -> BindingParts:
    """Collect what an approval of this step alone would bind; its journal entry stands for the call's id."""
    if preview is None:
        code_digest = runtime.driver.get_code_digest(step.contract)
        return collect_binding_parts(runtime, step, entry_id, _NO_PREVIEW, code_digest, _NO_TIME)
    return collect_binding_parts(runtime, step, entry_id, preview.digest, preview.code_digest, _NO_TIME)


def _show_planned(planned: PlannedUndo, **more: Any) -> dict[str, Any]:
    return {
        "entry_id": planned.entry_id,
        "undone_call_id": planned.undone_call_id,
        "undone_tool": planned.undone_tool,
        "tool": planned.request.tool,
        "arguments": None,
        "origins": planned.origins,
        "rules": [],
        "preview": None,
        "detail": None,
        **more,
    }


def _show_step(step: Authorized, planned: PlannedUndo, preview: PreviewResult | None, **more: Any) -> dict[str, Any]:
    validated = step.validated
    return _show_planned(
        planned,
        version=step.contract.version,
        effects=step.contract.effects,
        arguments=get_redaction_plan(validated.tool, "input").apply(validated.call_input)[0],
        rules=describe_rules(step.decision.requirements),
        preview=None if preview is None else preview.document,
        **describe_suspicions(validated),
        **more,
    )


async def find_plan_approval(runtime: Runtime, authorized: Authorized) -> Authorized:
    """Return a step of an undo with the approval that people gave for the plan, if it is as they saw it.

    Otherwise it is returned as it is, and asks alone. Only a call inside its request begins by the approval of a plan:
    a run waits for one of its own.
    """
    call, decision = authorized.call, authorized.decision
    caller, entry_id = call.caller, call.request.undoes
    if entry_id is None or caller.agents or authorized.validated.outlives_request:
        return authorized
    found = await _load_approvals(runtime, caller, entry_id)
    if not found:
        return authorized
    preview = await preview_call(runtime, authorized)
    if preview.unmet_preconditions:
        return authorized
    parts = _collect_parts(runtime, authorized, entry_id, preview)
    # What was approved is one of these: with the preview, or without one.
    digests = [each.compute_part_digests() for each in (parts, replace(parts, preview=_NO_PREVIEW))]
    for approval_id, undo in found:
        if undo.step_digests[entry_id] in digests and await _has_authority(runtime, call.tenant, undo):
            approval = ApprovalGrant(
                request_id=approval_id,
                demands=decision.requirements,
                policy_digest=decision.policy_digest,
                code_digest=preview.code_digest,
                guards=preview.guards,
            )
            return replace(authorized, approval=approval)
    return authorized


async def _has_authority(runtime: Runtime, tenant: str, undo: UndoApproval) -> bool:
    """Tell whether who requested the approval was not revoked since, even if the person has authority again."""
    try:
        requester = restore_caller(undo.requester.encode(), runtime.settings.identity.issuers)
        (await runtime.authority.load_tenant(tenant)).revocations.check(requester)
    except Problem:
        return False
    return True


@contextlib.contextmanager
def _report_lost_database() -> Iterator[None]:
    try:
        yield
    except CONNECTION_ERRORS as error:
        raise Unavailable(
            "PostgreSQL became unreachable while the approval of an undo was looked up",
            retry_after_ms=1000,
            nothing_happened=True,
        ) from error


async def _load_approvals(runtime: Runtime, caller: Caller, entry_id: str) -> list[tuple[str, UndoApproval]]:
    """Load the approvals of the caller's undos that have this step, newest first."""
    now_ms = runtime.clock.epoch_ms()
    first_id = make_first_id(now_ms - runtime.settings.approvals.step_seconds[-1] * 1000 - _MAX_SKEW_MS)
    with _report_lost_database():
        async with runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(
                _SQL["find_plan_approvals"], caller.tenant, first_id, UNDO_PLAN_GROUP, caller.user, UNDO_SCOPE,
                UUID(entry_id).bytes,
            )  # fmt: skip
    if not rows:
        return []
    keys = await runtime.keys.get(caller.tenant)

    def open_approvals() -> list[tuple[str, UndoApproval]]:
        approvals: list[tuple[str, UndoApproval]] = []
        for row in rows:
            undo = ApprovalContents.decrypt(keys, str(row["id"]), row["presentation"]).undo
            has_step = undo is not None and entry_id in undo.step_digests
            if row["is_denied"] and (has_step or str(row["undoes"]) == entry_id):
                # An earlier yes does not outlive a no.
                break
            # By both clocks, as for every approval.
            if undo is not None and has_step and row["expires_at"].timestamp() * 1000 > now_ms:
                approvals.append((str(row["id"]), undo))
        return approvals

    return await asyncio.to_thread(open_approvals)
