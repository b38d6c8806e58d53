"""Claim a mutation: make its intent durable before its effect, at most once per key.

undo                    the entry that it takes back, which one call holds until it is known to have done nothing
retry                   the key of the call that it replaces, taken over from that call alone
input responses         the key of their round, which is answered once
no key                  a fresh call, a joined one (idempotent tools), or a refusal (irreversible ones, unless a rule
                        says that their key is optional)
key is free             this call gets it
key holds other input   422
key holds an outcome    that outcome, byte for byte
key holds a running call, or one whose outcome is unknown
                        taken over if the upstream deduplicates and the owner is gone, else 409 or UNKNOWN
"""

import asyncio
import hashlib
import traceback
from dataclasses import replace
from functools import partial
from types import TracebackType
from uuid import UUID

import asyncpg
import structlog

from deputize.core.caller import Epochs
from deputize.core.canonical import compute_fingerprint
from deputize.core.contract.contract import Contract, MutationClass, UpstreamIdempotency, is_safe_to_repeat
from deputize.core.errors import (
    CallInFlight,
    IdempotencyKeyRequired,
    IdempotencyKeyReused,
    OutcomeUnknown,
    Problem,
    RestoredSince,
    RoundTokenRejected,
    Unavailable,
    find_problem_type,
)
from deputize.core.outcome import Envelope, Outcome, build_failure_envelope
from deputize.core.states import FINAL_STATES, State
from deputize.lifecycle.authorize import reauthorize
from deputize.lifecycle.compensation.later_writers import require_no_later_writer
from deputize.lifecycle.elicitation.round_token import derive_round_key
from deputize.lifecycle.phases import Authorized, Claim, IdempotencyKey
from deputize.lifecycle.recording import audit
from deputize.lifecycle.recording.audit import UNDO_SCOPE, derive_claim_scope, trace_step
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.tenant_snapshot import load_epochs
from deputize.store.commit_rows import CommitResult, OpenCallRow
from deputize.store.keys import KeySet
from deputize.store.queries import load_statements

_SQL = load_statements("calls")
_EPOCHS = load_statements("epochs")
_LINEAGE = load_statements("lineage")
# A request that waits for another's outcome looks again after a tenth of the time it has waited, within these bounds:
# hundreds of them must not take the connections from everybody else.
_JOIN_POLL_SECONDS, _MAX_JOIN_POLL_SECONDS = 0.05, 1.0
_JOIN_POLL_SHARE = 0.1
_STILL_RUNNING = "a call with this idempotency key is still running"
log = structlog.get_logger(__name__)


async def acquire_claim(runtime: Runtime, authorized: Authorized) -> tuple[Authorized, Claim] | Outcome:
    """Acquire the claim, with the authority it was acquired under, or return the outcome the key already has."""
    call = authorized.call
    contract = authorized.contract
    keys = await runtime.keys.get(call.tenant)
    arguments_digest = compute_fingerprint(keys.fingerprint_key, contract.full_name, authorized.validated.request_bytes)
    key = derive_key(authorized, arguments_digest)
    row = audit.build_opening_row(runtime, authorized, arguments_digest, key)
    await require_known_key(runtime, authorized, row)
    commit = await _commit_opening(runtime, authorized, row)
    if commit.holder is None:
        claim = Claim(call_id=call.call_id, epoch=1)
        return await confirm_authorization(runtime, authorized, commit.epochs, claim), claim
    # A replay is authorized as of this commit too: a caller revoked before it is not shown the outcome.
    authorized = await reauthorize_if_stale(runtime, authorized, commit.epochs, is_recorded=False)
    return await _resolve_holder(runtime, authorized, keys, commit.holder, arguments_digest, key)


async def find_stored_outcome(runtime: Runtime, authorized: Authorized) -> Outcome | None:
    """Find the outcome that the call's key already has, and claim nothing; None if the call needs its service.

    For a call whose service is not free. Raises what `acquire_claim` would, so that a repeat is answered alike.
    """
    call, contract = authorized.call, authorized.contract
    caller = call.caller
    keys = await runtime.keys.get(caller.tenant)
    arguments_digest = compute_fingerprint(keys.fingerprint_key, contract.full_name, authorized.validated.request_bytes)
    key = derive_key(authorized, arguments_digest)
    if key.digest is None or key.is_join:
        return None
    async with runtime.store.write_transaction() as connection:
        found_id = await connection.fetchval(_SQL["find_key_holder"], caller.tenant, key.scope, key.digest, None)
        if found_id is None:
            return None
        # As in a commit: a revocation under way is waited for, and a revoked caller is not shown the outcome.
        await connection.execute(_EPOCHS["lock_barrier_shared"], caller.tenant)
        epochs = await load_epochs(connection, caller.tenant)
    authorized = await reauthorize_if_stale(runtime, authorized, epochs, is_recorded=False)
    holder_id = str(found_id)
    holder_call = await load_holder_call(runtime, authorized, holder_id)
    outcome = _replay_ended_call(runtime, authorized, keys, holder_id, holder_call, arguments_digest, key)
    if outcome is None and not _can_take_over(contract, holder_call):
        raise _build_in_flight_error(_STILL_RUNNING, holder_id)
    return outcome


async def require_known_key(runtime: Runtime, authorized: Authorized, row: OpenCallRow) -> None:
    """Refuse a key that is not on record while it may belong to a call that a restored database has forgotten.

    The caller, who knows what happened, can state that it did not. A key is remembered for the tool's window, so after
    that time no forgotten call counts any more.
    """
    recovered_at, request = runtime.lineage.recovered_at, authorized.call.request
    # The answer to an input round has a key of its own, whether the caller sends one or not.
    if recovered_at is None or row.key is None or request.did_not_happen:
        return
    if runtime.clock.epoch_ms() / 1000 >= recovered_at + row.window_seconds:
        return
    async with runtime.store.write_transaction() as connection:
        is_claimed = await connection.fetchval(_LINEAGE["is_key_claimed"], row.tenant, row.scope, row.key)
    # Of a call that replaces another one, the key was claimed before: whether it was made already is not known.
    if not is_claimed or row.replaces is not None:
        raise RestoredSince(
            "the database was restored to an earlier time, and a call with this key may have happened in the time that "
            "it lost",
            nothing_happened=True,
        )


def build_key_reuse_error(authorized: Authorized) -> Problem:
    """Build the refusal of a key that holds a call with other arguments."""
    if authorized.validated.input_round is not None:
        return RoundTokenRejected("this round is already answered, with other responses; make the call again")
    if authorized.call.request.undoes is not None:
        return IdempotencyKeyReused(
            "another call takes the same back, with other arguments: see how it ends", nothing_happened=True
        )
    return IdempotencyKeyReused("this idempotency key was used for a call with other arguments", nothing_happened=True)


def derive_key(authorized: Authorized, arguments_digest: bytes) -> IdempotencyKey:
    """Derive what the call claims, and for how long."""
    call, contract = authorized.call, authorized.contract
    request = call.request
    if request.undoes is not None:
        # Everybody's, and whatever key was sent: two people must not take back the same thing.
        return IdempotencyKey(
            scope=UNDO_SCOPE, digest=UUID(request.undoes).bytes, window_seconds=contract.window_seconds
        )
    if (replaced := request.replaces) is not None:
        return IdempotencyKey(scope=replaced.scope, digest=replaced.key, window_seconds=replaced.window_seconds)
    value, is_join = _name_key(authorized, arguments_digest)
    if value is None:
        return IdempotencyKey(window_seconds=contract.window_seconds)
    return IdempotencyKey(
        scope=derive_claim_scope(call.caller.user, call.caller.agent_chain, contract.full_name),
        digest=hashlib.sha256(value.encode()).digest(),
        window_seconds=0 if is_join else contract.window_seconds,
        is_join=is_join,
    )


def _name_key(authorized: Authorized, arguments_digest: bytes) -> tuple[str | None, bool]:
    call, contract = authorized.call, authorized.contract
    if authorized.validated.input_round is not None:
        # Whatever key the caller sends: that one holds the call whose input requests this answers.
        return derive_round_key(authorized.validated.input_round.continued_call_id), False
    if call.request.idempotency_key is not None:
        return call.request.idempotency_key, False
    if contract.idempotency.upstream is UpstreamIdempotency.IDEMPOTENT and call.session is not None:
        return f"join\0{call.session}\0{arguments_digest.hex()}", True
    if contract.mutation_class is MutationClass.WRITE_IRREVERSIBLE and not authorized.decision.is_key_optional:
        raise IdempotencyKeyRequired(f"{contract.full_name} is irreversible, so it requires an idempotency key")
    return None, False


async def _commit_opening(runtime: Runtime, authorized: Authorized, row: OpenCallRow) -> CommitResult:
    """Wait until the opening row is durable, but not past the deadline; a later commit is released again."""
    seconds_left = authorized.validated.deadline.remaining_seconds(runtime.clock.monotonic())
    return await runtime.writer.put(
        row, seconds=max(seconds_left, 0.0), on_orphan=partial(_release_claim, runtime, authorized)
    )


def _release_claim(runtime: Runtime, authorized: Authorized) -> None:
    claim = Claim(call_id=authorized.call.call_id, epoch=1)
    runtime.writer.put(audit.build_abandoned_row(runtime, authorized, claim))


async def confirm_authorization(
    runtime: Runtime, authorized: Authorized, commit_epochs: Epochs, claim: Claim
) -> Authorized:
    """Authorize again if authority changed before the commit, before anything happens; refuse an undo that is late."""
    try:
        authorized = await reauthorize_if_stale(runtime, authorized, commit_epochs)
        await require_no_later_writer(runtime, authorized, claim)
    except Problem as problem:
        refusal = problem.replace(nothing_happened=not claim.is_takeover)
        await runtime.writer.put(audit.build_abandoned_row(runtime, authorized, claim, refusal))
        raise refusal from problem.__cause__
    except BaseException as error:
        # Not authorized, so nothing was executed; the claim must not outlive this request.
        unavailable = Unavailable(
            "the caller's current permissions could not be loaded",
            retry_after_ms=1000,
            nothing_happened=not claim.is_takeover,
        )
        runtime.writer.put(audit.build_abandoned_row(runtime, authorized, claim, unavailable))
        if isinstance(error, Exception):
            raise unavailable.replace(is_recorded=True) from error
        raise
    return authorized


async def reauthorize_if_stale(
    runtime: Runtime, authorized: Authorized, commit_epochs: Epochs, *, is_recorded: bool = True
) -> Authorized:
    """Authorize the call under the epochs of its commit, if they are newer; they seldom are.

    `is_recorded` is False if that commit has no audit entry of this call, because another call holds its key.
    """
    if authorized.decision.epochs.is_at_least(commit_epochs):
        return authorized
    authority = await runtime.authority.refresh(authorized.call.tenant, commit_epochs)
    try:
        return await reauthorize(runtime, authorized, authority, commit_epochs)
    except Problem as refusal:
        raise refusal.replace(is_recorded=is_recorded) from refusal.__cause__


class ClaimGuard:
    """Records the outcome as unknown if anything breaks after the claim (a canceled request, a fault of ours).

    Otherwise the call would stay open under a living owner, where no sweeper and no retry could reach it. The claim
    may be set later, by the phase that acquires it.
    """

    __slots__ = ("_runtime", "authorized", "claim")

    def __init__(self, runtime: Runtime, authorized: Authorized, claim: Claim | None = None) -> None:
        self._runtime, self.authorized, self.claim = runtime, authorized, claim

    def __enter__(self) -> "ClaimGuard":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        # A coroutine that is discarded with its event loop cannot write any more; its lease ends with the process.
        if error is None or self.claim is None or isinstance(error, GeneratorExit):
            return
        self._runtime.writer.put(audit.build_lost_row(self._runtime, self.authorized, self.claim))
        if isinstance(error, Exception):
            # Without the error's message, which may contain values.
            where = "".join(traceback.format_tb(stack))
            log.error("outcome_lost", call_id=self.claim.call_id, reason=type(error).__name__, where=where)
            raise OutcomeUnknown(
                "the gateway lost track of the call, so it is unknown whether the tool acted",
                details={"call_id": self.claim.call_id},
            ).replace(is_recorded=True) from error


async def _resolve_holder(
    runtime: Runtime, authorized: Authorized, keys: KeySet, holder_id: str, arguments_digest: bytes, key: IdempotencyKey
) -> tuple[Authorized, Claim] | Outcome:
    while True:
        holder_call = await load_holder_call(runtime, authorized, holder_id)
        outcome = _replay_ended_call(runtime, authorized, keys, holder_id, holder_call, arguments_digest, key)
        if outcome is not None:
            return outcome
        if _can_take_over(authorized.contract, holder_call):
            takeover = await _take_over_call(runtime, authorized, holder_id, holder_call["owner_epoch"])
            if takeover is not None:
                return takeover
            # Another process was faster, or the owner is this very process, whose lease has expired.
            await _wait_for_holder(runtime, authorized, holder_id)
            continue
        if not key.is_join:
            raise _build_in_flight_error(_STILL_RUNNING, holder_id)
        await _wait_for_holder(runtime, authorized, holder_id)


def _replay_ended_call(
    runtime: Runtime,
    authorized: Authorized,
    keys: KeySet,
    holder_id: str,
    holder_call: asyncpg.Record,
    arguments_digest: bytes,
    key: IdempotencyKey,
) -> Outcome | None:
    """Replay the call that holds the key; None if it has not ended, or its outcome is unknown and it can go on."""
    if holder_call["fingerprint"] != arguments_digest:
        raise build_key_reuse_error(authorized)
    state, contract = State(holder_call["state"]), authorized.contract
    if state in FINAL_STATES:
        runtime.metrics.record_replay(contract)
    elif state is not State.UNKNOWN or _can_take_over(contract, holder_call):
        return None
    return replay_outcome(keys, holder_call, holder_id, state, is_join=key.is_join)


async def _wait_for_holder(runtime: Runtime, authorized: Authorized, holder_id: str) -> None:
    validated, now = authorized.validated, runtime.clock.monotonic()
    seconds_left = validated.deadline.remaining_seconds(now)
    if seconds_left <= 0:
        raise _build_in_flight_error(
            "the same call is still running, and the deadline to wait for it passed", holder_id
        )
    await asyncio.sleep(min(compute_join_pause(now - validated.call.started_at), seconds_left))


def compute_join_pause(waited_seconds: float) -> float:
    return min(max(_JOIN_POLL_SECONDS, waited_seconds * _JOIN_POLL_SHARE), _MAX_JOIN_POLL_SECONDS)


def _build_in_flight_error(message: str, holder_id: str) -> CallInFlight:
    return CallInFlight(message, details={"call_id": holder_id}, retry_after_ms=500, nothing_happened=True)


async def load_holder_call(runtime: Runtime, authorized: Authorized, holder_id: str) -> asyncpg.Record:
    tenant = authorized.call.tenant
    async with runtime.store.write_transaction() as connection:
        row = await connection.fetchrow(
            _SQL["load_key_holder"], tenant, holder_id, runtime.settings.timing.margin_seconds
        )
    if row is None:
        raise CallInFlight("the call that holds this key is being recorded", retry_after_ms=200, nothing_happened=True)
    return row


def _can_take_over(contract: Contract, holder_call: asyncpg.Record) -> bool:
    if not is_safe_to_repeat(contract):
        return False
    # A queued call has no owner: the process that queued it may be gone, and a worker starts it.
    return holder_call["state"] == State.UNKNOWN or (
        holder_call["state"] == State.RUNNING and not holder_call["owner_alive"]
    )


async def _take_over_call(
    runtime: Runtime, authorized: Authorized, holder_id: str, epoch: int
) -> tuple[Authorized, Claim] | None:
    tenant = authorized.call.tenant
    entry_id, entry, salt = audit.build_intent_entry(runtime, authorized, holder_id, trace_step(None, State.RUNNING))
    claim = Claim(call_id=holder_id, epoch=epoch + 1)
    # If the commit's acknowledgement is lost, the call may be ours: then this process records it as unknown.
    with ClaimGuard(runtime, authorized, claim):
        async with runtime.store.write_transaction() as connection:
            rows = await connection.fetch(
                _SQL["take_over_call"], tenant, holder_id, epoch, runtime.lease.boot_id,
                authorized.contract.timeout.effective_seconds,
                runtime.settings.timing.margin_seconds, entry_id, entry, salt,
            )  # fmt: skip
    if not any(row["kind"] == "taken_over" for row in rows):
        return None
    epochs_row = next(row for row in rows if row["kind"] == "epochs")
    commit_epochs = Epochs(
        registry=epochs_row["registry"], policy=epochs_row["policy"], revocation=epochs_row["revocation"]
    )
    return await confirm_authorization(runtime, authorized, commit_epochs, claim), claim


def replay_outcome(
    keys: KeySet, holder_call: asyncpg.Record, holder_id: str, state: State, *, is_join: bool
) -> Outcome:
    problem = find_problem_type(holder_call["error"]) if holder_call["error"] else None
    if holder_call["ciphertext"] is not None:
        envelope = Envelope.from_bytes(keys.unseal(holder_id, "outcome", holder_call["ciphertext"]))
    else:
        # Only a call that ended without its process has no envelope of its own.
        problem = problem or OutcomeUnknown
        envelope = build_failure_envelope(
            problem("the process that ran this call ended before its outcome was recorded"),
            call_id=holder_id, state=state, trace_id=holder_call["trace"], extra_fields={},
        )  # fmt: skip
    outcome = Outcome(
        call_id=holder_id, state=state, envelope=envelope, spec=problem.spec if problem else None, is_replay=not is_join
    )
    return replace(outcome, is_joined=True) if is_join else outcome
