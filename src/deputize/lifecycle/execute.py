"""Phase four: execute the tool.

A mutation is claimed first, checked against the barrier, and dispatched only under a live lease. Its outcome after that
is either known or recorded as unknown.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from deputize.core.contract.contract import Contract, MutationClass, UpstreamIdempotency
from deputize.core.contract.tools import AnyTool, SaveCheckpoint, Secret, ToolContext
from deputize.core.errors import (
    Canceled,
    CredentialExpired,
    ExecutionProblem,
    Problem,
    ResultInvalid,
    ToolFailed,
    UpstreamRateLimited,
    UpstreamUnavailable,
)
from deputize.core.outcome import Outcome
from deputize.execute.drivers.python import ThreadOverrun
from deputize.execute.retry import apply_status_codes, retry_after_failure
from deputize.lifecycle.authorize import reauthorize
from deputize.lifecycle.claim import ClaimGuard, acquire_claim
from deputize.lifecycle.phases import Authorized, Claim, Executed, RunControl, StateReading
from deputize.lifecycle.recording.checkpointing import open_checkpointer, reject_checkpoint
from deputize.lifecycle.recording.unknown_outcome import build_outcome_unknown
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.state_check import compare_state, read_state
from deputize.runs.checkpoint_writer import CheckpointWriter


async def execute(runtime: Runtime, authorized: Authorized, guard: ClaimGuard) -> Executed | Outcome:
    """Execute the tool, or return the outcome that the call's idempotency key already has.

    `guard` answers for the claim from the moment it is acquired.
    """
    contract = authorized.validated.tool.contract
    tool = runtime.driver.find_tool(contract)
    authorized.validated.deadline.require_time_left(runtime.clock.monotonic())
    if contract.mutation_class is MutationClass.READ:
        return await dispatch_tool(runtime, authorized, tool, None)
    claim_result = await acquire_claim(runtime, authorized)
    if isinstance(claim_result, Outcome):
        return claim_result
    guard.authorized, guard.claim = claim_result
    return await dispatch_tool(runtime, guard.authorized, tool, guard.claim)


async def dispatch_tool(runtime: Runtime, authorized: Authorized, tool: AnyTool, claim: Claim | None) -> Executed:
    """Call the tool, with retries where its contract allows them, until it ends or its time is over."""
    validated, started_at = authorized.validated, runtime.clock.monotonic()
    dispatch = _Dispatch(
        runtime=runtime,
        authorized=authorized,
        tool=tool,
        claim=claim,
        # A mutation's own time starts at dispatch, as its row says; a read's is what is left.
        ends_at=min(validated.deadline.at, started_at + validated.tool.contract.timeout.effective_seconds),
    )
    output, problem, attempts, state = None, None, 1, None
    try:
        if claim is not None and validated.tool.contract.checkpoints.enabled:
            dispatch.checkpointer = await open_checkpointer(runtime, authorized, claim)
        if tool.validate is not None:
            await runtime.driver.preflight(tool, validated.call_input, dispatch.seconds_left)
        if tool.read_state is not None and not (claim is not None and claim.is_takeover):
            # A worker that takes a call over cannot see the state from before it.
            state = await dispatch.read_state()
        try:
            output = await dispatch.attempt(1)
        except Problem as first_problem:
            output, attempts = await dispatch.retry(first_problem)
    except Problem as last_problem:
        problem = last_problem if claim is None else classify_problem(validated.tool.contract, last_problem, claim)
        attempts = last_problem.attempts
    except asyncio.CancelledError:
        runtime.credentials.forget_call(authorized)
        raise
    finally:
        if dispatch.checkpointer is not None:
            dispatch.checkpointer.close()
    cause = None if problem is None else problem.__cause__
    late_result = cause.future if isinstance(cause, ThreadOverrun) else None
    seconds, state_change = runtime.clock.monotonic() - started_at, None
    if state is not None and late_result is None:
        state_change = await compare_state(runtime, tool, validated, dispatch.salt, state, started_at)
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


@dataclass(kw_only=True, slots=True)
class _Dispatch:
    """One call on its way through its tool: what every attempt needs."""

    runtime: Runtime
    authorized: Authorized
    tool: AnyTool
    claim: Claim | None
    ends_at: float
    checkpointer: CheckpointWriter | None = None
    salt: bytes = b""

    @property
    def seconds_left(self) -> float:
        return self.ends_at - self.runtime.clock.monotonic()

    @property
    def call_id(self) -> str:
        """The id the call was first made under; a call that was taken over keeps it."""
        return self.authorized.validated.received.call_id if self.claim is None else self.claim.call_id

    @property
    def active_run(self) -> RunControl | None:
        return None if self.claim is None else self.claim.active_run

    async def attempt(self, number: int) -> Any:
        """Call the tool once, with a credential of its own that is closed afterwards."""
        runtime, authorized = self.runtime, self.authorized
        credential = None
        if authorized.validated.tool.contract.auth.credential != "none":
            credential = await runtime.credentials.issue_for_attempt(authorized, self.call_id, self.seconds_left)
        try:
            # After the credential, which may have taken its time: the lease must hold when the tool is started.
            if self.claim is not None:
                runtime.lease.require_valid()
            seconds_left = self.seconds_left
            context = self._build_context(number, seconds_left, credential) if self.tool.takes_context else None
            if self.active_run is None:
                return await runtime.driver.run(self.tool, authorized.validated.call_input, context, seconds_left)
            with self.active_run.enter_tool(thread=not self.tool.is_async):
                return await runtime.driver.run(self.tool, authorized.validated.call_input, context, seconds_left)
        except CredentialExpired as rejection:
            if credential is not None:
                await runtime.credentials.handle_rejection(authorized, credential, rejection)
            raise
        except (ToolFailed, UpstreamUnavailable, UpstreamRateLimited) as problem:
            raise apply_status_codes(authorized.validated.tool.contract.retry, problem) from problem.__cause__
        finally:
            if credential is not None:
                credential.close()

    async def read_state(self) -> StateReading:
        """Read the state that the tool could change, before its first attempt."""
        try:
            self.salt = self.runtime.clock.random_bytes(16)
            return await read_state(self.runtime, self.tool, self.authorized.validated, self.salt, self.seconds_left)
        except Problem as problem:
            raise problem.replace(nothing_happened=True) from problem.__cause__

    async def retry(self, first_problem: Problem) -> tuple[Any, int]:
        """Repeat the attempt as the contract's retry policy says; return the output and the number of attempts."""
        contract = self.authorized.validated.tool.contract

        async def attempt(number: int) -> Any:
            await self._require_current_authorization()
            return await self.attempt(number)

        return await retry_after_failure(
            attempt,
            first_problem,
            policy=contract.retry,
            may_repeat=lambda problem: can_retry(contract, problem) and not self._is_stopping(),
            seconds_left=lambda: self.seconds_left,
        )

    async def _require_current_authorization(self) -> None:
        """Refuse a further attempt if the caller was revoked or switched off since the first one."""
        authorized = self.authorized
        authority = await self.runtime.authority.load_tenant(authorized.validated.received.caller.tenant)
        if authorized.decision.epochs.is_at_least(authority.epochs):
            return
        try:
            await reauthorize(self.runtime, authorized, authority, authority.epochs)
        except Problem as refusal:
            # True of this attempt; the earlier ones said for themselves whether anything happened.
            raise refusal.replace(nothing_happened=True) from refusal.__cause__

    def _is_stopping(self) -> bool:
        return self.active_run is not None and self.active_run.is_stopping()

    def _build_context(self, attempt: int, seconds_left: float, credential: Secret | None) -> ToolContext:
        validated, active_run, checkpointer = self.authorized.validated, self.active_run, self.checkpointer
        received = validated.received
        context = ToolContext(
            call_id=self.call_id,
            tenant=received.caller.tenant,
            user=received.caller.user,
            agent=received.caller.agent,
            session=received.session,
            key=self.call_id,
            attempt=attempt,
            seconds_left=seconds_left,
            traceparent=received.trail.traceparent,
            credential=credential,
            saved_state=None if checkpointer is None else checkpointer.decode_newest_state(),
            guards=(None if self.claim is None else self.claim.guards) or {},
            client_capabilities=received.request.client_capabilities,
            input_round=validated.input_round,
            report_progress=received.request.report_progress if active_run is None else active_run.report_progress,
            should_stop=None if active_run is None else active_run.is_stopping,
            save_checkpoint=self._choose_save(),
        )
        if credential is None:
            return context
        report_progress = self.runtime.credentials.filter_progress(self.authorized, context.report_progress)
        return replace(context, report_progress=report_progress)

    def _choose_save(self) -> SaveCheckpoint | None:
        """Choose what `save` does: nothing for a read, an error where the contract does not enable checkpoints."""
        if self.checkpointer is not None:
            return self.checkpointer.save
        return None if self.authorized.validated.tool.contract.checkpoints.enabled else reject_checkpoint


def can_retry(contract: Contract, problem: Problem) -> bool:
    """Tell whether another attempt is safe: a read, a proof that nothing happened, or an upstream that deduplicates."""
    if isinstance(problem, ThreadOverrun):
        return contract.mutation_class is MutationClass.READ
    return (
        contract.mutation_class is MutationClass.READ
        or problem.nothing_happened
        or contract.idempotency.upstream is not UpstreamIdempotency.CANNOT
    )


def classify_problem(contract: Contract, problem: Problem, claim: Claim) -> Problem:
    """Classify the problem of a dispatched mutation: a lost answer is not a failure, its outcome is unknown.

    The tool's own verdict (it failed, it stopped on request, its result is invalid) is known. A proof that nothing
    happened holds for one attempt; it says nothing about a call that was taken over or attempted before.
    """
    if contract.mutation_class is MutationClass.READ or (problem.nothing_happened and not claim.is_takeover):
        return problem
    is_verdict = isinstance(problem, ExecutionProblem | ResultInvalid | Canceled) and not problem.spec.retryable
    if is_verdict and not (problem.nothing_happened or problem.proves_nothing_happened):
        return problem
    return build_outcome_unknown(contract, problem)


def build_late_execution(executed: Executed, claim: Claim, late_result: "asyncio.Future[Any]") -> Executed:
    """Build the execution that a thread ended after its call was answered as unknown."""
    error = late_result.exception()
    problem = (
        None
        if error is None
        else classify_problem(executed.authorized.validated.tool.contract, _wrap_late_error(error), claim)
    )
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
