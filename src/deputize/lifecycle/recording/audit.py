"""Build audit entries and rows from the phase types, so that no phase spells out a format.

Entries commit to redacted arguments and results. Large documents are redacted in a thread, because each value is
looked at.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from deputize.catalog.compiled_tool import CompiledTool
from deputize.core.bounded_dict import BoundedDict
from deputize.core.canonical import canonicalize, compute_commitment
from deputize.core.contract.contract import MutationClass
from deputize.core.errors import Canceled, DeadlineExceeded, OutcomeUnknown, Problem, TooManyTakeovers
from deputize.core.json_values import is_large_document
from deputize.core.outcome import render_failure_envelope
from deputize.core.states import State
from deputize.core.value_types import frozen
from deputize.evidence.audit_entries import AuditContext, encode_entry
from deputize.evidence.redact import RedactionPlan
from deputize.lifecycle.envelope import get_refusal_state
from deputize.lifecycle.phases import Authorized, Claim, Executed, Received, RedactedArguments, Validated, Verified
from deputize.lifecycle.runtime import Runtime
from deputize.store.commit_rows import AuditEntryRow, CloseCallRow, OpenCallRow

DRY_RUN: Final = "dry_run"
SALT_BYTES: Final = 16
T = TypeVar("T")
_redaction_plans: BoundedDict[tuple[str, str], RedactionPlan] = BoundedDict(10_000)


def get_redaction_plan(tool: CompiledTool, side: str) -> RedactionPlan:
    plan = _redaction_plans.get((tool.digest, side))
    if plan is None:
        schema = tool.contract.input_schema if side == "input" else tool.contract.output_schema
        plan = _redaction_plans.put((tool.digest, side), RedactionPlan(schema))
    return plan


async def run_for_document(canonical: bytes, work: Callable[[], T]) -> T:
    """Run work that looks at each value of a document: here if it is small, in a thread if it is large."""
    return await asyncio.to_thread(work) if is_large_document(canonical) else work()


async def prepare_redaction(validated: Validated) -> Validated:
    """Redact large arguments in a thread, before anything commits to them; small ones are redacted when needed."""
    if not is_large_document(validated.canonical):
        return validated
    return replace(validated, redacted_arguments=await asyncio.to_thread(redact_arguments, validated))


def redact_arguments(validated: Validated) -> RedactedArguments:
    """Redact the arguments as they were sent."""
    if validated.redacted_arguments is not None:
        return validated.redacted_arguments
    visible_arguments, paths = get_redaction_plan(validated.tool, "input").apply(validated.received.request.arguments)
    return RedactedArguments(canonical=canonicalize(visible_arguments) if paths else validated.canonical, paths=paths)


@frozen
class ResultCommitment:
    """The salt of an audit entry, and the commitment to a result without its sensitive values, if there is one."""

    salt: bytes
    digest: str | None


def commit_result(verified: Verified, salt: bytes) -> ResultCommitment:
    """Commit to a result."""
    if verified.problem is not None:
        return ResultCommitment(salt=salt, digest=None)
    visible_bytes = verified.canonical if verified.input_requests is not None else _redact_result(verified)
    return ResultCommitment(salt=salt, digest=compute_commitment(salt, visible_bytes))


def _redact_result(verified: Verified) -> bytes:
    plan = get_redaction_plan(verified.executed.authorized.validated.tool, "output")
    if plan.trivial:
        return verified.canonical
    visible_payload, paths = plan.apply(verified.payload)
    return canonicalize({"result": visible_payload}) if paths else verified.canonical


def _commit_arguments(validated: Validated, salt: bytes) -> tuple[str, tuple[str, ...]]:
    redacted_arguments = redact_arguments(validated)
    return compute_commitment(salt, redacted_arguments.canonical), redacted_arguments.paths


def _build_subject(validated: Validated, call_id: str) -> AuditContext:
    received = validated.received
    return AuditContext(
        caller=received.caller,
        trace_id=received.trail.trace_id,
        call_id=call_id,
        session=received.session,
        contract=validated.tool.contract,
        continued_call_id=None if validated.input_round is None else validated.input_round.continued_call_id,
    )


def _commit_responses(validated: Validated, salt: bytes) -> str | None:
    """Commit to the input responses, without redaction: a question for a secret is refused beforehand."""
    return (
        None
        if validated.input_round is None
        else compute_commitment(salt, canonicalize(validated.input_round.responses))
    )


def build_refusal_entry(
    runtime: Runtime, received: Received, validated: Validated | None, problem: Problem, state: State
) -> AuditEntryRow:
    """Build the entry of a refused call, with the requested tool name, which may not exist."""
    entry_id = runtime.clock.new_id()
    about = AuditContext(
        caller=received.caller,
        trace_id=received.trail.trace_id,
        call_id=received.call_id,
        session=received.session,
        contract=validated.tool.contract if validated else None,
        tool=received.request.tool,
        continued_call_id=validated.input_round.continued_call_id if validated and validated.input_round else None,
    )
    body = encode_entry(
        about,
        id=entry_id,
        kind="refusal",
        time=runtime.stamps.now(),
        hooks=validated.hook_effects.actions if validated else (),
        decision=problem.decision,
        outcome=state,
        error=problem.spec.e_number,
        command=DRY_RUN if received.request.dry_run else None,
    )
    return AuditEntryRow(received.caller.tenant, entry_id, received.call_id, body, None)


def build_read_entry(verified: Verified, state: State, now: str, commitment: ResultCommitment) -> AuditEntryRow:
    """Build the only entry of a read; its id is the call's id."""
    authorized, problem = verified.executed.authorized, verified.problem
    validated = authorized.validated
    call_id = validated.received.call_id
    salt = commitment.salt
    arguments, redactions = _commit_arguments(validated, salt)
    body = encode_entry(
        _build_subject(validated, call_id),
        id=call_id,
        kind="read",
        time=now,
        arguments=arguments,
        answers=_commit_responses(validated, salt),
        redactions=redactions,
        mutations=validated.mutations,
        hooks=validated.hook_effects.actions + verified.hook_effects.actions,
        decision=authorized.decision,
        outcome=state,
        error=problem.spec.e_number if problem else None,
        result=commitment.digest,
    )
    return AuditEntryRow(validated.received.caller.tenant, call_id, call_id, body, salt)


def build_dry_run_entry(
    runtime: Runtime, authorized: Authorized, document: Mapping[str, Any], now: str
) -> AuditEntryRow:
    """Build the entry of a dry run: a read of what the call would have changed."""
    validated = authorized.validated
    call_id = validated.received.call_id
    salt = runtime.clock.random_bytes(SALT_BYTES)
    arguments, redactions = _commit_arguments(validated, salt)
    body = encode_entry(
        _build_subject(validated, call_id),
        id=call_id,
        kind="read",
        time=now,
        arguments=arguments,
        answers=_commit_responses(validated, salt),
        redactions=redactions,
        mutations=validated.mutations,
        hooks=validated.hook_effects.actions,
        decision=authorized.decision,
        outcome=State.SUCCEEDED,
        result=compute_commitment(salt, canonicalize(dict(document))),
        command=DRY_RUN,
    )
    return AuditEntryRow(validated.received.caller.tenant, call_id, call_id, body, salt)


def build_intent_entry(runtime: Runtime, authorized: Authorized, call_id: str) -> tuple[str, bytes, bytes]:
    """Build the entry of a call that is about to be executed; return its id, bytes and salt."""
    validated = authorized.validated
    salt = runtime.clock.random_bytes(SALT_BYTES)
    arguments, redactions = _commit_arguments(validated, salt)
    entry_id = runtime.clock.new_id()
    body = encode_entry(
        _build_subject(validated, call_id),
        id=entry_id,
        kind="intent",
        time=runtime.stamps.now(),
        arguments=arguments,
        answers=_commit_responses(validated, salt),
        redactions=redactions,
        mutations=validated.mutations,
        hooks=validated.hook_effects.actions,
        decision=authorized.decision,
    )
    return entry_id, body, salt


def build_opening_row(
    runtime: Runtime, authorized: Authorized, fingerprint: bytes, key: str | None, window: int
) -> OpenCallRow:
    validated = authorized.validated
    received = validated.received
    caller, contract = received.caller, validated.tool.contract
    return OpenCallRow(
        caller.tenant, received.call_id, contract.full_name, contract.version, validated.tool.digest,
        contract.mutation_class, caller.user, caller.agent_chain, received.session, fingerprint,
        None if key is None else derive_claim_scope(caller.user, caller.agent_chain, contract.full_name),
        None if key is None else hashlib.sha256(key.encode()).digest(),
        contract.timeout.effective_seconds, window, received.trail.trace_id,
        *build_intent_entry(runtime, authorized, received.call_id),
    )  # fmt: skip


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
    commitment: ResultCommitment | None = None,
) -> CloseCallRow:
    """Build the row of a mutation's outcome; a proof that nothing happened releases the key."""
    authorized = verified.executed.authorized
    commitment = commitment or commit_result(verified, runtime.clock.random_bytes(SALT_BYTES))
    entry_id = runtime.clock.new_id()
    body = encode_entry(
        _build_subject(authorized.validated, claim.call_id),
        id=entry_id,
        kind="outcome",
        time=runtime.stamps.now(),
        hooks=verified.hook_effects.actions,
        decision=authorized.decision,
        outcome=state,
        error=problem.spec.e_number if problem else None,
        result=commitment.digest,
    )
    tenant = authorized.validated.received.caller.tenant
    # A canceled call keeps its key: a client that missed the cancellation and repeats the key must not undo it.
    release = problem is not None and problem.nothing_happened and not isinstance(problem, Canceled)
    error = problem.spec.slug if problem else None
    return CloseCallRow(
        tenant, claim.call_id, claim.epoch, state, error, release, ciphertext, entry_id, body, commitment.salt
    )


def build_abandoned_row(
    runtime: Runtime, authorized: Authorized, claim: Claim, problem: Problem | None = None
) -> CloseCallRow:
    """Build the row that ends a claim without dispatch: its deadline passed, or authority changed meanwhile.

    A mutation that was taken over stays unknown: its first owner may have acted.
    """
    reason = problem or DeadlineExceeded("the deadline passed before the tool started")
    executed = Executed(authorized=authorized, claim=claim, output=None, problem=reason, attempts=0, seconds=0)
    state = get_refusal_state(reason)
    contract = authorized.validated.tool.contract
    if claim.is_takeover and contract.mutation_class is not MutationClass.READ:
        state = State.UNKNOWN
        if not isinstance(reason, TooManyTakeovers | OutcomeUnknown):
            reason = OutcomeUnknown(
                f"the call was taken over and not dispatched again: {reason.message}",
                details={"cause": reason.spec.slug},
            )
    ciphertext = _seal_failure(runtime, authorized.validated.received, claim, state, reason)
    return build_closing_row(runtime, Verified(executed=executed, problem=reason), claim, state, reason, ciphertext)


def _seal_failure(runtime: Runtime, received: Received, claim: Claim, state: State, problem: Problem) -> bytes | None:
    """Encrypt the failure envelope for readers of the call. The keys are loaded whenever a claim exists."""
    keys = runtime.keys.find(received.caller.tenant)
    if keys is None:
        return None
    body = render_failure_envelope(
        problem, call_id=claim.call_id, state=state, trace_id=received.trail.trace_id, extra_fields={}
    )
    return keys.seal(claim.call_id, "outcome", body)


def build_lost_row(runtime: Runtime, authorized: Authorized, claim: Claim) -> CloseCallRow:
    """Build the row of a claim whose end is unknown; it changes nothing if an outcome is already recorded."""
    problem = OutcomeUnknown("the gateway lost track of the call")
    executed = Executed(authorized=authorized, claim=claim, output=None, problem=problem, attempts=0, seconds=0)
    return build_closing_row(runtime, Verified(executed=executed, problem=problem), claim, State.UNKNOWN, problem, None)


def build_unmade_entry(runtime: Runtime, received: Received, problem: Problem) -> tuple[str, bytes, bytes | None]:
    """Build the entry of a run that can no longer be executed, with its tool's name."""
    entry_row = build_refusal_entry(runtime, received, None, problem, get_refusal_state(problem))
    return entry_row.id, entry_row.entry, entry_row.salt


def build_unmade_closing_row(
    runtime: Runtime, received: Received, claim: Claim, problem: Problem, entry_parts: tuple[str, bytes, bytes | None]
) -> CloseCallRow:
    state = get_refusal_state(problem)
    if claim.is_takeover:
        state, problem = State.UNKNOWN, OutcomeUnknown(problem.message, details={"cause": problem.spec.slug})
    ciphertext, tenant = _seal_failure(runtime, received, claim, state, problem), received.caller.tenant
    slug, release = problem.spec.slug, problem.nothing_happened
    return CloseCallRow(tenant, claim.call_id, claim.epoch, state, slug, release, ciphertext, *entry_parts)
