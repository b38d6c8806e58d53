"""Run every call through its phases: request → validate → authorize → execute → verify → reply.

Every call from every interface passes `Lifecycle.run`. Each phase takes the type that the one before it made, so a
skipped phase does not type-check. This file opens the spans of calls and phases; attempts and the second authorization
of a run have their own where they happen. Deadlines are set in `validate` and only shrink.
"""

from collections.abc import Coroutine
from functools import partial
from typing import Any

from deputize.core.call import CallRequest
from deputize.core.caller import Caller
from deputize.core.clock import Deadline
from deputize.core.contract.tools import FlowTool
from deputize.core.errors import Problem
from deputize.core.outcome import Outcome
from deputize.core.states import State
from deputize.core.telemetry import Span
from deputize.evidence.tracing import describe_end
from deputize.lifecycle.approval.gate import request_approval
from deputize.lifecycle.approval.planned_undos import find_plan_approval
from deputize.lifecycle.authorize import authorize
from deputize.lifecycle.call_reports import report_outcome
from deputize.lifecycle.claim import ClaimGuard
from deputize.lifecycle.durable.active_runs import ActiveRuns
from deputize.lifecycle.durable.flow_run import advance_flow, conclude_flow
from deputize.lifecycle.durable.resource_locks import release_locks
from deputize.lifecycle.durable.resume import (
    ClaimedRun,
    PendingRun,
    claim_run,
    load_pending_run,
    requeue_run,
    should_requeue,
)
from deputize.lifecycle.durable.retry_request import build_retry_request
from deputize.lifecycle.elicitation.round_token import attach_responses
from deputize.lifecycle.execute import dispatch_tool, execute
from deputize.lifecycle.hooks import ToolHooks
from deputize.lifecycle.limits import run_within_limits
from deputize.lifecycle.phases import Authorized, CallContext, CallProgress, Executed, Validated
from deputize.lifecycle.preview.dry_run import perform_dry_run
from deputize.lifecycle.reply import refuse_call, reply
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.submit import continue_as_run, require_valid_callback, submit_run
from deputize.lifecycle.validate import validate_call
from deputize.lifecycle.verify import verify


class Lifecycle:
    """Runs calls through the six phases."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def run(self, caller: Caller, request: CallRequest) -> Coroutine[Any, Any, Outcome]:
        """Run a call to its outcome. Raises nothing a caller could cause: every refusal is an outcome too."""
        call = self._receive(caller, request)
        return self._run_phases(call) if call.trail.tracer is None else self._run_with_trace(call)

    def refuse(self, caller: Caller, request: CallRequest, problem: Problem) -> Coroutine[Any, Any, Outcome]:
        """Refuse a call before its first phase, recorded like every refusal."""
        return self._refuse(self._receive(caller, request), None, problem)

    async def _run_with_trace(self, call: CallContext) -> Outcome:
        with call.trail.start_call(call.request.tool, call.call_id, call.session) as span:
            outcome = await self._run_phases(call)
            await describe_end(span, outcome)
            return outcome

    async def _run_phases(self, call: CallContext) -> Outcome:
        runtime, phase = self.runtime, call.trail.start_phase
        validated: Validated | None = None
        try:
            runtime.lineage.require_no_loss()
            authority = await runtime.authority.load_tenant(call.tenant)
            with phase(Span.VALIDATE):
                run_job = partial(runtime.jobs.run_job, call.tenant)
                validated = await validate_call(call, authority, runtime.metrics, run_job)
                if call.request.input_responses is not None:
                    validated = await attach_responses(runtime, validated, call.request.input_responses)
                if (hooks := self._find_hooks(validated)) is not None:
                    token_decision = authority.check_token(call.caller, validated.contract)
                    validated = hooks.begin(validated)
                    validated = await hooks.run_before(validated, token_decision, run_job)
            with phase(Span.AUTHORIZE):
                authorized = await authorize(runtime, validated, authority, may_ask=call.request.fallback_of is None)
                if call.request.undoes is not None and authorized.needs_people and not call.request.dry_run:
                    authorized = await find_plan_approval(runtime, authorized)
            if call.request.callback is not None:
                require_valid_callback(runtime, authorized)
            outcome = await run_within_limits(runtime, authorized, self._act)
            if runtime.report_call is not None:
                report_outcome(runtime, call, outcome, authorized.decision)
        except Problem as problem:
            if validated is not None and (hooks := self._find_hooks(validated)) is not None:
                validated = await hooks.run_failure(validated, problem)
            outcome = await self._refuse(call, validated, problem)
        return outcome

    async def _refuse(self, call: CallContext, validated: Validated | None, problem: Problem) -> Outcome:
        outcome = await refuse_call(self.runtime, call, validated, problem)
        if self.runtime.report_call is not None:
            report_outcome(self.runtime, call, outcome, problem.decision, problem)
        return outcome

    async def _act(self, authorized: Authorized, progress: CallProgress) -> Outcome:
        """Take the call's route: preview it, request approval, queue it, or execute it now."""
        runtime, call = self.runtime, authorized.call
        if call.request.dry_run:
            return await perform_dry_run(runtime, authorized)
        if authorized.needs_people or authorized.validated.outlives_request:
            outcome = await (
                request_approval(runtime, authorized, self._receive)
                if authorized.needs_people
                else submit_run(runtime, authorized)
            )
            # A repeated key gets the call that was submitted first.
            progress.is_replay = outcome.call_id != call.call_id
            return outcome
        with ClaimGuard(runtime, authorized) as guard:
            with call.trail.start_phase(Span.EXECUTE):
                executed = await execute(runtime, authorized, guard)
            if isinstance(executed, Outcome):
                progress.is_replay = True
                return executed
            if executed.problem is not None and call.request.may_continue:
                continuation = await continue_as_run(runtime, executed)
                if continuation is not None:
                    return continuation
            return await self._finish_call(executed, progress)

    async def retry_call(self, caller: Caller, call_id: str) -> Outcome:
        """Run a failed call again, where that is safe. Raises where it cannot be retried."""
        return await self.run(caller, await build_retry_request(self.runtime, caller, call_id))

    async def resume_run(self, tenant: str, call_id: str, active_runs: ActiveRuns) -> None:
        """Run a queued call to its outcome. It was validated when it was queued, and passes every later phase."""
        run = await load_pending_run(self.runtime, tenant, call_id)
        if run is None:
            return
        is_waiting_flow = run.is_flow_begun and run.state is State.QUEUED
        if is_waiting_flow and not await advance_flow(self.runtime, run):
            return
        call = run.validated.call
        if call.trail.tracer is None:
            await self._resume(run, active_runs)
            return
        with call.trail.start_call(call.request.tool, call_id, call.session, Span.RUN) as span:
            outcome = await self._resume(run, active_runs)
            if outcome is not None:
                await describe_end(span, outcome)

    async def _resume(self, pending_run: PendingRun, active_runs: ActiveRuns) -> Outcome | None:
        runtime, tenant = self.runtime, pending_run.validated.call.tenant
        run = await claim_run(runtime, pending_run)
        if run is None:
            return None
        try:
            with run.charge, ClaimGuard(runtime, run.authorized, run.claim):
                if isinstance(run.tool, FlowTool):
                    return await self._run_flow(run, pending_run)
                return await self._run_claim(run, active_runs)
        finally:
            release_locks(runtime, tenant, run.claim.call_id, run.claim.resource_locks)

    async def _run_claim(self, run: ClaimedRun, active_runs: ActiveRuns) -> Outcome | None:
        """Run the tool to the call's outcome; None if the run was requeued."""
        runtime, authorized, claim = self.runtime, run.authorized, run.claim
        phase = authorized.call.trail.start_phase
        with phase(Span.EXECUTE), active_runs.track_run(authorized, claim) as (claim, active_run):
            executed = await active_run.await_tool(
                dispatch_tool(runtime, authorized, run.tool, claim, run.charge.permit)
            )
        if should_requeue(executed):
            run.charge.refund()
            await requeue_run(runtime, authorized, claim)
            return None
        return await self._end_run(executed, run)

    async def _run_flow(self, run: ClaimedRun, pending_run: PendingRun) -> Outcome | None:
        """Conclude a flow whose calls have ended, or put it back for its next calls and return None."""
        runtime, authorized, claim = self.runtime, run.authorized, run.claim
        with authorized.call.trail.start_phase(Span.EXECUTE):
            executed = await conclude_flow(runtime, authorized, claim, pending_run, run.refusal)
        if executed is None:
            # It is charged for having begun, whatever becomes of it.
            await requeue_run(runtime, authorized, claim, seconds=0.0)
            return None
        return await self._end_run(executed, run)

    async def _end_run(self, executed: Executed, run: ClaimedRun) -> Outcome:
        runtime, authorized = self.runtime, run.authorized
        outcome = await self._finish_call(executed, run.charge.progress)
        if runtime.report_call is not None:
            report_outcome(runtime, authorized.call, outcome, authorized.decision)
        return outcome

    async def _finish_call(self, executed: Executed, progress: CallProgress) -> Outcome:
        """Verify what the tool returned and record it, and only then return it."""
        runtime, validated = self.runtime, executed.validated
        phase, hooks = validated.call.trail.start_phase, self._find_hooks(validated)
        with phase(Span.VERIFY):
            progress.verified = verified = await verify(runtime, executed)
            if hooks is not None:
                verified = await hooks.run_after(verified)
        with phase(Span.REPLY):
            return await reply(runtime, verified)

    def _find_hooks(self, validated: Validated) -> ToolHooks | None:
        hooks = self.runtime.hooks
        return hooks.find_tool_hooks(validated.tool.name) if hooks.is_configured else None

    def _receive(self, caller: Caller, request: CallRequest) -> CallContext:
        clock = self.runtime.clock
        call_id, now = clock.new_id(), clock.monotonic()
        return CallContext(
            call_id=call_id,
            caller=caller,
            request=request,
            # A token's session cannot be replaced by a request: limits are counted by it, and rules read it.
            session=caller.session or request.session,
            started_at=now,
            deadline=None if request.deadline_ms is None else Deadline.after(request.deadline_ms / 1000, now),
            trail=self.runtime.tracing.start_trace(request.traceparent, call_id, caller),
        )
