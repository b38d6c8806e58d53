"""Phase four: execute the tool.

A mutation is claimed first, checked against the barrier, and dispatched only under a live lease. Its outcome after that
is either known or recorded as unknown.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from deputize.core.contract.contract import Contract, MutationClass, UpstreamIdempotency
from deputize.core.contract.tools import AnyTool, PythonTool, SaveCheckpoint, Secret, ToolContext
from deputize.core.errors import (
    Canceled,
    CredentialExpired,
    ExecutionProblem,
    OutcomeUnknown,
    Problem,
    ResultInvalid,
    ToolFailed,
    Unavailable,
    UpstreamRateLimited,
    UpstreamUnavailable,
)
from deputize.core.event_loop.interruption import Interruption
from deputize.core.outcome import Outcome
from deputize.execute.circuits.verdicts import judge_attempt
from deputize.execute.drivers.python import ThreadOverrun
from deputize.execute.retry import apply_status_codes, retry_after_failure
from deputize.execute.retry_budgets import RetryBudget
from deputize.execute.service_gate import ServicePermit
from deputize.execute.upstreams.faults import UpstreamNotAtFault
from deputize.lifecycle.authorize import reauthorize
from deputize.lifecycle.cached_reads import find_cached_read
from deputize.lifecycle.call_access import may_read_result
from deputize.lifecycle.claim import ClaimGuard, acquire_claim, find_stored_outcome
from deputize.lifecycle.fallback import execute_with_fallback
from deputize.lifecycle.phases import Authorized, Claim, Executed, RunControl, StateReading
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.state_check import compare_state, read_state
from deputize.runs.checkpoint_writer import CheckpointScope, CheckpointWriter


def execute(runtime: Runtime, authorized: Authorized, guard: ClaimGuard) -> Coroutine[Any, Any, Executed | Outcome]:
    """Execute the tool, or return the outcome that the call's idempotency key already has.

    `guard` answers for the claim from the moment it is acquired.
    """
    execution = _execute_tool(runtime, authorized, guard)
    has_fallback = authorized.contract.fallback or authorized.contract.fallback_task is not None
    return execute_with_fallback(runtime, authorized, execution) if has_fallback else execution


async def _execute_tool(runtime: Runtime, authorized: Authorized, guard: ClaimGuard) -> Executed | Outcome:
    contract = authorized.contract
    tool = find_approved_tool(runtime, authorized)
    now = runtime.clock.monotonic()
    authorized.validated.deadline.require_time_left(now)
    permit, pending_read = None, None
    if contract.freshness is not None:
        # Before the service: an answer that is kept needs nothing of it.
        cached = await find_cached_read(runtime, authorized)
        if isinstance(cached, Executed):
            return cached
        pending_read = cached
    if contract.external_service is not None:
        # Before the claim: a call that is refused because its service fails or is busy consumes no idempotency key.
        gate, tenant = runtime.service_gate, authorized.call.tenant
        if contract.mutation_class is not MutationClass.READ:
            permit = await gate.admit_now(tenant, tool, contract)
            # Before a wait or a refusal: a repeat of a call that has ended needs nothing of its service.
            if permit is None and (outcome := await find_stored_outcome(runtime, authorized)) is not None:
                return outcome
        if permit is None:
            seconds = authorized.validated.deadline.remaining_seconds(runtime.clock.monotonic())
            permit = await gate.admit_call(tenant, tool, contract, seconds=seconds)
    try:
        if contract.mutation_class is MutationClass.READ:
            executed = await dispatch_tool(runtime, authorized, tool, None, permit)
            return executed if pending_read is None else replace(executed, pending_read=pending_read)
        claim_result = await acquire_claim(runtime, authorized)
        if isinstance(claim_result, Outcome):
            return claim_result
        guard.authorized, guard.claim = claim_result
        if authorized.approval is not None:
            guard.claim = replace(guard.claim, guards=authorized.approval.guards)
        return await dispatch_tool(runtime, guard.authorized, tool, guard.claim, permit)
    finally:
        if permit is not None:
            permit.release()


def find_approved_tool(runtime: Runtime, authorized: Authorized) -> AnyTool:
    """Find the tool that a call is executed with. In development its code may have been replaced since it was approved;
    the approval is then checked again.
    """
    tool, approval = runtime.driver.find_tool(authorized.contract), authorized.approval
    if approval is not None and isinstance(tool, PythonTool) and tool.code_digest != approval.code_digest:
        raise Unavailable("the code of the tool was replaced while its approval was checked", nothing_happened=True)
    return tool


async def dispatch_tool(
    runtime: Runtime, authorized: Authorized, tool: AnyTool, claim: Claim | None, permit: ServicePermit | None = None
) -> Executed:
    """Call the tool, with retries where its contract allows them, until it ends or its time is over.

    `permit` is that of a call to an external service.
    """
    validated = authorized.validated
    dispatch = _start_dispatch(runtime, authorized, tool, claim, permit)
    output, problem, attempts, state = None, None, 1, None
    try:
        if claim is not None and validated.contract.checkpoints.enabled:
            dispatch.checkpointer = await open_checkpointer(runtime, authorized, claim)
        if tool.validate is not None:
            await runtime.driver.preflight(tool, validated.call_input, dispatch.seconds_left)
        if tool.read_state is not None and not (claim is not None and claim.is_takeover):
            # A worker that takes a call over cannot see the state from before it.
            state = await dispatch.read_state()
        if dispatch.retry_budget is not None:
            dispatch.retry_budget.count_call()
        try:
            output = await dispatch.attempt(1)
        except Problem as first_problem:
            output, attempts = await dispatch.retry(first_problem)
    except Problem as last_problem:
        dispatch.hold_for_thread(last_problem)
        problem = last_problem if claim is None else dispatch.classify_problem(last_problem, claim)
        attempts = last_problem.attempts
    except asyncio.CancelledError:
        runtime.credentials.forget_call(authorized)
        raise
    finally:
        if dispatch.checkpointer is not None:
            dispatch.checkpointer.close()
    # Only the tool's own thread: the late end of a check says nothing about a tool that never ran.
    cause = problem.__cause__ if isinstance(problem, OutcomeUnknown) else None
    late_result = cause.future if isinstance(cause, ThreadOverrun) else None
    if runtime.read_cache.tenants and claim is not None:
        _forget_reads(runtime, authorized, problem, late_result)
    seconds, state_change = runtime.clock.monotonic() - dispatch.started_at, None
    if state is not None and late_result is None:
        state_change = await compare_state(runtime, tool, validated, dispatch.salt, state, dispatch.started_at)
    return Executed(
        authorized=authorized,
        claim=claim,
        output=output,
        problem=problem,
        attempts=attempts,
        seconds=seconds,
        late_result=late_result,
        state_change=state_change,
    )


def _forget_reads(
    runtime: Runtime, authorized: Authorized, problem: Problem | None, late_result: "asyncio.Future[Any] | None"
) -> None:
    """Forget cached reads that a mutation may have made old, unless it is known to have done nothing."""
    if problem is not None and problem.nothing_happened:
        return
    note_write = partial(runtime.read_cache.note_write, authorized.call.tenant, authorized.contract)
    note_write()
    if late_result is not None:
        late_result.add_done_callback(lambda _: note_write())


@dataclass(kw_only=True, slots=True)
class _Dispatch:
    """One call on its way through its tool: what every attempt needs."""

    runtime: Runtime
    authorized: Authorized
    tool: AnyTool
    claim: Claim | None
    permit: ServicePermit | None
    # That of the tool's external service, if it has one.
    retry_budget: RetryBudget | None
    started_at: float
    ends_at: float
    checkpointer: CheckpointWriter | None = None
    salt: bytes = b""
    # Whether an attempt before the last one may have had its effect.
    may_have_acted: bool = False

    @property
    def seconds_left(self) -> float:
        return self.ends_at - self.runtime.clock.monotonic()

    @property
    def call_id(self) -> str:
        """The id the call was first made under; a call that was taken over keeps it."""
        return self.authorized.call.call_id if self.claim is None else self.claim.call_id

    @property
    def endpoint(self) -> int:
        return 0 if self.permit is None else self.permit.endpoint

    @property
    def active_run(self) -> RunControl | None:
        return None if self.claim is None else self.claim.active_run

    async def attempt(self, number: int) -> Any:
        """Call the tool once: at the next endpoint of its service if one cannot be connected to."""
        while True:
            try:
                return await self._attempt_at_endpoint(number)
            except UpstreamUnavailable as problem:
                # Only what was not sent: another endpoint does not know what the first one did.
                can_move = problem.nothing_happened and not isinstance(problem, UpstreamNotAtFault)
                if not can_move or not await self._move_to_next_endpoint():
                    raise

    async def _move_to_next_endpoint(self) -> bool:
        if self.permit is None or self.seconds_left <= 0 or self._is_stopping():
            return False
        gate, contract = self.runtime.service_gate, self.authorized.contract
        if not await gate.move_to_next_endpoint(self.authorized.call.tenant, contract, self.permit):
            return False
        await self._require_current_authorization()
        return True

    async def _attempt_at_endpoint(self, number: int) -> Any:
        """Call the tool once, in a span of its own: what its server records becomes part of it."""
        with self.authorized.call.trail.start_attempt(self.call_id, number, self.authorized.contract.handler):
            return await self._attempt_in_span(number)

    async def _attempt_in_span(self, number: int) -> Any:
        """Call the tool, with a credential of its own that is closed afterwards."""
        runtime, authorized = self.runtime, self.authorized
        credential = None
        if authorized.contract.auth.credential != "none":
            credential = await runtime.credentials.issue_for_attempt(authorized, self.call_id, self.seconds_left)
        try:
            # After the credential, which may have taken its time: the lease must hold when the tool is started.
            if self.claim is not None:
                runtime.lease.require_valid()
            seconds_left = self.seconds_left
            context = self._build_context(number, seconds_left, credential) if self.tool.takes_context else None
            tool_run = runtime.driver.run(self.tool, authorized.validated.call_input, context, seconds_left)
            if self.active_run is not None:
                with self.active_run.enter_tool(thread=not self.tool.is_async):
                    output = await tool_run
            elif (interruption := self._find_interruption()) is not None:
                output = await interruption.run(tool_run)
            else:
                output = await tool_run
        except Problem as problem:
            self._report_failure(problem)
            self.hold_for_thread(problem)
            if isinstance(problem, CredentialExpired) and credential is not None:
                await runtime.credentials.handle_rejection(authorized, credential, problem)
            if isinstance(problem, ToolFailed | UpstreamUnavailable | UpstreamRateLimited):
                raise apply_status_codes(authorized.contract.retry, problem) from problem.__cause__
            raise
        else:
            if self.permit is not None:
                self.permit.end_trial(True)
            return output
        finally:
            if credential is not None:
                credential.close()

    def hold_for_thread(self, problem: Problem) -> None:
        """Keep the slot while a thread of the tool, or of one of its checks, runs on."""
        for each in (problem, problem.__cause__):
            if isinstance(each, ThreadOverrun) and self.permit is not None:
                self.permit.hold_for_thread(each.future)

    def _report_failure(self, problem: Problem) -> None:
        """Report to the circuit of the tool's service what a failed attempt says about it."""
        validated = self.authorized.validated
        contract = validated.contract
        if contract.external_service is None:
            return
        verdict = judge_attempt(
            problem,
            is_remote=not isinstance(self.tool, PythonTool),
            seconds=self.ends_at - self.started_at,
            full_seconds=contract.timeout.effective_seconds,
        )
        if isinstance(problem, UpstreamRateLimited) and problem.retry_after_ms:
            rates = self.runtime.service_gate.rates
            rates.note_pause(validated.call.tenant, contract, problem.retry_after_ms)
        # Not its message: others see the reason, and it may name what this caller requested.
        reason = f"{problem.spec.e_number} {problem.spec.slug}"
        if self.permit is not None and self.permit.trial is not None:
            self.permit.end_trial(verdict, reason)
        elif verdict is False:
            self.runtime.circuits.record_failure(validated.call.tenant, contract, reason, self.endpoint)

    async def read_state(self) -> StateReading:
        """Read the state that the tool could change, before its first attempt."""
        try:
            self.salt = self.runtime.clock.random_bytes(16)
            return await read_state(self.runtime, self.tool, self.authorized.validated, self.salt, self.seconds_left)
        except Problem as problem:
            raise problem.replace(nothing_happened=True) from problem.__cause__

    async def retry(self, first_problem: Problem) -> tuple[Any, int]:
        """Repeat the attempt as the contract's retry policy says; return the output and the number of attempts."""
        contract, tenant = self.authorized.contract, self.authorized.call.tenant

        def may_repeat(problem: Problem) -> bool:
            is_closed = self.runtime.circuits.is_closed(tenant, contract, self.endpoint)
            if not is_closed or not can_retry(contract, problem) or self._is_stopping():
                return False
            self.may_have_acted = not problem.nothing_happened
            return True

        async def attempt(number: int) -> Any:
            await self._require_current_authorization()
            if contract.service_limits is not None and contract.service_limits.max_calls is not None:
                # Each attempt is a call to the service.
                await self.runtime.service_gate.rates.wait_for_turn(tenant, contract, self.seconds_left)
            return await self.attempt(number)

        return await retry_after_failure(
            attempt,
            first_problem,
            policy=contract.retry,
            may_repeat=may_repeat,
            spend_budget=self._spend_retry,
            seconds_left=lambda: self.seconds_left,
        )

    def _spend_retry(self, problem: Problem) -> None:
        """Spend one retry of the service's budget, or raise the problem because there is none left."""
        if self.retry_budget is None or self.retry_budget.take_retry(self.runtime.clock.monotonic()):
            return
        service = self.authorized.contract.external_service or ""
        self.runtime.metrics.record_spent_retry_budget(service)
        message = f"{problem.message}; not retried: the retry budget of the service {service} is spent"
        raise problem.replace(message=message) from problem.__cause__

    def classify_problem(self, problem: Problem, claim: Claim) -> Problem:
        """Classify the last problem of a mutation, in the light of the attempts before it."""
        return classify_problem(self.authorized.contract, problem, claim, may_have_acted=self.may_have_acted)

    async def _require_current_authorization(self) -> None:
        """Refuse a further attempt if the caller was revoked or switched off since the first one."""
        authorized = self.authorized
        authority = await self.runtime.authority.load_tenant(authorized.call.tenant)
        if authorized.decision.epochs.is_at_least(authority.epochs):
            return
        try:
            await reauthorize(self.runtime, authorized, authority, authority.epochs)
        except Problem as refusal:
            # True of this attempt; the earlier ones said for themselves whether anything happened.
            raise refusal.replace(nothing_happened=True) from refusal.__cause__

    def _find_interruption(self) -> Interruption | None:
        """Return what may interrupt the tool; None if its contract does not allow that, or it runs in a thread."""
        is_interruptible = self.authorized.contract.interrupt == "cancel" and self.tool.is_async
        return self.authorized.call.request.interruption if is_interruptible else None

    def _is_stopping(self) -> bool:
        return self.active_run is not None and self.active_run.is_stopping()

    def _build_context(self, attempt: int, seconds_left: float, credential: Secret | None) -> ToolContext:
        validated, active_run, checkpointer = self.authorized.validated, self.active_run, self.checkpointer
        call = validated.call
        context = ToolContext(
            call_id=self.call_id,
            tenant=call.tenant,
            user=call.caller.user,
            agent=call.caller.agent,
            agents=call.caller.agents,
            session=call.session,
            key=self.call_id,
            attempt=attempt,
            seconds_left=seconds_left,
            traceparent=call.trail.traceparent,
            credential=credential,
            saved_state=None if checkpointer is None else checkpointer.decode_newest_state(),
            guards=(None if self.claim is None else self.claim.guards) or {},
            client_capabilities=call.request.client_capabilities,
            input_round=validated.input_round,
            admitted_drift=self.authorized.decision.admitted_drift,
            backend_demands=self.authorized.decision.backend_demands,
            endpoint=self.endpoint,
            report_progress=call.request.report_progress if active_run is None else active_run.report_progress,
            should_stop=None if active_run is None else active_run.is_stopping,
            save_checkpoint=self._choose_save(),
            may_read_result=partial(may_read_result, self.runtime, call.caller),
        )
        if credential is None:
            return context
        report_progress = self.runtime.credentials.filter_progress(self.authorized, context.report_progress)
        return replace(context, report_progress=report_progress)

    def _choose_save(self) -> SaveCheckpoint | None:
        """Choose what `save` does: nothing for a read, an error where the contract does not enable checkpoints."""
        if self.checkpointer is not None:
            return self.checkpointer.save
        return None if self.authorized.contract.checkpoints.enabled else reject_checkpoint


def _start_dispatch(
    runtime: Runtime, authorized: Authorized, tool: AnyTool, claim: Claim | None, permit: ServicePermit | None
) -> _Dispatch:
    validated, started_at = authorized.validated, runtime.clock.monotonic()
    if permit is not None:
        # From here on: checks of the tool and its reading of the state may reach the service before its first attempt.
        permit.use_turn()
    return _Dispatch(
        runtime=runtime,
        authorized=authorized,
        tool=tool,
        claim=claim,
        permit=permit,
        retry_budget=runtime.retry_budgets.find_budget(validated.call.tenant, validated.contract),
        started_at=started_at,
        # A mutation's own time starts at dispatch, as its row says; a read's is what is left.
        ends_at=min(validated.deadline.at, started_at + validated.contract.timeout.effective_seconds),
    )


def can_retry(contract: Contract, problem: Problem) -> bool:
    """Tell whether another attempt is safe: a read, a proof that nothing happened, or an upstream that deduplicates."""
    if isinstance(problem, ThreadOverrun):
        return contract.mutation_class is MutationClass.READ
    return (
        contract.mutation_class is MutationClass.READ
        or problem.nothing_happened
        or contract.idempotency.upstream is not UpstreamIdempotency.CANNOT
    )


def classify_problem(contract: Contract, problem: Problem, claim: Claim, *, may_have_acted: bool = False) -> Problem:
    """Classify the problem of a dispatched mutation: a lost answer is not a failure, its outcome is unknown.

    The tool's own verdict (it failed, it stopped on request, its result is invalid) is known. A proof that nothing
    happened holds for one attempt; it says nothing about a call that was taken over or attempted before. Neither does
    the verdict on a repetition, unless the service recognizes it: what was deleted cannot be found again.
    """
    if contract.mutation_class is MutationClass.READ or (problem.nothing_happened and not claim.is_takeover):
        return problem
    is_verdict = isinstance(problem, ExecutionProblem | ResultInvalid | Canceled) and not problem.spec.retryable
    is_of_repetition = may_have_acted and isinstance(problem, ToolFailed) and not _recognizes_repetitions(contract)
    if is_verdict and not (problem.nothing_happened or problem.proves_nothing_happened or is_of_repetition):
        return problem
    return build_outcome_unknown(contract, problem)


def _recognizes_repetitions(contract: Contract) -> bool:
    """Tell whether a repeated attempt gets the answer of the first; a service may answer that one is running."""
    is_service = contract.handler.driver in ("http", "grpc", "command")
    return contract.idempotency.upstream is UpstreamIdempotency.DEDUPLICATES and not is_service


def build_late_execution(executed: Executed, claim: Claim, late_result: "asyncio.Future[Any]") -> Executed:
    """Build the execution that a thread ended after its call was answered as unknown."""
    error = late_result.exception()
    problem = None if error is None else classify_problem(executed.contract, _wrap_late_error(error), claim)
    return Executed(
        authorized=executed.authorized, claim=claim, output=None if error else late_result.result(),
        problem=problem, attempts=executed.attempts, seconds=executed.seconds,
        has_partial_result=executed.has_partial_result, is_late=True,
    )  # fmt: skip


def _wrap_late_error(error: BaseException) -> Problem:
    """Map a late error as the driver does in time: a lost upstream leaves the outcome open, a failure does not."""
    if isinstance(error, Problem):
        return error
    kind = UpstreamUnavailable if isinstance(error, OSError) else ToolFailed
    return kind(f"the tool failed late: {type(error).__name__}")


async def open_checkpointer(runtime: Runtime, authorized: Authorized, claim: Claim) -> CheckpointWriter:
    """Open the writer, with the checkpoints that a previous owner saved."""
    settings = authorized.contract.checkpoints
    tenant = authorized.call.tenant
    keys = await runtime.keys.get(tenant)
    position = CheckpointScope(
        call_id=claim.call_id,
        epoch=claim.epoch,
        interval=settings.micro_interval_seconds,
        macro_events=settings.macro_events,
    )
    checkpointer = CheckpointWriter(runtime.store, keys, runtime.clock, position)
    if claim.is_takeover:
        await checkpointer.load()
    return checkpointer


async def reject_checkpoint(state: Any, name: str | None, macro: bool) -> NoReturn:
    """Fail a tool that saves a checkpoint its contract does not enable: it would rely on what is not kept."""
    raise RuntimeError("the contract of this tool does not enable checkpoints")


def build_outcome_unknown(contract: Contract, problem: Problem) -> OutcomeUnknown:
    """Build the problem of a call that may or may not have acted, caused by `problem`."""
    unknown_outcome = OutcomeUnknown(
        f"{problem.message}; it is unknown whether the tool acted",
        details={"cause": problem.spec.slug, **_suggest_next_step(contract)},
    )
    unknown_outcome.__cause__ = problem
    return unknown_outcome


def _suggest_next_step(contract: Contract) -> dict[str, str]:
    if contract.idempotency.upstream is not UpstreamIdempotency.CANNOT:
        return {"next": "repeat the call with the same idempotency key: the upstream executes it only once"}
    if contract.status is not None:
        return {"next": f"call {contract.status} to find out what happened"}
    return {"next": "check the target system, and settle the call by hand"}
