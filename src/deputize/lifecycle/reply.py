"""Phase six: record the end of a call before it is returned. What cannot be recorded is not returned.

A read's entry is its commit, and so passes the barrier (a mutation passed it with its claim): a result whose entry
committed after its caller was revoked is withheld.
"""

import asyncio
from dataclasses import replace
from typing import Final

from deputize.core.errors import (
    CredentialInResult,
    EgressDenied,
    ExecutionProblem,
    InputRequestRejected,
    MutationClassViolated,
    OutcomeUnknown,
    ParseFailed,
    PredicateFailed,
    Problem,
    RecordingPending,
    ResourceLimitExceeded,
    ResultInvalid,
    SemanticViolation,
    ToolConflict,
    ToolFailed,
    ToolPrecondition,
    ToolTimeout,
    Unavailable,
    UpstreamProblem,
    UpstreamTimeout,
)
from deputize.core.hooks import NO_HOOK_EFFECTS
from deputize.core.mcp.elicitation import InputRequests
from deputize.core.outcome import Outcome
from deputize.core.states import State
from deputize.evidence.call_measurements import CallEnd
from deputize.govern.limits.rules import to_micros
from deputize.lifecycle.claim import reauthorize_if_stale
from deputize.lifecycle.elicitation.round_token import issue_round_token
from deputize.lifecycle.envelope import (
    build_input_required_outcome,
    build_outcome,
    build_refusal_outcome,
    get_failure_state,
    get_refusal_state,
)
from deputize.lifecycle.execute import build_late_execution
from deputize.lifecycle.phases import CallContext, Claim, Executed, Validated, Verified
from deputize.lifecycle.recording import audit
from deputize.lifecycle.recording.audit import SALT_BYTES, ResultDigest, digest_result
from deputize.lifecycle.recording.redaction import run_for_document
from deputize.lifecycle.result_storage import store_payload
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.verify import verify
from deputize.store.commit_rows import AuditEntryRow, FailedReadRow

# How long recording the outcome of an executed effect may take before the caller gets 'pending'.
_RECORDING_SECONDS = 5.0
# The least time to record a result that came just before the deadline.
_MIN_RECORD_SECONDS = 1.0
# A tool that reports a wrong argument, a precondition or a conflict has done its part, and so has one that was refused
# a credential, canceled or never started: such calls are not measured.
_FAILURES: Final = (
    ToolFailed, UpstreamProblem, ResourceLimitExceeded, EgressDenied, MutationClassViolated, CredentialInResult,
    InputRequestRejected,
)  # fmt: skip
# What a tool's own `verify` raises about a result.
_VERIFY_ERRORS: Final = (ToolFailed, ToolPrecondition, ToolConflict, SemanticViolation)
_TIMEOUTS: Final = (ToolTimeout, UpstreamTimeout)
_late_tasks: set[asyncio.Task[None]] = set()


async def reply(runtime: Runtime, verified: Verified) -> Outcome:
    executed = verified.executed
    validated = executed.validated
    contract = validated.contract
    outcome = await (
        _reply_to_read(runtime, verified)
        if executed.claim is None
        else _reply_to_mutation(runtime, verified, executed.claim)
    )
    call, cost = validated.call, verified.cost
    if validated.deprecation is not None:
        runtime.deprecated_uses.record_use(call.caller, contract)
    if cost:
        runtime.limits.add_session_cost(call.caller, call.session, cost)
    if (end := judge_end(verified)) is not None:
        runtime.call_measurements.record_call(
            call.tenant, contract, end, executed.seconds, to_micros(cost) if cost else 0
        )
    usage = verified.usage
    runtime.call_costs.record_call(call.caller, contract, usage)
    runtime.metrics.record_end(
        contract,
        outcome.state,
        runtime.clock.monotonic() - call.started_at,
        attempts=executed.attempts,
        usage=usage,
    )
    return outcome


async def _reply_to_read(runtime: Runtime, verified: Verified) -> Outcome:
    authorized = verified.executed.authorized
    call = authorized.call
    state = _get_success_state(verified) if verified.problem is None else get_failure_state(verified.problem)
    now = runtime.stamps.now()
    outcome, commitment = await _render_outcome(runtime, verified, call.call_id, state, now)
    seconds_left = max(authorized.validated.deadline.remaining_seconds(runtime.clock.monotonic()), _MIN_RECORD_SECONDS)
    entry_row = audit.build_read_entry(verified, state, now, commitment)
    row: AuditEntryRow | FailedReadRow = entry_row
    if verified.problem is not None:
        # What a read returns is not stored; why it failed is.
        keys = await runtime.keys.get(call.tenant)
        ciphertext = keys.seal(call.call_id, "outcome", outcome.body)
        row = audit.build_failed_read_row(verified, state, verified.problem, ciphertext, entry_row)
    commit = await runtime.writer.put(row, seconds=seconds_left)
    # A read that was disabled for what it did is told so: the outcome holds nothing that the tool returned.
    if not isinstance(verified.problem, MutationClassViolated):
        await reauthorize_if_stale(runtime, authorized, commit.epochs)
    return outcome


async def _reply_to_mutation(runtime: Runtime, verified: Verified, claim: Claim) -> Outcome:
    problem = verified.problem
    before = State.UNKNOWN if verified.executed.is_late else State.RUNNING
    state = _get_success_state(verified) if problem is None else _get_mutation_state(problem)
    outcome, commitment = await _render_outcome(runtime, verified, claim.call_id, state, runtime.stamps.now())
    tenant = verified.call.tenant
    keys = await runtime.keys.get(tenant)
    ciphertext = keys.seal(claim.call_id, "outcome", outcome.body)
    closing_row = audit.build_closing_row(runtime, verified, claim, state, problem, ciphertext, commitment, before)
    write = runtime.writer.put(closing_row, seconds=_RECORDING_SECONDS)
    _record_late_end(runtime, verified.executed)
    try:
        commit = await write
    except Problem as error:
        # The writer keeps trying; success is never reported before it is stored.
        return _build_pending_outcome(runtime, verified, claim, error.message)
    if not commit.is_closed:
        return _build_pending_outcome(
            runtime, verified, claim, "another process took over this call, and its outcome counts"
        )
    return outcome


async def _render_outcome(
    runtime: Runtime, verified: Verified, call_id: str, state: State, now: str
) -> tuple[Outcome, ResultDigest]:
    """Build the outcome and commit to its result, both in a thread if the result is large."""
    salt = runtime.clock.random_bytes(SALT_BYTES)
    if verified.contract.max_inline is not None:
        verified = await store_payload(runtime, verified, call_id)
    if verified.input_requests is not None:
        outcome = await _build_input_required(runtime, verified, verified.input_requests, call_id, now)
        return outcome, digest_result(verified, salt)
    outcome, commitment = await run_for_document(
        verified.canonical,
        lambda: (build_outcome(verified, call_id, state, verified.problem, now), digest_result(verified, salt)),
    )
    if commitment.suspicions:
        runtime.metrics.record_suspicions("result", commitment.suspicions)
    return outcome, commitment


async def _build_input_required(
    runtime: Runtime, verified: Verified, input_requests: InputRequests, call_id: str, now: str
) -> Outcome:
    """Build the outcome with the server's input requests and a round token to answer them with."""
    validated = verified.validated
    tenant = validated.call.tenant
    keys = await runtime.keys.get(tenant)
    return build_input_required_outcome(
        verified, input_requests, call_id, now, issue_round_token(keys, runtime, validated, call_id, input_requests)
    )


def _get_success_state(verified: Verified) -> State:
    return State.SUCCEEDED if verified.input_requests is None else State.NEEDS_INPUT


def _get_mutation_state(problem: Problem) -> State:
    if isinstance(problem, OutcomeUnknown):
        return State.UNKNOWN
    return get_refusal_state(problem) if problem.nothing_happened else get_failure_state(problem)


def _build_pending_outcome(runtime: Runtime, verified: Verified, claim: Claim, why: str) -> Outcome:
    problem = RecordingPending(
        f"{why}; the call itself has ended", details={"call_id": claim.call_id}, retry_after_ms=1000
    )
    return build_outcome(verified, claim.call_id, State.UNKNOWN, problem, runtime.stamps.now())


def _record_late_end(runtime: Runtime, executed: Executed) -> None:
    """Record the end of a thread that outlived its deadline, if it ends: that settles the unknown outcome."""
    late_result, claim = executed.late_result, executed.claim
    if late_result is None or claim is None:
        return

    async def wait_and_reply() -> None:
        await asyncio.wait({late_result})
        verified = await verify(runtime, build_late_execution(executed, claim, late_result))
        if not isinstance(verified.problem, OutcomeUnknown):
            await _reply_to_mutation(runtime, verified, claim)

    task = asyncio.create_task(wait_and_reply(), name=f"late-{claim.call_id}")
    _late_tasks.add(task)
    task.add_done_callback(_late_tasks.discard)


async def refuse_call(runtime: Runtime, call: CallContext, validated: Validated | None, problem: Problem) -> Outcome:
    """Refuse a call that was not executed, or whose result is withheld; one entry is durable before the answer."""
    tool = validated.tool if validated else None
    is_unparsed = validated is None and isinstance(problem, ParseFailed)
    state = State.SCHEMA_PARSE_FAILED if is_unparsed else get_refusal_state(problem)
    try:
        await runtime.writer.put(audit.build_refusal_entry(runtime, call, validated, problem, state))
    except Problem as write_error:
        problem, state = write_error, State.FAILED
    runtime.metrics.record_end(tool.contract if tool else None, state, runtime.clock.monotonic() - call.started_at)
    outcome = build_refusal_outcome(call, problem, state, validated.hook_effects if validated else NO_HOOK_EFFECTS)
    return outcome if not isinstance(problem, Unavailable) else replace(outcome, retry_after_ms=1000)


def judge_end(verified: Verified) -> CallEnd | None:
    """Judge how a call ended for its tool; None if that says nothing about the tool."""
    problem = verified.problem
    if problem is None:
        executed = verified.executed
        if executed.is_cached or executed.fallback is not None:
            # The tool itself failed before its alternative answered, or was not called.
            return CallEnd.FAILURE if executed.attempts else None
        # A tool that needs input first has not ended.
        return CallEnd.SUCCESS if verified.input_requests is None else None
    if isinstance(problem, ResultInvalid | PredicateFailed):
        return CallEnd.REJECTION
    if verified.executed.problem is None and isinstance(problem, _VERIFY_ERRORS):
        return CallEnd.REJECTION
    # As the tool left it: its text may have been redacted since.
    problem = verified.executed.problem or problem
    is_unknown = isinstance(problem, OutcomeUnknown)
    cause = problem.__cause__ if is_unknown else problem
    if isinstance(cause, _TIMEOUTS):
        return None if _has_shorter_deadline(verified) else CallEnd.TIMEOUT
    if is_unknown:
        # A worker that lost its lease leaves an unknown outcome, too.
        return CallEnd.UNKNOWN_OUTCOME if isinstance(cause, ExecutionProblem | UpstreamProblem) else None
    return CallEnd.FAILURE if isinstance(cause, _FAILURES) else None


def _has_shorter_deadline(verified: Verified) -> bool:
    """Tell whether the caller gave the tool less time than its contract does."""
    validated = verified.validated
    return validated.call.deadline is not None and validated.deadline is validated.call.deadline
