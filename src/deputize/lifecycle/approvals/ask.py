"""A call that people have to agree to: claimed, written down and put to them in one commit, and answered at once.

The same key again is the same ticket. What was asked for is sealed and nothing may change it; the call is made by
whoever carries its run once it is approved (`approved.py`), and by nobody before.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import orjson

from deputize.core.canonical import fingerprint
from deputize.core.errors import GrantEnded, Unavailable
from deputize.core.events import State
from deputize.core.outcome import Outcome
from deputize.govern.approvals.demands import Asked
from deputize.lifecycle import record
from deputize.lifecycle.approvals.shown import told_of, told_of_new
from deputize.lifecycle.approvals.tickets import Ticket, asked_for, new_ticket
from deputize.lifecycle.claim import decided_again, key_of
from deputize.lifecycle.phases import Authorized
from deputize.lifecycle.preview import Previewed, preview
from deputize.lifecycle.recorded import caller_bytes, input_bytes
from deputize.lifecycle.reply import refused
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.submit import accepted, again, epochs_in
from deputize.lifecycle.webhooks import written
from deputize.store.keys import KeySet
from deputize.store.pool import LOST, Connection
from deputize.store.queries import load
from deputize.store.rows import Opening

_SQL = load("approvals")


async def ask(rooms: Rooms, authorized: Authorized) -> Outcome:
    validated = authorized.validated
    received, contract = validated.received, validated.tool.contract
    tenant = received.caller.tenant
    keys = rooms.keys.ready(tenant) or await rooms.keys.load(rooms.store, tenant)
    wanted = fingerprint(keys.fingerprint, contract.full_name, validated.asked)
    key = key_of(authorized, wanted)
    opening = record.opening(rooms, authorized, wanted, key.text, 0 if key.joined else contract.window_seconds)
    holder = received.request.retry_of or await _holder(rooms, opening)
    if holder is not None:
        # Nobody looks again at what it would change: people are asked about what it was then.
        return await _already(rooms, authorized, keys, holder, wanted)
    previewed = await preview(rooms, authorized)
    try:
        ticket, answers = await _opened(rooms, authorized, keys, opening, previewed)
    except LOST as lost:
        problem = Unavailable("PostgreSQL went away while people were to be asked", retry_after_ms=1000)
        problem.__cause__ = lost
        # Nobody knows yet: repeated with its key, or found by its id, it tells.
        return refused(received, problem, State.UNKNOWN)
    await decided_again(rooms, authorized, epochs_in(answers))
    held_by = next((str(each["holder"]) for each in answers if each["what"] == "held"), None)
    if held_by is not None:
        return await _already(rooms, authorized, keys, held_by, wanted)
    tell_terminal(rooms, tenant, ticket)
    return _pending(accepted(authorized, received.call_id, State.AWAITING_APPROVAL), told_of_new(rooms, ticket))


async def _holder(rooms: Rooms, opening: Opening) -> str | None:
    if opening.key is None:
        return None
    async with rooms.store.writing() as connection:
        found = await connection.fetchval(_SQL["key_holder"], opening.tenant, opening.scope, opening.key)
    return None if found is None else str(found)


async def _opened(
    rooms: Rooms, authorized: Authorized, keys: KeySet, opening: Opening, previewed: Previewed
) -> tuple[Ticket, list[asyncpg.Record]]:
    async with rooms.store.writing() as connection:
        not_after, expires_at = await times(rooms, connection, authorized, asked_for(rooms, authorized))
        ticket = new_ticket(rooms, authorized, opening.call_id, previewed, expires_at, keys)
        run = _run_columns(rooms, authorized, keys, not_after)
        answers = await connection.fetch(_SQL["ask_run"], rooms.lease.boot, *opening, *run, *ticket.columns(keys))
    return ticket, answers


async def times(
    rooms: Rooms, connection: Connection, authorized: Authorized, asked: Asked
) -> tuple[datetime, datetime]:
    """Until when the call may act for its caller, and until when people may decide: never longer than that."""
    caller = authorized.validated.received.caller
    now: datetime = await connection.fetchval(_SQL["in_seconds"], 0.0)
    expires_at = now + timedelta(seconds=asked.seconds)
    if not caller.agents:
        # Who came in person lends it for as long as people may take to decide, and a while for the call itself.
        return expires_at + timedelta(seconds=rooms.settings.identity.max_grant_seconds), expires_at
    not_after = datetime.fromtimestamp(caller.expires_at, UTC)
    if caller.grants:
        # A delegation is a record of its own, and outlives the token it was shown with.
        not_after = await connection.fetchval(_SQL["grants_end"], caller.tenant, list(caller.grants)) or now
    if not_after <= now:
        raise GrantEnded("the delegation behind this call has ended", nothing_happened=True)
    return not_after, min(expires_at, not_after)


def _run_columns(rooms: Rooms, authorized: Authorized, keys: KeySet, not_after: datetime) -> tuple[Any, ...]:
    validated = authorized.validated
    received = validated.received
    callback = received.request.callback
    return (
        keys.seal(received.call_id, "input", input_bytes(validated)),
        keys.seal(received.call_id, "caller", caller_bytes(received.caller)),
        not_after,
        received.request.priority or validated.tool.contract.priority,
        rooms.release,
        None if callback is None else keys.seal(received.call_id, "callback", written(callback)),
    )


async def _already(rooms: Rooms, authorized: Authorized, keys: KeySet, holder: str, wanted: bytes) -> Outcome:
    """What a repeated key gets: the ticket its call still waits for, or whatever became of the call."""
    outcome = await again(rooms, authorized, keys, holder, wanted)
    if outcome.state is not State.AWAITING_APPROVAL:
        return outcome
    async with rooms.store.writing() as connection:
        row = await connection.fetchrow(_SQL["show_ticket"], authorized.validated.received.caller.tenant, holder)
        groups = [] if row is None else await connection.fetch(_SQL["groups_now"], row["tenant"], row["id"])
    return outcome if row is None else _pending(outcome, told_of(rooms, row, [each["grp"] for each in groups]))


def _pending(outcome: Outcome, approval: dict[str, Any]) -> Outcome:
    return replace(outcome, body=orjson.dumps({**orjson.loads(outcome.body), "approval": approval}))


def tell_terminal(rooms: Rooms, tenant: str, ticket: Ticket) -> None:
    """In development, whoever sits at the terminal decides, with a code that is shown there and nowhere else."""
    if rooms.codes is not None:
        rooms.codes.tell(tenant, ticket.id, ticket.binding, ticket.bound.tool, ticket.bound.chain[0])
