"""Build audit entries and rows from the phase types, so that no phase spells out a format.

An entry commits to arguments, scopes and results with salted digests, without what the contract marks sensitive, and
names the states that it adds to its call: the first one begins with `planned`, a later one continues after the last
state of the one before it. There are few different passages, so each is checked against the transitions and encoded
once.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from deputize.core.caller import Epochs
from deputize.core.canonical import canonicalize, compute_commitment
from deputize.core.contract.contract import MutationClass
from deputize.core.decision import Decision
from deputize.core.degradation import Degradation
from deputize.core.entry_kinds import DRY_RUN
from deputize.core.errors import (
    Canceled,
    DeadlineExceeded,
    OutcomeUnknown,
    ParseFailed,
    Problem,
    TooManyTakeovers,
    ValidationProblem,
)
from deputize.core.injection.suspicions import Suspicion, find_suspicions
from deputize.core.outcome import render_failure_envelope
from deputize.core.states import State, require_transition
from deputize.core.value_types import frozen
from deputize.evidence.audit_entries import AuditContext, Passage, encode_entry, encode_summary
from deputize.govern.limits.rules import to_micros
from deputize.lifecycle.envelope import get_failure_state, get_refusal_state
from deputize.lifecycle.phases import (
    Authorized,
    CallContext,
    Claim,
    Executed,
    IdempotencyKey,
    Validated,
    Verified,
)
from deputize.lifecycle.recording.journal import build_journal_rows, did_nothing
from deputize.lifecycle.recording.redaction import get_redaction_plan, redact_arguments, redact_responses
from deputize.lifecycle.runtime import Runtime
from deputize.store.commit_rows import AuditEntryRow, CloseCallRow, FailedReadRow, OpenCallRow

SALT_BYTES: Final = 16
# The scope of the claims of undos. Each claims the entry that it takes back; the database requires it.
UNDO_SCOPE: Final = b"undo"
_RESULT_WRAPPER_BYTES: Final = len(b'{"result":}')
_SCALARS: Final = (str, int, float)
_NO_EPOCHS: Final = Epochs()
S = State
_ARGUMENTS_READY = (S.PLANNED, S.SELECTED, S.ARGUMENTS_READY)
# What is raised after the tool was found, and before its arguments were accepted.
_ARGUMENT_PROBLEMS = (ValidationProblem, ParseFailed)


@frozen
class ResultDigest:
    """The salt of an audit entry, and of a result, if there is one, the commitment without its sensitive values and
    the summary without any value.
    """

    salt: bytes
    digest: str | None
    summary: str | None = None
    # What looks like an injection attempt in the result.
    suspicions: tuple[Suspicion, ...] = ()


def _list_degradations(verified: Verified, claim: Claim | None = None) -> tuple[Degradation, ...]:
    executed = verified.executed
    degradations = executed.validated.degradations
    if claim is not None and claim.is_takeover:
        degradations += (Degradation.TAKEN_OVER,)
    if executed.is_late:
        degradations += (Degradation.LATE_RESULT,)
    if verified.hook_effects.has_failure:
        degradations += (Degradation.HOOK_FAILED,)
    if verified.is_rolled_back is not None:
        degradations += (Degradation.ROLLED_BACK if verified.is_rolled_back else Degradation.NOT_ROLLED_BACK,)
    return degradations


def _name_suspicions(validated: Validated | None, commitment: ResultDigest | None = None) -> Sequence[str]:
    """Name the kind and the place of each suspicion, as in `sql /arguments/query`; most calls have none."""
    in_arguments = validated.suspicions if validated is not None else ()
    in_result = commitment.suspicions if commitment is not None else ()
    if not in_arguments and not in_result:
        return ()
    names = [f"{each.kind} /arguments{each.path}" for each in in_arguments]
    return [*names, *(f"{each.kind} /result{each.path}" for each in in_result)]


def build_context(
    authorized: Authorized, call_id: str | None = None, *, approval_id: str | None = None
) -> AuditContext:
    """Build what every entry of an authorized call states; a call that was taken over keeps its first id."""
    validated, approval = authorized.validated, authorized.approval
    call = validated.call
    return AuditContext(
        caller=call.caller,
        trace_id=call.trail.trace_id,
        call_id=call_id or call.call_id,
        session=call.session,
        contract=validated.contract,
        continued_call_id=None if validated.input_round is None else validated.input_round.continued_call_id,
        approval_id=approval_id if approval is None else approval.request_id,
        origin=call.request.origin,
    )


def build_refusal_entry(
    runtime: Runtime,
    call: CallContext,
    validated: Validated | None,
    problem: Problem,
    state: State,
    passage: Passage | None = None,
) -> AuditEntryRow:
    """Build the entry of a refused call, with the requested tool name, which may not exist."""
    entry_id, request = runtime.clock.new_id(), call.request
    about = AuditContext(
        caller=call.caller,
        trace_id=call.trail.trace_id,
        call_id=call.call_id,
        session=call.session,
        contract=validated.contract if validated else None,
        tool=request.tool,
        continued_call_id=validated.input_round.continued_call_id if validated and validated.input_round else None,
        origin=request.origin,
    )
    body = encode_entry(
        about,
        id=entry_id,
        kind="refusal",
        time=runtime.stamps.now(),
        hooks=validated.hook_effects.actions if validated else (),
        suspicions=_name_suspicions(validated) if validated else (),
        decision=problem.decision or _get_refusing_rule(problem),
        outcome=state,
        error=problem.spec.e_number,
        passage=passage or trace_refusal(validated, problem, state),
        command=DRY_RUN if request.dry_run else None,
    )
    return AuditEntryRow(call.tenant, entry_id, call.call_id, body, None)


def _get_refusing_rule(problem: Problem) -> Decision | None:
    """Return the rule that refused a call before policies decided: one of the token, a limit or a hook."""
    rule = (problem.details or {}).get("rule")
    return Decision(rules=(rule,), epochs=_NO_EPOCHS) if isinstance(rule, str) and rule else None


def build_read_entry(verified: Verified, state: State, now: str, commitment: ResultDigest) -> AuditEntryRow:
    """Build the only entry of a read; its id is the call's id."""
    authorized, problem = verified.executed.authorized, verified.problem
    validated = authorized.validated
    call_id = validated.call.call_id
    salt = commitment.salt
    arguments, redactions = digest_arguments(validated, salt)
    body = encode_entry(
        build_context(authorized),
        id=call_id,
        kind="read",
        time=now,
        arguments=arguments,
        input_responses=digest_responses(validated, salt),
        redactions=redactions,
        mutations=validated.mutations,
        hooks=validated.hook_effects.actions + verified.hook_effects.actions,
        decision=authorized.decision,
        outcome=state,
        error=problem.spec.e_number if problem else None,
        result=commitment.digest,
        summary=commitment.summary,
        attempts=verified.executed.attempts,
        latency_us=int(verified.executed.seconds * 1_000_000),
        cost_micros=to_micros(cost) if (cost := verified.cost) else 0,
        degradations=_list_degradations(verified),
        suspicions=_name_suspicions(validated, commitment),
        passage=trace_read(verified, state),
    )
    return AuditEntryRow(validated.call.tenant, call_id, call_id, body, salt)


def build_failed_read_row(
    verified: Verified, state: State, problem: Problem, ciphertext: bytes, entry_row: AuditEntryRow
) -> FailedReadRow:
    """Build the row of a read that failed, with its sealed outcome, which whoever may read it finds later."""
    validated = verified.validated
    call, contract = validated.call, validated.contract
    return FailedReadRow(
        call.tenant, call.call_id, state, contract.full_name, contract.version, validated.tool.digest,
        contract.mutation_class, call.caller.user, call.caller.agent_key, call.session, problem.spec.slug,
        call.trail.trace_id, ciphertext, entry_row,
    )  # fmt: skip


def build_dry_run_entry(
    runtime: Runtime, authorized: Authorized, document: Mapping[str, Any], now: str
) -> AuditEntryRow:
    """Build the entry of a dry run: a read of what the call would have changed."""
    validated = authorized.validated
    call_id = validated.call.call_id
    salt = runtime.clock.random_bytes(SALT_BYTES)
    arguments, redactions = digest_arguments(validated, salt)
    body = encode_entry(
        build_context(authorized),
        id=call_id,
        kind="read",
        time=now,
        arguments=arguments,
        input_responses=digest_responses(validated, salt),
        redactions=redactions,
        mutations=validated.mutations,
        hooks=validated.hook_effects.actions,
        decision=authorized.decision,
        outcome=State.SUCCEEDED,
        result=compute_commitment(salt, canonicalize(dict(document))),
        scopes_commitment=digest_scopes(authorized, salt),
        suspicions=_name_suspicions(validated),
        passage=trace_dry_run(validated),
        command=DRY_RUN,
    )
    return AuditEntryRow(validated.call.tenant, call_id, call_id, body, salt)


def build_intent_entry(
    runtime: Runtime, authorized: Authorized, call_id: str, passage: Passage, *, approval_id: str | None = None
) -> tuple[str, bytes, bytes]:
    """Build the entry of a call that is about to be executed; return its id, bytes and salt."""
    validated = authorized.validated
    salt = runtime.clock.random_bytes(SALT_BYTES)
    arguments, redactions = digest_arguments(validated, salt)
    entry_id = runtime.clock.new_id()
    body = encode_entry(
        build_context(authorized, call_id, approval_id=approval_id),
        id=entry_id,
        kind="intent",
        time=runtime.stamps.now(),
        arguments=arguments,
        input_responses=digest_responses(validated, salt),
        redactions=redactions,
        mutations=validated.mutations,
        hooks=validated.hook_effects.actions,
        decision=authorized.decision,
        scopes_commitment=digest_scopes(authorized, salt),
        suspicions=_name_suspicions(validated),
        passage=passage,
    )
    return entry_id, body, salt


def build_opening_row(
    runtime: Runtime,
    authorized: Authorized,
    fingerprint: bytes,
    key: IdempotencyKey,
    state: State = State.RUNNING,
    *,
    is_continuation: bool = False,
) -> OpenCallRow:
    """Build the row of a call that is committed with this state."""
    validated = authorized.validated
    call = validated.call
    caller, contract = call.caller, validated.contract
    return OpenCallRow(
        caller.tenant, call.call_id, contract.full_name, contract.version, validated.tool.digest,
        contract.mutation_class, caller.user, caller.agent_key, call.session, fingerprint,
        key.scope, key.digest, contract.timeout.effective_seconds, key.window_seconds, call.trail.trace_id,
        *build_intent_entry(
            runtime, authorized, call.call_id, trace_opening(validated, state, is_continuation=is_continuation)
        ),
        call.request.undoes, None if call.request.replaces is None else call.request.replaces.call_id,
    )  # fmt: skip


def name_approval(runtime: Runtime, authorized: Authorized, row: OpenCallRow, approval_id: str) -> OpenCallRow:
    """Build the opening row of a call that waits for an approval request, whose id its entry names."""
    passage = trace_opening(authorized.validated, State.AWAITING_APPROVAL)
    entry_id, entry, salt = build_intent_entry(runtime, authorized, row.call_id, passage, approval_id=approval_id)
    return row._replace(entry_id=entry_id, entry=entry, salt=salt)


def derive_claim_scope(user: str, actor: str, tool: str) -> bytes:
    """Derive whose key it is. Never from a token id: with a renewed token, a caller can still repeat its own calls."""
    return hashlib.sha256(f"{user}\0{actor}\0{tool}".encode()).digest()


def build_closing_row(
    runtime: Runtime,
    verified: Verified,
    claim: Claim,
    state: State,
    problem: Problem | None,
    ciphertext: bytes | None,
    commitment: ResultDigest | None = None,
    before: State = State.RUNNING,
) -> CloseCallRow:
    """Build the row of a mutation's outcome; a proof that nothing happened releases the key.

    `before` is UNKNOWN if the outcome was recorded as unknown until now.
    """
    require_transition(before, state)
    authorized = verified.executed.authorized
    commitment = commitment or digest_result(verified, runtime.clock.random_bytes(SALT_BYTES))
    entry_id = runtime.clock.new_id()
    body = encode_entry(
        build_context(authorized, claim.call_id),
        id=entry_id,
        kind="outcome",
        time=runtime.stamps.now(),
        hooks=verified.hook_effects.actions,
        decision=authorized.decision,
        outcome=state,
        error=problem.spec.e_number if problem else None,
        result=commitment.digest,
        summary=commitment.summary,
        attempts=verified.executed.attempts,
        latency_us=int(verified.executed.seconds * 1_000_000),
        cost_micros=to_micros(cost) if (cost := verified.cost) else 0,
        degradations=_list_degradations(verified, claim),
        suspicions=_name_suspicions(None, commitment),
        passage=(
            trace_end(verified.executed, state, ran_post_hooks=verified.ran_post_hooks)
            if before is State.RUNNING
            else trace_step(before, state)
        ),
    )
    tenant = authorized.call.tenant
    # A canceled call keeps its key: a client that missed the cancellation and repeats the key must not undo it.
    release = problem is not None and problem.nothing_happened and not isinstance(problem, Canceled)
    if authorized.call.request.undoes is not None:
        # Until then, nobody else takes the same back.
        release = did_nothing(verified)
    error = problem.spec.slug if problem else None
    return CloseCallRow(
        tenant, claim.call_id, claim.epoch, state, error, release, ciphertext, entry_id, body, commitment.salt,
        build_journal_rows(runtime, verified, claim.call_id, entry_id),
    )  # fmt: skip


def build_abandoned_row(
    runtime: Runtime, authorized: Authorized, claim: Claim, problem: Problem | None = None
) -> CloseCallRow:
    """Build the row that ends a claim without dispatch: its deadline passed, or authority changed meanwhile.

    A mutation that was taken over stays unknown: its first owner may have acted.
    """
    reason = problem or DeadlineExceeded("the deadline passed before the tool started")
    executed = Executed(authorized=authorized, claim=claim, output=None, problem=reason, attempts=0, seconds=0)
    state = get_refusal_state(reason)
    contract = authorized.contract
    if claim.is_takeover and contract.mutation_class is not MutationClass.READ:
        state = State.UNKNOWN
        if not isinstance(reason, TooManyTakeovers | OutcomeUnknown):
            reason = OutcomeUnknown(
                f"the call was taken over and not dispatched again: {reason.message}",
                details={"cause": reason.spec.slug},
            )
    ciphertext = _seal_failure(runtime, authorized.call, claim, state, reason)
    return build_closing_row(runtime, Verified(executed=executed, problem=reason), claim, state, reason, ciphertext)


def _seal_failure(runtime: Runtime, call: CallContext, claim: Claim, state: State, problem: Problem) -> bytes | None:
    """Encrypt the failure envelope for readers of the call. The keys are loaded whenever a claim exists."""
    keys = runtime.keys.find(call.tenant)
    if keys is None:
        return None
    body = render_failure_envelope(
        problem, call_id=claim.call_id, state=state, trace_id=call.trail.trace_id, extra_fields={}
    )
    return keys.seal(claim.call_id, "outcome", body)


def build_lost_row(runtime: Runtime, authorized: Authorized, claim: Claim) -> CloseCallRow:
    """Build the row of a claim whose end is unknown; it changes nothing if an outcome is already recorded."""
    problem = OutcomeUnknown("the gateway lost track of the call")
    executed = Executed(authorized=authorized, claim=claim, output=None, problem=problem, attempts=0, seconds=0)
    return build_closing_row(runtime, Verified(executed=executed, problem=problem), claim, State.UNKNOWN, problem, None)


def build_unmade_entry(runtime: Runtime, call: CallContext, problem: Problem) -> tuple[str, bytes, bytes | None]:
    """Build the entry of a run that can no longer be executed and is begun to end it, with its tool's name."""
    passage, state = trace_step(None, State.RUNNING), get_refusal_state(problem)
    entry_row = build_refusal_entry(runtime, call, None, problem, state, passage)
    return entry_row.id, entry_row.entry, entry_row.salt


def build_yield_entry(runtime: Runtime, authorized: Authorized, call_id: str, before: State) -> AuditEntryRow:
    """Build the entry of a call that goes back to the queue, from its dispatch or from an unknown outcome."""
    entry_id = runtime.clock.new_id()
    is_running = before is State.RUNNING
    body = encode_entry(
        build_context(authorized, call_id),
        id=entry_id,
        kind="yield",
        time=runtime.stamps.now(),
        decision=authorized.decision,
        passage=trace_step(before, *((State.YIELDED,) if is_running else ()), State.QUEUED),
    )
    return AuditEntryRow(authorized.call.tenant, entry_id, call_id, body, None)


def build_unmade_closing_row(runtime: Runtime, call: CallContext, claim: Claim, problem: Problem) -> CloseCallRow:
    """Build the row that ends such a run, once it was begun for that."""
    state = get_refusal_state(problem) if problem.nothing_happened else get_failure_state(problem)
    if claim.is_takeover:
        state, problem = State.UNKNOWN, OutcomeUnknown(problem.message, details={"cause": problem.spec.slug})
    require_transition(State.RUNNING, state)
    ciphertext, tenant = _seal_failure(runtime, call, claim, state, problem), call.tenant
    slug, release = problem.spec.slug, problem.nothing_happened
    passage = trace_step(State.RUNNING, state)
    entry_row = build_refusal_entry(runtime, call, None, problem, state, passage)
    return CloseCallRow(
        tenant, claim.call_id, claim.epoch, state, slug, release, ciphertext, entry_row.id, entry_row.entry, None
    )


def digest_result(verified: Verified, salt: bytes) -> ResultDigest:
    """Commit to a result, and summarize it."""
    if verified.problem is not None:
        return ResultDigest(salt=salt, digest=None)
    if verified.input_requests is not None:
        return ResultDigest(salt=salt, digest=compute_commitment(salt, verified.canonical))
    visible_bytes, redacted_count = _redact_result(verified)
    summary = encode_summary(
        verified.payload,
        size=len(verified.canonical) - _RESULT_WRAPPER_BYTES,
        redacted_count=redacted_count,
        has_more=None if verified.result is None else verified.result.has_more,
    )
    return ResultDigest(
        salt=salt,
        digest=compute_commitment(salt, visible_bytes),
        summary=summary,
        suspicions=find_suspicions(_join_content(verified), verified.canonical),
    )


def _join_content(verified: Verified) -> Any:
    """Return the payload, or a document of it and the texts that the tool returned beside it."""
    texts = [each["text"] for each in verified.content if "text" in each]
    return {"result": verified.payload, "content": texts} if texts else verified.payload


def _redact_result(verified: Verified) -> tuple[bytes, int]:
    plan = get_redaction_plan(verified.validated.tool, "output")
    if plan.trivial:
        return verified.canonical, 0
    visible_payload, paths = plan.apply_marks(verified.payload)
    if not paths:
        return verified.canonical, 0
    content = {"content": list(verified.content)} if verified.content else {}
    return canonicalize({**content, "result": visible_payload}), len(paths)


def digest_arguments(validated: Validated, salt: bytes) -> tuple[str, tuple[str, ...]]:
    """Commit to the arguments without their sensitive values, and return the paths of those."""
    if validated.redacted_arguments is None and get_redaction_plan(validated.tool, "input").trivial:
        return compute_commitment(salt, validated.canonical), ()
    redacted_arguments = redact_arguments(validated)
    return compute_commitment(salt, redacted_arguments.canonical), redacted_arguments.paths


def digest_scopes(authorized: Authorized, salt: bytes) -> str | None:
    """Commit to the scopes that the arguments fill in, without sensitive values; None if they fill in none.

    The entry names the scopes as the contract declares them; with the salt, the ones of this call can be confirmed.
    """
    validated = authorized.validated
    tool, side_effects = validated.tool, authorized.side_effects
    if not tool.scope_arguments:
        return None
    plan = get_redaction_plan(tool, "input")
    if not plan.trivial or not side_effects:
        arguments = tool.fill_defaults(validated.call_input)
        scalars = {name: arguments[name] for name in tool.scope_arguments if isinstance(arguments.get(name), _SCALARS)}
        side_effects = tool.resolve_writes(plan.apply_marks(scalars)[0])
    return compute_commitment(salt, _join_scopes(side_effects).encode())


def _join_scopes(side_effects: Iterable[tuple[str, str, str]]) -> str:
    return "\n".join([scope for _, _, scope in side_effects])


def digest_responses(validated: Validated, salt: bytes) -> str | None:
    """Commit to the input responses, without secrets and personal data."""
    if validated.input_round is None:
        return None
    return compute_commitment(salt, canonicalize(redact_responses(validated.input_round.responses)))


def trace_opening(validated: Validated, state: State, *, is_continuation: bool = False) -> Passage:
    """Trace a call from its request to the state its first entry is committed with.

    With `is_continuation`, the call began inside its request and yielded, to go on as a run.
    """
    return _build_opening(validated.runs_pre_hooks, state, is_continuation)


@cache
def _build_opening(pre_hooks: bool, state: State, is_continuation: bool) -> Passage:
    earlier_states = (S.RUNNING, S.YIELDED) if is_continuation else ()
    return Passage(*_list_first_states(pre_hooks), *earlier_states, state)


def trace_read(verified: Verified, state: State) -> Passage:
    """Trace a read from its request to its end: it has one entry."""
    executed = verified.executed
    return _build_read(executed.validated.runs_pre_hooks, executed.has_partial_result, verified.ran_post_hooks, state)


@cache
def _build_read(pre_hooks: bool, partial: bool, post_hooks: bool, state: State) -> Passage:
    return Passage(*_list_first_states(pre_hooks), S.RUNNING, *_list_last_states(partial, post_hooks), state)


def trace_dry_run(validated: Validated) -> Passage:
    """Trace a dry run: its tool's preview was executed."""
    return _build_read(validated.runs_pre_hooks, False, False, S.SUCCEEDED)


def trace_end(executed: Executed, state: State, *, ran_post_hooks: bool = False) -> Passage:
    """Trace a claimed call from its dispatch to its end."""
    return _build_end(executed.has_partial_result, ran_post_hooks, state)


@cache
def _build_end(partial: bool, post_hooks: bool, state: State) -> Passage:
    return Passage(*_list_last_states(partial, post_hooks), state, before=S.RUNNING)


def trace_refusal(validated: Validated | None, problem: Problem, state: State) -> Passage:
    """Trace a refused call as far as it came; if another entry has its path, name only the state of the answer."""
    if problem.is_recorded:
        return trace_step(None, state)
    if validated is None:
        return _build_early_refusal(isinstance(problem, _ARGUMENT_PROBLEMS), state)
    return _build_refusal(validated.runs_pre_hooks, state)


@cache
def _build_early_refusal(is_selected: bool, state: State) -> Passage:
    return Passage(S.PLANNED, *((S.SELECTED,) if is_selected else ()), state)


@cache
def _build_refusal(pre_hooks: bool, state: State) -> Passage:
    # An outcome is unknown only if the tool may have been executed.
    return Passage(*_list_first_states(pre_hooks), *((S.RUNNING,) if state is S.UNKNOWN else ()), state)


@cache
def trace_step(before: State | None, *states: State) -> Passage:
    """Trace a stored call from one state to the next."""
    return Passage(*states, before=before)


def _list_first_states(pre_hooks: bool) -> tuple[State, ...]:
    return (*_ARGUMENTS_READY, S.PRE_HOOKS_RUNNING) if pre_hooks else _ARGUMENTS_READY


def _list_last_states(partial: bool, post_hooks: bool) -> tuple[State, ...]:
    return (*((S.PARTIAL_RESULT,) if partial else ()), *((S.POST_HOOKS_RUNNING,) if post_hooks else ()))
