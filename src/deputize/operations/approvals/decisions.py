"""Decide approval requests: check who may, and record the vote, in one transaction under the tenant's barrier.

An approval that meets every rule's requirements queues the call's run in the same commit; a denial ends the call.
An undecided request is denied at its deadline. Every refused attempt is recorded in the audit log.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import asyncpg
import structlog

from deputize.acts.act import commit_act
from deputize.core.caller import TERMINAL_ISSUER, Caller
from deputize.core.errors import (
    ApprovalExpired,
    ApprovalRejected,
    ApprovalRequestChanged,
    HumanTaskClosed,
    HumanTaskNotFound,
    MalformedRequest,
    NotAnApprover,
    PermissionProblem,
    Problem,
)
from deputize.core.outcome import render_failure_envelope
from deputize.core.states import State
from deputize.evidence.audit_entries import AuditContext, encode_entry
from deputize.govern.approvals import approvers
from deputize.govern.approvals.approval_codes import build_terminal_caller
from deputize.govern.approvals.requirements import Vote, is_plan_met
from deputize.lifecycle.approval.approval_request import ApprovalContents
from deputize.lifecycle.approval.presentation import describe_list_item
from deputize.lifecycle.approval.recheck_approval import has_expired
from deputize.lifecycle.call_access import CallFilter, list_reachable
from deputize.lifecycle.recording.audit import trace_step
from deputize.lifecycle.runtime import Runtime
from deputize.operations.approvals.batch_checks import require_alike, require_bindings
from deputize.operations.approvals.decision_measurement import measure_decision
from deputize.operations.approvals.request_access import ApprovalRequestView, load_request_view
from deputize.store.commit_rows import AuditEntryRow
from deputize.store.keys import KeySet
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

DecisionAction = Literal["approve", "deny", "break_glass"]
_SQL = load_statements("approvals")
_MAX_REASON_LENGTH = 2000
TERMINAL_CODE = "terminal-code"
log = structlog.get_logger(__name__)


class ApprovalDecisions:
    """Approval decisions; `complete_caller` gives a caller identified without a token the fields of every caller."""

    def __init__(self, runtime: Runtime, complete_caller: Callable[[Caller], Awaitable[Caller]]) -> None:
        self._runtime = runtime
        self._complete_caller = complete_caller

    async def list_requests(
        self,
        caller: Caller,
        *,
        state: str | None = "open",
        before: str | None = None,
        limit: int = 50,
        with_arguments: bool = False,
    ) -> list[dict[str, Any]]:
        """List requests for the person's groups; administrators see the whole tenant's, others their own.

        Each of them may be opened by whom it is listed for. With their arguments, a request has those that it shows,
        None if it is large.
        """
        await self._check_revocations(caller)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            if caller.console and not caller.is_admin and state == "open":
                rows = await connection.fetch(
                    _SQL["list_approval_requests_for_groups"], caller.tenant, sorted(caller.groups), before, limit,
                    with_arguments,
                )  # fmt: skip
            else:

                async def fetch(limits: CallFilter) -> list[asyncpg.Record]:
                    found: list[asyncpg.Record] = await connection.fetch(
                        _SQL["list_approval_requests"], caller.tenant, limits.user, limits.agent, state, before, limit,
                        limits.tools, limits.classes, limits.hidden_tools, with_arguments,
                    )  # fmt: skip
                    return found

                rows = await list_reachable(self._runtime, caller, fetch)
        items = [describe_list_item(self._runtime, row) for row in rows]
        if not with_arguments:
            return items
        keys = await self._runtime.keys.get(caller.tenant)
        arguments = await asyncio.to_thread(lambda: [_open_arguments(keys, row) for row in rows])
        return [{**item, "arguments": each} for item, each in zip(items, arguments, strict=True)]

    async def get_request(self, caller: Caller, approval_id: str) -> dict[str, Any]:
        """Return the whole approval request, and whether this person may decide it."""
        await self._check_revocations(caller)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            approval_request = await load_request_view(self._runtime, connection, caller, approval_id)
        refusal = self._find_refusal(caller, approval_request, "approve")
        return {
            **approval_request.to_json(self._runtime),
            "may_decide": refusal is None,
            "may_deny": self._find_refusal(caller, approval_request, "deny") is None,
            "why_not": "" if refusal is None else refusal.message,
            "why_not_rule": None if refusal is None else refusal.details.get("rule"),
        }

    async def approve(self, caller: Caller, approval_id: str, *, binding: str, reason: str = "") -> dict[str, Any]:
        """Record one person's approval; `binding` is that of the request they saw, and a changed one is refused."""
        return await self._decide(caller, "approve", approval_id, reason, binding)

    async def deny(
        self, caller: Caller, approval_id: str, *, reason: str, binding: str | None = None
    ) -> dict[str, Any]:
        """Record one person's denial: one is enough. The caller reads the reason."""
        return await self._decide(caller, "deny", approval_id, reason, binding)

    async def break_glass(self, caller: Caller, approval_id: str, *, binding: str, reason: str) -> dict[str, Any]:
        """Record one vote for an emergency override; two end the wait, and every notified group is informed."""
        return await self._decide(caller, "break_glass", approval_id, reason, binding)

    async def decide_many(
        self,
        caller: Caller,
        approval_ids: Sequence[str],
        action: Literal["approve", "deny"],
        *,
        reason: str,
        vary: Sequence[str],
        bindings: Mapping[str, str],
    ) -> list[dict[str, Any]]:
        """Decide several calls that differ only in the named arguments; `bindings` are of the requests they saw, by id.

        All are loaded and compared first, then decided one by one, each as it was seen, or if denied, as it was loaded.
        """
        await self._check_revocations(caller)
        approval_ids = list(dict.fromkeys(approval_ids))
        if action == "approve":
            require_bindings(approval_ids, bindings)
        approval_requests = [await self._load_for_decision(caller, action, each) for each in approval_ids]
        require_alike(approval_requests, frozenset(vary))
        return [
            await self._decide_one(caller, action, approval_request, reason, bindings.get(approval_id))
            for approval_id, approval_request in zip(approval_ids, approval_requests, strict=True)
        ]

    async def verify_terminal_code(self, caller: Caller, approval_id: str, code: str) -> Caller:
        """Identify the person who decides in development by the code that the terminal shows for the request."""
        # Wrong codes lock out the caller who sent them, and no one else.
        runtime, caller_key = self._runtime, "\n".join((caller.tenant, caller.issuer, *caller.subjects))
        try:
            async with runtime.store.read_transaction(caller.tenant) as connection:
                approval_request = await load_request_view(runtime, connection, caller, approval_id)
            if runtime.approval_codes is None or not runtime.approval_codes.verify_code(
                approval_request.id, bytes(approval_request.row["binding"]), code, caller=caller_key
            ):
                raise _wrong_code_error(runtime, approval_request.id, caller_key)
        except Problem as problem:
            await self._record_refusal(caller, "code", approval_id, problem)
            raise
        return await self._complete_caller(
            build_terminal_caller(approval_request.open_approval, now=runtime.clock.epoch_ms() // 1000)
        )

    async def _load_for_decision(self, caller: Caller, action: DecisionAction, approval_id: str) -> ApprovalRequestView:
        try:
            async with self._runtime.store.read_transaction(caller.tenant) as connection:
                return await load_request_view(self._runtime, connection, caller, approval_id)
        except Problem as problem:
            await self._record_refusal(caller, action, approval_id, problem)
            raise

    async def _decide_one(
        self,
        caller: Caller,
        action: DecisionAction,
        approval_request: ApprovalRequestView,
        reason: str,
        binding: str | None,
    ) -> dict[str, Any]:
        result: dict[str, Any] = {
            "approval_id": approval_request.id,
            "arguments": approval_request.contents.presentation["arguments"],
        }
        try:
            return result | await self._decide(
                caller, action, approval_request.id, reason, binding or approval_request.binding
            )
        except (PermissionProblem, HumanTaskClosed, HumanTaskNotFound) as problem:
            return result | {
                "state": approval_request.row["state"],
                "refusal_slug": problem.spec.slug,
                "why_not": problem.message,
            }

    async def _decide(
        self, caller: Caller, action: DecisionAction, approval_id: str, reason: str, binding: str | None
    ) -> dict[str, Any]:
        if action != "approve" and not reason.strip():
            raise MalformedRequest(
                "a reason is required: it is recorded, and the caller reads it", details={"field": "reason"}
            )
        if len(reason) > _MAX_REASON_LENGTH:
            raise MalformedRequest(
                f"the reason is longer than {_MAX_REASON_LENGTH} characters", details={"field": "reason"}
            )
        await self._runtime.keys.load(caller.tenant)

        async def record_decision(connection: Connection) -> tuple[dict[str, Any], ApprovalRequestView]:
            approval_request = await load_request_view(self._runtime, connection, caller, approval_id, for_update=True)
            return await self._record_vote(
                connection, caller, action, approval_request, reason, binding
            ), approval_request

        try:
            answer, approval_request = await commit_act(self._runtime, caller, action, approval_id, record_decision, ())
        except Problem as problem:
            if not problem.spec.retryable:
                await self._record_refusal(caller, action, approval_id, problem)
            raise
        await measure_decision(self._runtime, self._complete_caller, approval_request, answer["state"])
        if self._runtime.approval_codes is not None and caller.issuer == TERMINAL_ISSUER and answer["state"] == "open":
            self._runtime.approval_codes.use_code(answer["approval_id"])
        return answer

    async def _record_vote(
        self,
        connection: Connection,
        caller: Caller,
        action: DecisionAction,
        approval_request: ApprovalRequestView,
        reason: str,
        binding: str | None,
    ) -> dict[str, Any]:
        counts = self._require_can_decide(caller, approval_request, action)
        if binding is not None and binding != approval_request.binding:
            raise ApprovalRequestChanged(
                "the approval request changed after you read it", details={"approval_id": approval_request.id}
            )
        vote = Vote(
            voter=caller.user,
            approve=action != "deny",
            requirement_indexes=counts,
            is_break_glass=action == "break_glass",
        )
        voter = await connection.fetchval(
            _SQL["insert_vote"], caller.tenant, approval_request.id, vote.voter, vote.approve, sorted(counts),
            sorted(caller.methods), reason, vote.is_break_glass,
        )  # fmt: skip
        if voter is None:
            raise NotAnApprover(
                "you have already decided on this approval request", details={"rule": approvers.ONE_VOTE_EACH}
            )
        if action == "deny":
            return await self._deny_call(connection, caller, approval_request, reason)
        votes = (*approval_request.open_approval.votes, vote)
        if not (is_plan_met(approval_request.open_approval.plan, votes) or approvers.is_break_glass_met(votes)):
            return _describe_decision(approval_request, "open", approval_request.call_state)
        if action == "break_glass":
            log.critical(
                "glass_broken", tenant=caller.tenant, approval_id=approval_request.id, call_id=approval_request.call_id
            )
            await connection.execute(_SQL["notify_groups_of_break_glass"], caller.tenant, approval_request.id)
        if not await connection.fetchval(_SQL["approve_run"], caller.tenant, approval_request.id, caller.user, reason):
            raise _expired_error(approval_request)
        await self._write_entry(connection, caller, approval_request, action, State.APPROVED)
        return _describe_decision(approval_request, "approved", State.QUEUED)

    def _find_refusal(
        self, caller: Caller, approval_request: ApprovalRequestView, action: DecisionAction
    ) -> Problem | None:
        try:
            self._require_can_decide(caller, approval_request, action)
        except Problem as problem:
            return problem
        return None

    def _require_can_decide(
        self, caller: Caller, approval_request: ApprovalRequestView, action: DecisionAction
    ) -> frozenset[int]:
        """Return the requirements that this person's vote counts for, or raise the refusal."""
        runtime = self._runtime
        if approval_request.row["state"] != "open":
            if approval_request.row["state"] == "expired":
                raise _expired_error(approval_request)
            raise HumanTaskClosed(
                f"this approval request is already {approval_request.row['state']}",
                details={"approval_id": approval_request.id},
            )
        if approval_request.row["expired"] or has_expired(runtime, approval_request.row["expires_at"]):
            raise _expired_error(approval_request)
        # A sign-in is recent only if both clocks, the gateway's and PostgreSQL's, agree.
        now = max(runtime.clock.epoch_ms() // 1000, int(approval_request.row["now"].timestamp()))
        if action == "break_glass":
            approvers.check_break_glass(
                caller, approval_request.open_approval, now=now, settings=runtime.settings.approvals
            )
            return frozenset()
        return approvers.check_approver(
            caller,
            approval_request.open_approval,
            now=now,
            settings=runtime.settings.approvals,
            is_denial=action == "deny",
        )

    async def _deny_call(
        self, connection: Connection, caller: Caller, approval_request: ApprovalRequestView, reason: str
    ) -> dict[str, Any]:
        """End the call as denied; its envelope says who denied it, and why."""
        problem = ApprovalRejected(
            f"an approver denied this call: {reason}",
            details={"approval_id": approval_request.id, "reason": reason},
            nothing_happened=True,
        )
        runtime, call_id, tenant = self._runtime, approval_request.call_id, caller.tenant
        keys = runtime.keys.find(tenant)
        assert keys is not None  # loaded before the transaction began
        outcome = render_failure_envelope(
            problem, call_id=call_id, state=State.DENIED, trace_id=approval_request.row["trace"], extra_fields={}
        )
        entry_id, body = self._build_entry(caller, approval_request, "deny", State.DENIED, problem)
        ended_call_id = await connection.fetchval(
            _SQL["end_approval_request"],
            [tenant],
            "denied",
            caller.user,
            reason,
            [tenant],
            [call_id],
            [approval_request.row["owner_epoch"]],
            [State.DENIED],
            [problem.spec.slug],
            [keys.seal(call_id, "outcome", outcome)],
            [entry_id],
            [body],
        )
        if ended_call_id is None:
            raise HumanTaskClosed("the call has already ended", details={"approval_id": approval_request.id})
        return {"approval_id": approval_request.id, "call_id": call_id, "state": "denied", "call_state": State.DENIED}

    async def _write_entry(
        self,
        connection: Connection,
        caller: Caller,
        approval_request: ApprovalRequestView,
        action: DecisionAction,
        outcome: State,
    ) -> None:
        entry_id, body = self._build_entry(caller, approval_request, action, outcome)
        await connection.execute(_SQL["insert_audit_entry"], caller.tenant, entry_id, approval_request.call_id, body)

    def _build_entry(
        self,
        caller: Caller,
        approval_request: ApprovalRequestView,
        action: DecisionAction,
        outcome: State,
        problem: Problem | None = None,
    ) -> tuple[str, bytes]:
        """Build the audit entry of the call's new state; each vote has its own row besides."""
        entry_id, row = self._runtime.clock.new_id(), approval_request.row
        context = AuditContext(
            caller=caller,
            trace_id=row["trace"],
            call_id=approval_request.call_id,
            session=row["session"],
            tool=row["tool"],
            approval_id=approval_request.id,
        )
        states = (State.APPROVED, State.QUEUED) if outcome is State.APPROVED else (outcome,)
        body = encode_entry(
            context, id=entry_id, kind="decision", time=self._runtime.stamps.now(), outcome=outcome, command=action,
            subject=approval_request.id, error=problem.spec.e_number if problem else None,
            passage=trace_step(State.AWAITING_APPROVAL, *states),
        )  # fmt: skip
        return entry_id, body

    async def _record_refusal(self, caller: Caller, action: str, approval_id: str, problem: Problem) -> None:
        entry_id = self._runtime.clock.new_id()
        body = encode_entry(
            AuditContext(caller=caller, trace_id=entry_id.replace("-", ""), session=caller.session),
            id=entry_id, kind="refusal", time=self._runtime.stamps.now(), outcome="refused", command=action,
            subject=approval_id[:64], error=problem.spec.e_number,
        )  # fmt: skip
        await self._runtime.writer.put(AuditEntryRow(caller.tenant, entry_id, None, body, None))

    async def _check_revocations(self, caller: Caller) -> None:
        (await self._runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)


def _wrong_code_error(runtime: Runtime, approval_id: str, caller_key: str) -> NotAnApprover:
    if runtime.approval_codes is None:
        why, advice = "this gateway accepts no terminal codes", "Sign in to the console: only deputize dev shows codes."
    elif (seconds := runtime.approval_codes.get_lockout_seconds(approval_id, caller=caller_key)) > 0:
        why, advice = (
            "too many wrong codes were entered",
            f"Wait {seconds:.0f} seconds, then enter the code that the terminal shows.",
        )
    else:
        why, advice = "wrong code for this approval request", "Read the code in the terminal that deputize dev runs in."
    return NotAnApprover(why, details={"rule": TERMINAL_CODE, "approval_id": approval_id}, advice=advice)


def _expired_error(approval_request: ApprovalRequestView) -> ApprovalExpired:
    return ApprovalExpired(
        "the deadline to decide has passed", details={"approval_id": approval_request.id}, nothing_happened=True
    )


def _describe_decision(approval_request: ApprovalRequestView, state: str, call_state: str) -> dict[str, Any]:
    return {
        "approval_id": approval_request.id,
        "call_id": approval_request.call_id,
        "state": state,
        "call_state": call_state,
    }


def _open_arguments(keys: KeySet, row: asyncpg.Record) -> dict[str, Any] | None:
    if row["presentation"] is None:
        return None
    contents = ApprovalContents.decrypt(keys, str(row["id"]), row["presentation"])
    arguments: dict[str, Any] = contents.presentation["arguments"]
    return arguments
