"""A call becomes a run: claimed, written down and queued in one commit, and answered at once.

The same key again is the same run. A call that was begun inside its request may go on as a run too, where doing it
again does it once. What follows happens in a worker, which re-enters the lifecycle in `resume.py`.
"""

from datetime import datetime
from typing import Any

import asyncpg
import orjson

from deputize.core.caller import Epochs
from deputize.core.canonical import fingerprint
from deputize.core.contract import MutationClass, TimeoutClass
from deputize.core.errors import Malformed, ToolTimeout, Unavailable
from deputize.core.events import TERMINAL, State
from deputize.core.outcome import Outcome
from deputize.execute.drivers.python import StillRunning
from deputize.lifecycle import record
from deputize.lifecycle.claim import decided_again, held_call, key_of, may_go_again, replay, said_otherwise
from deputize.lifecycle.phases import Authorized, Executed
from deputize.lifecycle.recorded import caller_bytes, ends_at, input_bytes
from deputize.lifecycle.reply import refused
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.webhooks import require_allowed, written
from deputize.store.keys import KeySet
from deputize.store.pool import Connection
from deputize.store.queries import load
from deputize.store.rows import Queueing

_SQL = load("runs")
_FIRST_LOOK_MS = 500
_SLOWEST_LOOK_MS = 30_000
_NO_WORKER = ("no worker is alive to carry this call: it waits until one is started with deputize work",)


def outlives(authorized: Authorized) -> bool:
    """Whether the call is answered before it is made: because its caller says so, or its contract does."""
    validated = authorized.validated
    return (
        validated.received.request.mode == "async"
        or validated.tool.contract.timeout.timeout_class is TimeoutClass.ASYNC
    )


def require_tellable(rooms: Rooms, authorized: Authorized) -> None:
    """A callback goes to an address it may go to, and belongs to a call that may outlive its request."""
    request = authorized.validated.received.request
    if request.callback is None:
        return
    if request.dry_run:
        raise Malformed(
            "a dry run is answered in its own request, so nobody is called back",
            details={"field": "callback"},
            nothing_happened=True,
        )
    if not (outlives(authorized) or request.may_continue or authorized.decision.demands):
        raise Malformed(
            "this call is answered in its own request, so nobody is called back: ask for mode async, or let it go on",
            details={"field": "callback"},
            nothing_happened=True,
        )
    require_allowed(rooms.settings.webhooks, request.callback)


async def submit(rooms: Rooms, authorized: Authorized) -> Outcome:
    validated = authorized.validated
    received, contract = validated.received, validated.tool.contract
    request, tenant, call_id = received.request, received.caller.tenant, received.call_id
    keys = rooms.keys.ready(tenant) or await rooms.keys.load(rooms.store, tenant)
    asked = fingerprint(keys.fingerprint, contract.full_name, validated.asked)
    if request.retry_of is not None:
        return await again(rooms, authorized, keys, request.retry_of, asked)
    key = key_of(authorized, asked)
    opening = record.opening(rooms, authorized, asked, key.text, 0 if key.joined else contract.window_seconds)
    told = None if request.callback is None else keys.seal(call_id, "callback", written(request.callback))
    row = Queueing(tenant, call_id, opening, _run_columns(rooms, authorized, keys, call_id), told)
    try:
        committed = await rooms.queue.put(row)
    except Unavailable as problem:
        if problem.nothing_happened:
            raise
        # Nobody knows yet: a refusal would say more than that. Repeated with its key, or found by its id, it tells.
        return refused(received, problem, State.UNKNOWN)
    await decided_again(rooms, authorized, committed.epochs)
    if committed.holder is not None:
        return await again(rooms, authorized, keys, committed.holder, asked)
    return accepted(authorized, call_id, State.QUEUED, warnings=_NO_WORKER if committed.alone else ())


def _run_columns(
    rooms: Rooms, authorized: Authorized, keys: KeySet, call_id: str
) -> tuple[bytes, bytes, datetime, int, str]:
    """What a run is gone on with, in the order of `queue_runs` and `continue_run`."""
    validated = authorized.validated
    received = validated.received
    now_ms, longest = rooms.clock.epoch_ms(), rooms.settings.identity.max_grant_seconds
    return (
        keys.seal(call_id, "input", input_bytes(validated)),
        keys.seal(call_id, "caller", caller_bytes(received.caller)),
        ends_at(received.caller, now_ms=now_ms, longest_seconds=longest),
        received.request.priority or validated.tool.contract.priority,
        rooms.release,
    )


def epochs_in(answers: list[asyncpg.Record]) -> Epochs:
    row = next(each for each in answers if each["what"] == "epochs")
    return Epochs(registry=row["registry"], policy=row["policy"], revocation=row["revocation"])


async def again(rooms: Rooms, authorized: Authorized, keys: KeySet, holder: str, asked: bytes) -> Outcome:
    """What a repeated key gets. An unknown outcome is tried again where the upstream takes it once; what somebody
    stopped is not brought back by a key that did not hear of it, only by who asks for it by its id.
    """
    call = await held_call(rooms, authorized, holder)
    if call["fingerprint"] != asked:
        raise said_otherwise(authorized)
    wanted = authorized.validated.received.request.retry_of is not None or not call["cancel_asked"]
    if call["state"] == State.UNKNOWN and wanted and may_go_again(authorized.validated.tool.contract):
        if await _continue(rooms, authorized, keys, holder, call["owner_epoch"]):
            return accepted(authorized, holder, State.QUEUED)
        # Somebody was faster; whatever became of it is the answer.
        call = await held_call(rooms, authorized, holder)
    state = State(call["state"])
    if state in TERMINAL:
        return replay(keys, call, holder, state, joined=False)
    return accepted(authorized, holder, state)


async def _continue(rooms: Rooms, authorized: Authorized, keys: KeySet, call_id: str, epoch: int) -> bool:
    """A call that was begun becomes a run, unless it changed hands meanwhile."""
    tenant = authorized.validated.received.caller.tenant
    columns = _run_columns(rooms, authorized, keys, call_id)
    async with rooms.store.writing() as connection:
        answers = await connection.fetch(_SQL["continue_run"], rooms.lease.boot, tenant, call_id, epoch, *columns)
        goes = any(each["what"] == "held" for each in answers)
        if goes:
            await _add_callback(connection, authorized, keys, call_id)
    await decided_again(rooms, authorized, epochs_in(answers))
    return goes


async def _add_callback(connection: Connection, authorized: Authorized, keys: KeySet, call_id: str) -> None:
    received = authorized.validated.received
    if received.request.callback is not None:
        box = keys.seal(call_id, "callback", written(received.request.callback))
        await connection.execute(_SQL["add_callback"], received.caller.tenant, call_id, box)


def goes_on(executed: Executed) -> bool:
    """Whether a call whose time is over goes on as a run: its caller allows it and set the time that is over, and to do
    it again is to do it once. A thread that still acts is not joined by a second one.
    """
    problem, validated = executed.problem, executed.authorized.validated
    if problem is None or not validated.received.request.may_continue:
        return False
    ended_by = problem if isinstance(problem, ToolTimeout) else problem.__cause__
    contract, own = validated.tool.contract, validated.received.deadline
    return (
        isinstance(ended_by, ToolTimeout)
        and own is not None
        and own.at == validated.deadline.at
        and may_go_again(contract)
        and not (isinstance(ended_by, StillRunning) and contract.mutation_class is not MutationClass.READ)
    )


async def go_on(rooms: Rooms, executed: Executed) -> Outcome | None:
    """The run a call goes on as; None where it could not be handed on, and ended as it did."""
    authorized, held = executed.authorized, executed.held
    received = authorized.validated.received
    keys = rooms.keys.ready(received.caller.tenant) or await rooms.keys.load(rooms.store, received.caller.tenant)
    if held is None:
        outcome = await submit(rooms, authorized)
    elif await _continue(rooms, authorized, keys, held.call_id, held.epoch):
        outcome = accepted(authorized, held.call_id, State.QUEUED)
    else:
        return None
    rooms.credentials.forget(authorized)
    return outcome


def poll_after_ms(age_seconds: float) -> int:
    """When to look again: after a tenth of the time that was waited already."""
    return int(min(max(_FIRST_LOOK_MS, age_seconds * 100), _SLOWEST_LOOK_MS))


def links(call_id: str) -> dict[str, str]:
    own = f"/v1/calls/{call_id}"
    return {"self": own, "events": f"{own}/events", "cancel": f"{own}/cancel"}


def accepted(authorized: Authorized, call_id: str, state: State, *, warnings: tuple[str, ...] = ()) -> Outcome:
    """Not an end: where to look for it, and when."""
    received, tool = authorized.validated.received, authorized.validated.tool
    if received.request.mode == "sync":
        warnings = (f"{tool.name} runs asynchronously by its contract, although mode sync was asked for", *warnings)
    body: dict[str, Any] = {
        "call_id": call_id,
        "state": state,
        "is_error": False,
        "trace_id": received.trail.trace_id,
        "tool": {"name": tool.name, "version": tool.contract.version, "digest": tool.digest},
        "decision": {"rules": authorized.decision.rules},
        "poll_after_ms": _FIRST_LOOK_MS,
        "links": links(call_id),
        "warnings": (*authorized.validated.warnings, *warnings),
    }
    return Outcome(call_id=call_id, state=state, body=orjson.dumps(body), accepted=True, retry_after_ms=_FIRST_LOOK_MS)
