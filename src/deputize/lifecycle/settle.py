"""The end of a call, recorded before it is told. What cannot be recorded is not released.

A read's entry is its commit, and so passes the barrier (a mutation passed it with its claim): a result whose entry
committed after its caller's authority was taken back stays here.
"""

import asyncio
from dataclasses import replace

from deputize.core.errors import OutcomeUnknown, Problem, RecordingPending, Unavailable
from deputize.core.events import State
from deputize.core.hooks import NOTHING_SAID
from deputize.core.outcome import Outcome
from deputize.core.questions import Asks
from deputize.lifecycle import record
from deputize.lifecycle.claim import decided_again
from deputize.lifecycle.execute import ended_late, late_end
from deputize.lifecycle.phases import Executed, Held, Received, Validated, Verified
from deputize.lifecycle.reply import asked_back, refused, rendered, state_of_failure, state_of_refusal
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.rounds import given_out
from deputize.lifecycle.verify import verify

# How long the outcome of an effect that took place may take to record before the caller hears 'pending'.
_RECORDING_SECONDS = 5.0
# What a result that came just in time still gets to be recorded.
_LEAST_SECONDS = 1.0
_background: set[asyncio.Task[None]] = set()


async def settle(rooms: Rooms, verified: Verified) -> Outcome:
    executed = verified.executed
    validated = executed.authorized.validated
    contract = validated.tool.contract
    outcome = await (_read(rooms, verified) if executed.held is None else _mutation(rooms, verified, executed.held))
    received, said, usual = validated.received, verified.said, contract.observability.cost_per_call
    cost = usual if said is None or said.cost is None else said.cost
    if cost:
        rooms.limits.note_cost(received.caller, received.session, cost)
    rooms.metrics.ended(
        contract,
        outcome.state,
        rooms.clock.monotonic() - received.started,
        attempts=executed.attempts,
        cost=cost,
    )
    return outcome


async def _read(rooms: Rooms, verified: Verified) -> Outcome:
    authorized = verified.executed.authorized
    received = authorized.validated.received
    state = _state_of_success(verified) if verified.problem is None else state_of_failure(verified.problem)
    now = rooms.stamps.now()
    if verified.asks is None:
        outcome = rendered(verified, received.call_id, state, verified.problem, now)
    else:
        outcome = await _asked(rooms, verified, verified.asks, received.call_id, now)
    left = max(authorized.validated.deadline.remaining(rooms.clock.monotonic()), _LEAST_SECONDS)
    committed = await rooms.writer.put(record.read(rooms, verified, state, now), seconds=left)
    await decided_again(rooms, authorized, committed.epochs)
    return outcome


async def _mutation(rooms: Rooms, verified: Verified, held: Held) -> Outcome:
    problem = verified.problem
    state = _state_of_success(verified) if problem is None else _state_of_mutation(problem)
    if verified.asks is None:
        outcome = rendered(verified, held.call_id, state, problem, rooms.stamps.now())
    else:
        outcome = await _asked(rooms, verified, verified.asks, held.call_id, rooms.stamps.now())
    tenant = verified.executed.authorized.validated.received.caller.tenant
    keys = rooms.keys.ready(tenant) or await rooms.keys.load(rooms.store, tenant)
    box = keys.seal(held.call_id, "outcome", outcome.body)
    closing = record.closing(rooms, verified, held, state, problem, box)
    recording = rooms.writer.put(closing, seconds=_RECORDING_SECONDS)
    _settle_late(rooms, verified.executed)
    try:
        committed = await recording
    except Problem as lost:
        # The writer goes on trying; 'success' is never said of what is not stored.
        return _pending(rooms, verified, held, lost.message)
    if not committed.closed:
        return _pending(rooms, verified, held, "another process took this call over; its outcome counts")
    return outcome


async def _asked(rooms: Rooms, verified: Verified, asks: Asks, call_id: str, now: str) -> Outcome:
    """The questions of a call that was asked back, with what an answer to them refers to."""
    validated = verified.executed.authorized.validated
    tenant = validated.received.caller.tenant
    keys = rooms.keys.ready(tenant) or await rooms.keys.load(rooms.store, tenant)
    return asked_back(verified, asks, call_id, now, given_out(keys, rooms, validated, call_id, asks))


def _state_of_success(verified: Verified) -> State:
    return State.SUCCEEDED if verified.asks is None else State.NEEDS_INPUT


def _state_of_mutation(problem: Problem) -> State:
    if isinstance(problem, OutcomeUnknown):
        return State.UNKNOWN
    return state_of_refusal(problem) if problem.nothing_happened else state_of_failure(problem)


def _pending(rooms: Rooms, verified: Verified, held: Held, why: str) -> Outcome:
    problem = RecordingPending(
        f"{why}; the call itself has ended", details={"call_id": held.call_id}, retry_after_ms=1000
    )
    return rendered(verified, held.call_id, State.UNKNOWN, problem, rooms.stamps.now())


def _settle_late(rooms: Rooms, executed: Executed) -> None:
    """A thread that outlived its deadline may still come to an end; that end settles the unknown."""
    late, held = late_end(executed), executed.held
    if late is None or held is None:
        return

    async def wait_and_settle() -> None:
        await asyncio.wait({late})
        verified = await verify(rooms, ended_late(executed, held, late))
        if not isinstance(verified.problem, OutcomeUnknown):
            await _mutation(rooms, verified, held)

    task = asyncio.create_task(wait_and_settle(), name=f"late-{held.call_id}")
    _background.add(task)
    task.add_done_callback(_background.discard)


async def refuse(rooms: Rooms, received: Received, validated: Validated | None, problem: Problem) -> Outcome:
    """A call that was not made, or not released: one entry, durable before the answer."""
    tool = validated.tool if validated else None
    state = state_of_refusal(problem)
    try:
        await rooms.writer.put(record.refusal(rooms, received, validated, problem, state))
    except Problem as unrecorded:
        problem, state = unrecorded, State.FAILED
    rooms.metrics.ended(tool.contract if tool else None, state, rooms.clock.monotonic() - received.started)
    outcome = refused(received, problem, state, validated.hooked if validated else NOTHING_SAID)
    return outcome if not isinstance(problem, Unavailable) else replace(outcome, retry_after_ms=1000)
