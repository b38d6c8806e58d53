"""The claim: a mutation's intent, durable before its effect, and at most one per key.

answers to questions    the key of the round they belong to: it is answered once
no key                  a fresh call, a joined one (idempotent tools), or a refusal (irreversible ones)
key is free             ours: go on
key holds other input   422
key holds an outcome    that outcome, byte for byte
key holds a running call, or one whose outcome is unknown
                        taken over if the upstream deduplicates and the owner is gone, else 409 or UNKNOWN
"""

import asyncio
import traceback
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

import asyncpg
import structlog

from deputize.core.caller import Epochs
from deputize.core.canonical import fingerprint
from deputize.core.contract import Contract, MutationClass, Upstream
from deputize.core.errors import (
    InFlight,
    KeyRequired,
    KeyReused,
    OutcomeUnknown,
    Problem,
    RoundRefused,
    Unavailable,
    by_slug,
)
from deputize.core.events import FINAL, State
from deputize.core.outcome import Outcome, failure_body
from deputize.lifecycle import record
from deputize.lifecycle.authorize import authorize_again
from deputize.lifecycle.phases import Authorized, Held
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.rounds import round_key
from deputize.store.keys import KeySet
from deputize.store.queries import load
from deputize.store.rows import Committed, Opening

_SQL = load("calls")
_JOIN_POLL_SECONDS = 0.05
_MAY_GO_AGAIN = frozenset({Upstream.DEDUPLICATES, Upstream.IDEMPOTENT})
log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """The key a call goes by. A joined one was derived here, and holds only while its call is in flight."""

    text: str | None
    joined: bool = False


async def claim(rooms: Rooms, authorized: Authorized) -> tuple[Authorized, Held] | Outcome:
    """A hold on the future, with the authority it was taken under; or the outcome this key already has."""
    received = authorized.validated.received
    contract = authorized.validated.tool.contract
    keys = rooms.keys.ready(received.caller.tenant) or await rooms.keys.load(rooms.store, received.caller.tenant)
    asked = fingerprint(keys.fingerprint, contract.full_name, authorized.validated.asked)
    key = key_of(authorized, asked)
    window = 0 if key.joined else contract.window_seconds
    row = record.opening(rooms, authorized, asked, key.text, window)
    committed = await _opened(rooms, authorized, row)
    if committed.holder is None:
        held = Held(call_id=received.call_id, epoch=1)
        return await still_authorized(rooms, authorized, committed.epochs, held), held
    # A replay is decided as of this commit too: what was revoked before it is not shown an outcome any more.
    authorized = await decided_again(rooms, authorized, committed.epochs)
    return await _held_already(rooms, authorized, keys, committed.holder, asked, key)


def said_otherwise(authorized: Authorized) -> Problem:
    """The refusal of a key that holds a call with other words."""
    if authorized.validated.round is not None:
        return RoundRefused("this was answered already, and otherwise: make the call anew to answer anew")
    return KeyReused("this idempotency key was used for a call with other arguments", nothing_happened=True)


def key_of(authorized: Authorized, asked: bytes) -> Key:
    received, contract = authorized.validated.received, authorized.validated.tool.contract
    if authorized.validated.round is not None:
        # Whatever key its caller gives: that one holds the call whose questions this answers.
        return Key(text=round_key(authorized.validated.round.continues))
    if received.request.idempotency_key is not None:
        return Key(text=received.request.idempotency_key)
    if contract.idempotency.upstream is Upstream.IDEMPOTENT and received.session is not None:
        return Key(text=f"join\0{received.session}\0{asked.hex()}", joined=True)
    if contract.mutation_class is MutationClass.WRITE_IRREVERSIBLE:
        raise KeyRequired(f"{contract.full_name} cannot be taken back, so it is called only with an idempotency key")
    return Key(text=None)


async def _opened(rooms: Rooms, authorized: Authorized, row: Opening) -> Committed:
    """Waits for the opening to be durable, but not past the deadline; one that commits after that is given back."""
    left = authorized.validated.deadline.remaining(rooms.clock.monotonic())
    return await rooms.writer.put(row, seconds=max(left, 0.0), orphaned=partial(_give_back, rooms, authorized))


def _give_back(rooms: Rooms, authorized: Authorized) -> None:
    held = Held(call_id=authorized.validated.received.call_id, epoch=1)
    rooms.writer.put(record.abandoned(rooms, authorized, held))


async def still_authorized(rooms: Rooms, authorized: Authorized, committed: Epochs, held: Held) -> Authorized:
    """The barrier's answer: authority that changed before our commit is asked again before anything happens."""
    try:
        return await decided_again(rooms, authorized, committed)
    except Problem as problem:
        problem.nothing_happened = not held.taken_over
        await rooms.writer.put(record.abandoned(rooms, authorized, held, problem))
        raise
    except BaseException as error:
        # Not decided, so not acted on; and the hold must not outlive whoever would have answered for it.
        undecided = Unavailable("what this caller may do now could not be read", retry_after_ms=1000)
        undecided.nothing_happened = not held.taken_over
        rooms.writer.put(record.abandoned(rooms, authorized, held, undecided))
        if isinstance(error, Exception):
            raise undecided from error
        raise


async def decided_again(rooms: Rooms, authorized: Authorized, committed: Epochs) -> Authorized:
    """The same call under the authority it committed under; nothing to do for nearly all of them."""
    if authorized.decision.epochs.covers(committed):
        return authorized
    authority = await rooms.authority.refresh(authorized.validated.received.caller.tenant, committed)
    return await authorize_again(rooms, authorized, authority, committed)


class AnsweredFor:
    """Around what follows a claim. Whatever breaks there (a canceled request, a fault of ours), the call does not stay
    open under a living owner, where no sweeper and no retry could reach it: its outcome is recorded as unknown.
    """

    __slots__ = ("_authorized", "_held", "_rooms")

    def __init__(self, rooms: Rooms, authorized: Authorized, held: Held | None) -> None:
        self._rooms, self._authorized, self._held = rooms, authorized, held

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        # A coroutine that is thrown away with its loop has nothing left to write with; its lease ends with the process.
        if error is None or self._held is None or isinstance(error, GeneratorExit):
            return
        self._rooms.writer.put(record.lost(self._rooms, self._authorized, self._held))
        if isinstance(error, Exception):
            # Without the error's own words, which may quote values.
            where = "".join(traceback.format_tb(stack))
            log.error("outcome_lost", call_id=self._held.call_id, reason=type(error).__name__, where=where)
            raise OutcomeUnknown(
                "the gateway lost track of the call, so whether it acted is not known",
                details={"call_id": self._held.call_id},
            ) from error


async def _held_already(
    rooms: Rooms, authorized: Authorized, keys: KeySet, holder: str, asked: bytes, key: Key
) -> tuple[Authorized, Held] | Outcome:
    while True:
        call = await held_call(rooms, authorized, holder)
        if call["fingerprint"] != asked:
            raise said_otherwise(authorized)
        state = State(call["state"])
        if state in FINAL:
            rooms.metrics.replayed(authorized.validated.tool.contract)
            return replay(keys, call, holder, state, joined=key.joined)
        if _may_take_over(authorized.validated.tool.contract, call):
            taken = await _take_over(rooms, authorized, holder, call["owner_epoch"])
            if taken is not None:
                return taken
            # Somebody was faster, or the owner is this very process, which its lease no longer covers.
            await _pause(rooms, authorized, holder)
            continue
        if state is State.UNKNOWN:
            return replay(keys, call, holder, state, joined=key.joined)
        if not key.joined:
            raise _in_flight("a call with this idempotency key is still running", holder)
        await _pause(rooms, authorized, holder)


async def _pause(rooms: Rooms, authorized: Authorized, holder: str) -> None:
    if authorized.validated.deadline.remaining(rooms.clock.monotonic()) <= 0:
        raise _in_flight("the same call is still running, and the time to wait for it is over", holder)
    await asyncio.sleep(_JOIN_POLL_SECONDS)


def _in_flight(message: str, holder: str) -> InFlight:
    return InFlight(message, details={"call_id": holder}, retry_after_ms=500, nothing_happened=True)


async def held_call(rooms: Rooms, authorized: Authorized, holder: str) -> asyncpg.Record:
    tenant = authorized.validated.received.caller.tenant
    async with rooms.store.writing() as connection:
        row = await connection.fetchrow(_SQL["held_call"], tenant, holder, rooms.settings.timing.margin_seconds)
    if row is None:
        raise InFlight("the call that holds this key is just being recorded", retry_after_ms=200, nothing_happened=True)
    return row


def may_go_again(contract: Contract) -> bool:
    """Only where doing it twice does it once."""
    return contract.idempotency.upstream in _MAY_GO_AGAIN or contract.mutation_class is MutationClass.READ


def _may_take_over(contract: Contract, call: asyncpg.Record) -> bool:
    if not may_go_again(contract):
        return False
    # What waits in the queue is nobody's: whoever wrote it down may be gone, and a worker begins it.
    return call["state"] == State.UNKNOWN or (call["state"] == State.RUNNING and not call["owner_alive"])


async def _take_over(rooms: Rooms, authorized: Authorized, holder: str, epoch: int) -> tuple[Authorized, Held] | None:
    tenant = authorized.validated.received.caller.tenant
    entry_id, entry, salt = record.intent(rooms, authorized, holder)
    held = Held(call_id=holder, epoch=epoch + 1)
    # A commit whose acknowledgement is lost may have made the call ours: then it is for us to say that it is unknown.
    with AnsweredFor(rooms, authorized, held):
        async with rooms.store.writing() as connection:
            answers = await connection.fetch(
                _SQL["retake_call"], tenant, holder, epoch, rooms.lease.boot,
                authorized.validated.tool.contract.timeout.effective_seconds,
                rooms.settings.timing.margin_seconds, entry_id, entry, salt,
            )  # fmt: skip
    if not any(row["what"] == "held" for row in answers):
        return None
    epochs = next(row for row in answers if row["what"] == "epochs")
    now = Epochs(registry=epochs["registry"], policy=epochs["policy"], revocation=epochs["revocation"])
    return await still_authorized(rooms, authorized, now, held), held


def replay(keys: KeySet, call: asyncpg.Record, holder: str, state: State, *, joined: bool) -> Outcome:
    problem = by_slug(call["error"]) if call["error"] else None
    if call["box"] is not None:
        body = keys.open(holder, "outcome", call["box"])
    else:
        # Only a call that ended without its process has no envelope of its own.
        problem = problem or OutcomeUnknown
        body = failure_body(
            problem("the process that ran this call ended before its outcome was recorded"),
            call_id=holder, state=state, trace_id=call["trace"], more={},
        )  # fmt: skip
    outcome = Outcome(
        call_id=holder, state=state, body=body, face=problem.face if problem else None, replayed=not joined
    )
    return replace(outcome, joined=True) if joined else outcome
