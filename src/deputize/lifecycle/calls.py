"""Looking back at calls: who made one sees it, an administrator sees the tenant's, nobody else learns of it.

A user sees whatever was done in their name. An agent sees what it did for that user itself: what the user or another
agent was told may be more than was lent to it.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import asyncpg
import orjson

from deputize.core.caller import Caller, nearest_of
from deputize.core.errors import CallNotFound, NotCancelable
from deputize.core.events import EVENT_OF_STATE, TERMINAL, Event, State
from deputize.lifecycle.rooms import Rooms
from deputize.prove.entries import About, entry
from deputize.store.queries import load

_SQL = load("calls")
_RUNS = load("runs")
_POLL_SECONDS = 0.2


class Calls:
    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    async def show(self, caller: Caller, call_id: str) -> bytes:
        """The envelope as it was answered; for a call still open, or a read, what is known of it."""
        row = await self._row(caller, call_id)
        if row is None:
            return orjson.dumps(await self._read(caller, call_id))
        if row["box"] is not None:
            keys = await self._rooms.keys.load(self._rooms.store, caller.tenant)
            return keys.open(call_id, "outcome", row["box"])
        return orjson.dumps(_facts(row))

    async def page(self, caller: Caller, *, before: str | None, limit: int) -> list[dict[str, Any]]:
        await self._check(caller)
        user = None if caller.is_admin else caller.user
        agent = None if caller.is_admin or not caller.agents else caller.acting
        async with self._rooms.store.reading(caller.tenant) as connection:
            rows = await connection.fetch(
                _SQL["list_calls"], caller.tenant, user, None if before is None else _id(before), limit, agent
            )
        return [_facts(row) for row in rows]

    async def cancel(self, caller: Caller, call_id: str) -> dict[str, Any]:
        """Records that somebody wants the call to stop. A synchronous tool cannot be stopped, and that is said."""
        row = await self._row(caller, call_id)
        if row is None or State(row["state"]) in TERMINAL:
            await self._read(caller, call_id) if row is None else None
            raise NotCancelable("the call has already ended", details={"call_id": call_id})
        rooms = self._rooms
        entry_id = rooms.clock.new_id()
        about = About(caller=caller, trace=row["trace"], call=call_id, session=caller.session, tool=row["tool"])
        body = entry(
            about,
            id=entry_id,
            kind="command",
            time=rooms.stamps.now(),
            command="cancel",
            subject=call_id,
            outcome="recorded",
        )
        async with rooms.store.writing() as connection:
            asked = await connection.fetchval(_SQL["ask_to_cancel"], caller.tenant, call_id)
            await connection.execute(_RUNS["add_entry"], caller.tenant, entry_id, call_id, body, None)
        if asked is None:
            raise NotCancelable("the call has just ended", details={"call_id": call_id})
        return {
            "call_id": call_id,
            "state": row["state"],
            "cancel": "recorded",
            "detail": "the request is recorded; a tool that runs inside a request cannot be interrupted",
        }

    async def events(self, caller: Caller, call_id: str) -> AsyncIterator[tuple[Event, dict[str, Any]]]:
        """Every state the call is seen in, until its last."""
        seen: State | None = None
        while True:
            row = await self._row(caller, call_id)
            facts = _facts(row) if row is not None else await self._read(caller, call_id)
            state = State(facts["state"])
            if state is not seen:
                seen = state
                yield EVENT_OF_STATE[state], facts
            if state in TERMINAL:
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _check(self, caller: Caller) -> None:
        (await self._rooms.authority.of(caller.tenant)).revocations.check(caller)

    async def _row(self, caller: Caller, call_id: str) -> asyncpg.Record | None:
        await self._check(caller)
        async with self._rooms.store.reading(caller.tenant) as connection:
            row = await connection.fetchrow(_SQL["show_call"], caller.tenant, _id(call_id))
        if row is not None and not caller.is_admin:
            anothers = bool(caller.agents) and row["caller_agent"] != caller.acting
            if row["caller_user"] != caller.user or anothers:
                raise _unknown(call_id)
        return row

    async def _read(self, caller: Caller, call_id: str) -> dict[str, Any]:
        """A read keeps no result and no row; its audit entry tells that it was made, and how it ended."""
        async with self._rooms.store.reading(caller.tenant) as connection:
            rows = await connection.fetch(_SQL["entries_of_call"], caller.tenant, _id(call_id))
        if not rows:
            raise _unknown(call_id)
        last = orjson.loads(rows[-1]["entry"])
        if not is_maker(caller, last["caller"]) and not caller.is_admin:
            raise _unknown(call_id)
        return {
            "call_id": call_id,
            "state": last.get("outcome", State.RUNNING),
            "tool": {"name": last.get("tool"), "version": last.get("version"), "digest": last.get("digest")},
            "kind": last["kind"],
            "created_at": last["time"],
            "error_number": last.get("error"),
            "trace_id": last["trace"],
            "detail": "results of reads are not kept",
        }


def is_maker(caller: Caller, named: Sequence[str]) -> bool:
    """Whether the names in an entry are this caller's: the user's alone, or for an agent everybody's in its chain."""
    own = caller.pseudonyms
    return bool(own) and tuple(named if caller.agents else named[:1]) == own


def _id(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise _unknown(text) from None


def _unknown(call_id: str) -> CallNotFound:
    return CallNotFound("there is no such call, or it is not yours", details={"call_id": call_id[:64]})


def _facts(row: asyncpg.Record) -> dict[str, Any]:
    return {
        "call_id": str(row["id"]),
        "state": row["state"],
        "tool": {"name": row["tool"], "version": row["version"]},
        "mutation_class": row["mutation_class"],
        "user": row["caller_user"],
        "agent": nearest_of(row["caller_agent"]) or None,
        "session": row["session"],
        "created_at": row["created_at"].isoformat(),
        "ended_at": row["ended_at"].isoformat() if row["ended_at"] else None,
        "error_slug": row["error"],
        "trace_id": row["trace"],
    }
