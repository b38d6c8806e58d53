"""Tickets: what the gateway cannot find out by itself, asked of people. An administrator sees them and answers.

An answer about an unknown outcome settles its call: it happened, or it did not and its key is free again. Opened by
`reconcile.py`; what is asked holds redacted facts only.
"""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import asyncpg
import orjson

from deputize.core.caller import Caller, Epochs
from deputize.core.decision import Decision
from deputize.core.errors import Malformed, TicketClosed, TicketNotFound
from deputize.core.events import State
from deputize.govern.decide import ADMIN, require_admin, require_administering
from deputize.lifecycle.barrier import add
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.settled import Found, Settlement, settle_unknown, unknown_from
from deputize.store.pool import Connection
from deputize.store.queries import load

TicketState = Literal["open", "resolved", "expired"]

_SQL = load("tickets")
# By when somebody should have looked. Nothing happens then: an unknown outcome never expires.
_DUE_SECONDS = 7 * 86_400.0
_BY_A_PERSON = Decision(rules=(ADMIN, "a-person-decided"), epochs=Epochs())
ELSEWHERE = "settled_elsewhere"


async def open_ticket(
    rooms: Rooms, connection: Connection, tenant: str, call_id: str, question: dict[str, Any]
) -> str | None:
    """A new ticket's id; None where this was asked already."""
    ticket = rooms.clock.new_id()
    opened = await connection.fetchval(
        _SQL["open_ticket"], tenant, ticket, "reconcile", call_id, orjson.dumps(question), _DUE_SECONDS
    )
    return None if opened is None else ticket


class Tickets:
    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    async def page(
        self, caller: Caller, *, state: TicketState | None = "open", before: str | None = None, limit: int = 50
    ) -> list[dict[str, Any]]:
        """Newest first; the open ones unless asked otherwise."""
        await self._check(caller)
        async with self._rooms.store.reading(caller.tenant) as connection:
            rows = await connection.fetch(_SQL["list_tickets"], caller.tenant, state, before, limit)
        return [_shown(row) for row in rows]

    async def show(self, caller: Caller, ticket_id: str) -> dict[str, Any]:
        await self._check(caller)
        async with self._rooms.store.reading(caller.tenant) as connection:
            return _shown(await _row(connection, caller, ticket_id))

    async def resolve(self, caller: Caller, ticket_id: str, found: Found, reason: str) -> dict[str, Any]:
        """What an administrator found out becomes the end of the call; recorded as their decision."""
        require_administering(caller)
        if not reason.strip():
            raise Malformed("say how you know", details={"field": "reason"})

        async def act(connection: Connection) -> dict[str, Any] | None:
            return await self._settle(connection, caller, ticket_id, found, reason)

        answer = await add(self._rooms, caller, f"resolve:{found}", ticket_id, act, ())
        if answer is None:
            raise TicketClosed("the call was settled in another way meanwhile", details={"ticket_id": ticket_id})
        return answer

    async def _settle(
        self, connection: Connection, caller: Caller, ticket_id: str, found: Found, reason: str
    ) -> dict[str, Any] | None:
        rooms = self._rooms
        ticket = await _row(connection, caller, ticket_id)
        if ticket["state"] != "open":
            raise TicketClosed(f"this ticket is {ticket['state']}", details={"ticket_id": ticket_id})
        row = await connection.fetchrow(_SQL["unknown_call"], caller.tenant, ticket["call_id"])
        if row is None:
            raise TicketNotFound("the call this ticket is about is gone")
        call = await unknown_from(rooms, caller.tenant, row)
        said = "happened" if found == "happened" else "did not happen"
        end = Settlement(
            found=found,
            by=caller,
            decision=_BY_A_PERSON,
            source="a person",
            summary=f"A person looked into it, and it {said}: {reason}",
            ticket=ticket_id,
        )
        # The call first, as everybody does who settles one: in another order two of them could wait for each other.
        settled = await settle_unknown(rooms, connection, call, end)
        if settled:
            closed = await connection.fetchval(
                _SQL["resolve_ticket"], caller.tenant, ticket_id, caller.user, found, reason
            )
        else:
            closed = await connection.fetchval(_SQL["resolve_ticket"], caller.tenant, ticket_id, "", ELSEWHERE, "")
        if closed is None:
            raise TicketClosed("somebody else has just answered", details={"ticket_id": ticket_id})
        if not settled:
            return None
        return _shown(await _row(connection, caller, ticket_id))

    async def _check(self, caller: Caller) -> None:
        require_admin(caller)
        (await self._rooms.authority.of(caller.tenant)).revocations.check(caller)


async def _row(connection: Connection, caller: Caller, ticket_id: str) -> asyncpg.Record:
    try:
        named = str(UUID(ticket_id))
    except ValueError:
        named = None
    row = None if named is None else await connection.fetchrow(_SQL["show_ticket"], caller.tenant, named)
    if row is None:
        raise TicketNotFound("there is no ticket with this id")
    return row


def _shown(row: asyncpg.Record) -> dict[str, Any]:
    return {
        "ticket_id": str(row["id"]),
        "kind": row["kind"],
        "state": row["state"],
        "call": {
            "call_id": str(row["call_id"]),
            "state": State(row["call_state"]),
            "tool": {"name": row["tool"], "version": row["version"]},
            "user": row["caller_user"],
            "agent": row["caller_agent"] or None,
        },
        "question": orjson.loads(row["question"]),
        "opened_at": _when(row["opened_at"]),
        "due_at": _when(row["due_at"]),
        "resolved_at": _when(row["resolved_at"]),
        "resolved_by": row["resolved_by"] or None,
        "resolution": row["resolution"],
        "reason": row["reason"] or None,
    }


def _when(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
