"""What each phase writes down: entries and rows made from the phase types, so that no phase spells out a format."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from deputize.catalog.compiled import CompiledTool
from deputize.core.canonical import canonical, commitment
from deputize.core.contract import MutationClass
from deputize.core.errors import Canceled, DeadlineExceeded, GivenUp, OutcomeUnknown, Problem
from deputize.core.events import State
from deputize.core.outcome import failure_body
from deputize.lifecycle.phases import Authorized, Executed, Held, Received, Validated, Verified
from deputize.lifecycle.reply import state_of_refusal
from deputize.lifecycle.rooms import Rooms
from deputize.prove.entries import About, entry
from deputize.prove.redact import RedactionPlan
from deputize.store.rows import Closing, Entry, Opening

DRY_RUN: Final = "dry_run"
_SALT_BYTES = 16
_plans: dict[tuple[str, str], RedactionPlan] = {}


def redaction_of(tool: CompiledTool, side: str) -> RedactionPlan:
    plan = _plans.get((tool.digest, side))
    if plan is None:
        schema = tool.contract.input_schema if side == "input" else tool.contract.output_schema
        plan = _plans[tool.digest, side] = RedactionPlan(schema)
    return plan


def _argument_commitment(validated: Validated, salt: bytes) -> tuple[str, tuple[str, ...]]:
    plan = redaction_of(validated.tool, "input")
    if plan.trivial:
        return commitment(salt, validated.canonical), ()
    redacted, paths = plan.apply(validated.received.request.arguments)
    return commitment(salt, canonical(redacted) if paths else validated.canonical), paths


def _result_commitment(verified: Verified, salt: bytes) -> str | None:
    if verified.problem is not None:
        return None
    if verified.asks is not None:
        return commitment(salt, verified.canonical)
    plan = redaction_of(verified.executed.authorized.validated.tool, "output")
    if plan.trivial:
        return commitment(salt, verified.canonical)
    redacted, paths = plan.apply(verified.payload)
    return commitment(salt, canonical({"result": redacted}) if paths else verified.canonical)


def _about(validated: Validated, call_id: str) -> About:
    received = validated.received
    return About(
        caller=received.caller,
        trace=received.trail.trace_id,
        call=call_id,
        session=received.session,
        contract=validated.tool.contract,
        continues=None if validated.round is None else validated.round.continues,
    )


def _answers_commitment(validated: Validated, salt: bytes) -> str | None:
    """Nothing of them is left out: a question that asks for a secret was refused."""
    return None if validated.round is None else commitment(salt, canonical(validated.round.responses))


def refusal(rooms: Rooms, received: Received, validated: Validated | None, problem: Problem, state: State) -> Entry:
    """A refused call, by name as it was asked for: the name may belong to nothing."""
    entry_id = rooms.clock.new_id()
    about = About(
        caller=received.caller,
        trace=received.trail.trace_id,
        call=received.call_id,
        session=received.session,
        contract=validated.tool.contract if validated else None,
        tool=received.request.tool,
        continues=validated.round.continues if validated and validated.round else None,
    )
    body = entry(
        about,
        id=entry_id,
        kind="refusal",
        time=rooms.stamps.now(),
        hooks=validated.hooked.did if validated else (),
        decision=problem.decision,
        outcome=state,
        error=problem.face.e_number,
        command=DRY_RUN if received.request.dry_run else None,
    )
    return Entry(received.caller.tenant, entry_id, received.call_id, body, None)


def read(rooms: Rooms, verified: Verified, state: State, now: str) -> Entry:
    """A read's one entry, which goes by the call's own id."""
    authorized, problem = verified.executed.authorized, verified.problem
    validated = authorized.validated
    call_id = validated.received.call_id
    salt = rooms.clock.random_bytes(_SALT_BYTES)
    arguments, redactions = _argument_commitment(validated, salt)
    body = entry(
        _about(validated, call_id),
        id=call_id,
        kind="read",
        time=now,
        arguments=arguments,
        answers=_answers_commitment(validated, salt),
        redactions=redactions,
        mutations=validated.mutations,
        hooks=validated.hooked.did + verified.hooked.did,
        decision=authorized.decision,
        outcome=state,
        error=problem.face.e_number if problem else None,
        result=_result_commitment(verified, salt),
    )
    return Entry(validated.received.caller.tenant, call_id, call_id, body, salt)


def dry_run(rooms: Rooms, authorized: Authorized, shown: Mapping[str, Any], now: str) -> Entry:
    """A call that was looked at and not made: a read of what it would have changed."""
    validated = authorized.validated
    call_id = validated.received.call_id
    salt = rooms.clock.random_bytes(_SALT_BYTES)
    arguments, redactions = _argument_commitment(validated, salt)
    body = entry(
        _about(validated, call_id),
        id=call_id,
        kind="read",
        time=now,
        arguments=arguments,
        answers=_answers_commitment(validated, salt),
        redactions=redactions,
        mutations=validated.mutations,
        hooks=validated.hooked.did,
        decision=authorized.decision,
        outcome=State.SUCCEEDED,
        result=commitment(salt, canonical(dict(shown))),
        command=DRY_RUN,
    )
    return Entry(validated.received.caller.tenant, call_id, call_id, body, salt)


def intent(rooms: Rooms, authorized: Authorized, call_id: str) -> tuple[str, bytes, bytes]:
    """The id, bytes and salt of the entry that says what is about to be done."""
    validated = authorized.validated
    salt = rooms.clock.random_bytes(_SALT_BYTES)
    arguments, redactions = _argument_commitment(validated, salt)
    entry_id = rooms.clock.new_id()
    body = entry(
        _about(validated, call_id),
        id=entry_id,
        kind="intent",
        time=rooms.stamps.now(),
        arguments=arguments,
        answers=_answers_commitment(validated, salt),
        redactions=redactions,
        mutations=validated.mutations,
        hooks=validated.hooked.did,
        decision=authorized.decision,
    )
    return entry_id, body, salt


def opening(rooms: Rooms, authorized: Authorized, fingerprint: bytes, key: str | None, window: int) -> Opening:
    validated = authorized.validated
    received = validated.received
    caller, contract = received.caller, validated.tool.contract
    return Opening(
        caller.tenant, received.call_id, contract.full_name, contract.version, validated.tool.digest,
        contract.mutation_class, caller.user, caller.acting, received.session, fingerprint,
        None if key is None else claim_scope(caller.user, caller.acting, contract.full_name),
        None if key is None else hashlib.sha256(key.encode()).digest(),
        contract.timeout.effective_seconds, window, received.trail.trace_id,
        *intent(rooms, authorized, received.call_id),
    )  # fmt: skip


def claim_scope(user: str, acting: str, tool: str) -> bytes:
    """Whose key it is. Never a token id: a renewed token repeats its caller's calls, not somebody else's."""
    return hashlib.sha256(f"{user}\0{acting}\0{tool}".encode()).digest()


def closing(
    rooms: Rooms, verified: Verified, held: Held, state: State, problem: Problem | None, box: bytes | None
) -> Closing:
    """A mutation's outcome. What proves that nothing happened gives the key back."""
    authorized = verified.executed.authorized
    salt = rooms.clock.random_bytes(_SALT_BYTES)
    entry_id = rooms.clock.new_id()
    body = entry(
        _about(authorized.validated, held.call_id),
        id=entry_id,
        kind="outcome",
        time=rooms.stamps.now(),
        hooks=verified.hooked.did,
        decision=authorized.decision,
        outcome=state,
        error=problem.face.e_number if problem else None,
        result=_result_commitment(verified, salt),
    )
    tenant = authorized.validated.received.caller.tenant
    # Somebody canceled it: whoever sends the same key again did not hear of that, and must not undo it.
    release = problem is not None and problem.nothing_happened and not isinstance(problem, Canceled)
    error = problem.face.slug if problem else None
    return Closing(tenant, held.call_id, held.epoch, state, error, release, box, entry_id, body, salt)


def abandoned(rooms: Rooms, authorized: Authorized, held: Held, problem: Problem | None = None) -> Closing:
    """The end of a hold that led to nothing: its time ran out before dispatch, or authority changed under it.

    A mutation that was taken over stays unknown: its first owner may have acted.
    """
    reason = problem or DeadlineExceeded("the deadline passed before the tool was started")
    nothing = Executed(authorized=authorized, held=held, output=None, problem=reason, attempts=0, seconds=0)
    state = state_of_refusal(reason)
    contract = authorized.validated.tool.contract
    if held.taken_over and contract.mutation_class is not MutationClass.READ:
        state = State.UNKNOWN
        if not isinstance(reason, GivenUp | OutcomeUnknown):
            reason = OutcomeUnknown(
                f"the call was taken over and not dispatched again: {reason.message}",
                details={"cause": reason.face.slug},
            )
    box = _envelope(rooms, authorized.validated.received, held, state, reason)
    return closing(rooms, Verified(executed=nothing, problem=reason), held, state, reason, box)


def _envelope(rooms: Rooms, received: Received, held: Held, state: State, problem: Problem) -> bytes | None:
    """What whoever looks for the call is told. The keys are ready wherever something is held."""
    keys = rooms.keys.ready(received.caller.tenant)
    if keys is None:
        return None
    body = failure_body(problem, call_id=held.call_id, state=state, trace_id=received.trail.trace_id, more={})
    return keys.seal(held.call_id, "outcome", body)


def lost(rooms: Rooms, authorized: Authorized, held: Held) -> Closing:
    """The end of a hold that nobody can tell the end of. Changes nothing where an outcome is recorded already."""
    unknown = OutcomeUnknown("the gateway lost track of the call")
    executed = Executed(authorized=authorized, held=held, output=None, problem=unknown, attempts=0, seconds=0)
    return closing(rooms, Verified(executed=executed, problem=unknown), held, State.UNKNOWN, unknown, None)


def ended_unmade(rooms: Rooms, received: Received, problem: Problem) -> tuple[str, bytes, bytes | None]:
    """An entry about a run that cannot be made any more, by the name its tool had."""
    made = refusal(rooms, received, None, problem, state_of_refusal(problem))
    return made.id, made.entry, made.salt


def closing_unmade(
    rooms: Rooms, received: Received, held: Held, problem: Problem, entry_of: tuple[str, bytes, bytes | None]
) -> Closing:
    state = state_of_refusal(problem)
    if held.taken_over:
        state, problem = State.UNKNOWN, OutcomeUnknown(problem.message, details={"cause": problem.face.slug})
    box, tenant = _envelope(rooms, received, held, state, problem), received.caller.tenant
    slug, release = problem.face.slug, problem.nothing_happened
    return Closing(tenant, held.call_id, held.epoch, state, slug, release, box, *entry_of)
