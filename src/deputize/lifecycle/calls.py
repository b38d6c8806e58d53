"""Looking at calls: who made one sees it, an administrator sees the tenant's, nobody else learns of it.

A user sees whatever was done in their name. An agent sees what it did for that user itself: what the user or another
agent was told may be more than was lent to it. Of a call that is still open, whoever asks hears how far it is and when
to ask again; who stays hears it as it comes.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import orjson

from deputize.core.caller import Caller, nearest_of
from deputize.core.errors import CallNotFound
from deputize.core.events import EVENT_OF_STATE, TERMINAL, Event, State
from deputize.lifecycle.approvals.shown import told_of
from deputize.lifecycle.record import DRY_RUN
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.submit import links, poll_after_ms
from deputize.store.keys import KeySet
from deputize.store.queries import load

_SQL = load("calls")
_POLL_SECONDS = 0.25
_SLOWEST_POLL_SECONDS = 1.0


class Shown(NamedTuple):
    """A call as it is now; `poll_after_ms` of one that has not ended says when looking again is worth it."""

    body: bytes
    poll_after_ms: int | None = None


class Seen(NamedTuple):
    """One event of a call. Whoever was cut off gives the id of the last one back and hears what came since."""

    id: str
    event: Event
    facts: dict[str, Any]


class Place(NamedTuple):
    """How much of a call was seen: a state under an owner's epoch, and the words of its tool up to one."""

    epoch: int = -1
    state: str = ""
    seq: int = 0

    @classmethod
    def after(cls, event_id: str | None) -> "Place":
        """From an id that was given out here; anything else begins at the beginning."""
        epoch, _, rest = (event_id or "").partition(".")
        state, _, seq = rest.partition(".")
        if not (epoch.isdecimal() and seq.isdecimal() and len(epoch) < 10 and len(seq) < 10):
            return cls()
        return cls(epoch=int(epoch), state=state, seq=int(seq))

    def __str__(self) -> str:
        return f"{self.epoch}.{self.state}.{self.seq}"


class Calls:
    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    async def show(self, caller: Caller, call_id: str) -> Shown:
        """The envelope as it was answered; for a call still open, or a read, what is known of it."""
        call_id = _id(call_id)
        row = await self.row(caller, call_id)
        if row is None:
            return Shown(orjson.dumps(await self.read(caller, call_id)))
        keys = self._rooms.keys.ready(caller.tenant) or await self._rooms.keys.load(self._rooms.store, caller.tenant)
        if State(row["state"]) in TERMINAL:
            box = row["box"]
            return Shown(orjson.dumps(facts_of(row)) if box is None else keys.open(call_id, "outcome", box))
        wait = poll_after_ms(row["age"])
        facts = {"approval": None, **await self._facts(caller, row)}
        return Shown(orjson.dumps({**facts, **await self._how_far(caller, keys, row, wait)}), wait)

    async def _how_far(self, caller: Caller, keys: KeySet, row: asyncpg.Record, wait: int) -> dict[str, Any]:
        call_id, ahead = str(row["id"]), None
        async with self._rooms.store.reading(caller.tenant) as connection:
            told = await connection.fetch(_SQL["newest_progress"], caller.tenant, call_id)
            if row["state"] == State.QUEUED:
                ahead = await connection.fetchval(_SQL["runs_ahead"], caller.tenant, call_id)
        newest = {each["partial"]: _record(keys, call_id, each) for each in told}
        return {
            "progress": newest.get(False),
            "partial_result": newest.get(True),
            "queue": None if ahead is None else {"ahead": ahead},
            "cancel_asked": row["cancel_asked"].isoformat() if row["cancel_asked"] else None,
            "poll_after_ms": wait,
            "links": links(call_id),
        }

    async def page(self, caller: Caller, *, before: str | None, limit: int) -> list[dict[str, Any]]:
        await self._check(caller)
        user = None if caller.is_admin else caller.user
        agent = None if caller.is_admin or not caller.agents else caller.acting
        async with self._rooms.store.reading(caller.tenant) as connection:
            rows = await connection.fetch(
                _SQL["list_calls"], caller.tenant, user, None if before is None else _id(before), limit, agent
            )
        return [facts_of(row) for row in rows]

    async def follow(self, caller: Caller, call_id: str, *, after: str | None = None) -> AsyncIterator[Seen]:
        """Every state the call is seen in and every word of its tool, until its end. Raises before the first where
        there is no such call.
        """
        call_id = _id(call_id)
        row = await self.row(caller, call_id)
        known = await self._facts(caller, row) if row is not None else await self.read(caller, call_id)
        return self._events(caller, call_id, row, known, Place.after(after))

    async def _events(
        self, caller: Caller, call_id: str, row: asyncpg.Record | None, facts: dict[str, Any], seen: Place
    ) -> AsyncIterator[Seen]:
        wait, asked = _POLL_SECONDS, _asked(facts)
        while True:
            state, epoch = State(facts["state"]), 0 if row is None else row["owner_epoch"]
            # Also when others are asked than before, or about something else: whoever waits knows for whom.
            began = (epoch, state) != seen[:2] or _asked(facts) not in (None, asked)
            asked = _asked(facts)
            if began and state not in TERMINAL:
                seen = Place(epoch, state, seen.seq)
                yield Seen(str(seen), EVENT_OF_STATE[state], facts)
            # What its tool said last is told before its end is.
            while row is not None and (told := await self._told(caller, call_id, seen.seq)):
                for record, partial in told:
                    seen = seen._replace(seq=record["sequence"])
                    yield Seen(str(seen), Event.PARTIAL_RESULT if partial else Event.PROGRESS, record)
            if state in TERMINAL:
                if began:
                    yield Seen(str(Place(epoch, state, seen.seq)), EVENT_OF_STATE[state], facts)
                return
            await asyncio.sleep(wait)
            wait = min(wait * 1.05, _SLOWEST_POLL_SECONDS)
            row = await self.row(caller, call_id)
            facts = await self._facts(caller, row) if row is not None else await self.read(caller, call_id)

    async def _facts(self, caller: Caller, row: asyncpg.Record) -> dict[str, Any]:
        """What is known of a call; of one that people are asked about, also whom, until when, and why they said no."""
        if not row["asked"]:
            return facts_of(row)
        async with self._rooms.store.reading(caller.tenant) as connection:
            asked = await connection.fetchrow(_SQL["approval_of_call"], caller.tenant, row["id"])
        if asked is None:
            return facts_of(row)
        told = told_of(self._rooms, asked, asked["groups"])
        return {**facts_of(row), "approval": {**told, "reason": asked["reason"]}}

    async def _told(self, caller: Caller, call_id: str, seq: int) -> list[tuple[dict[str, Any], bool]]:
        async with self._rooms.store.reading(caller.tenant) as connection:
            rows = await connection.fetch(_SQL["progress_since"], caller.tenant, call_id, seq)
        keys = self._rooms.keys.ready(caller.tenant) or await self._rooms.keys.load(self._rooms.store, caller.tenant)
        return [(_record(keys, call_id, row), row["partial"]) for row in rows]

    async def _check(self, caller: Caller) -> None:
        (await self._rooms.authority.of(caller.tenant)).revocations.check(caller)

    async def row(self, caller: Caller, call_id: str) -> asyncpg.Record | None:
        """The call's row; None for a read that was answered at once, or for nothing at all."""
        await self._check(caller)
        async with self._rooms.store.reading(caller.tenant) as connection:
            row = await connection.fetchrow(_SQL["show_call"], caller.tenant, _id(call_id))
        if row is not None and not caller.is_admin and not caller.made(row["caller_user"], row["caller_agent"]):
            raise _unknown(call_id)
        return row

    async def read(self, caller: Caller, call_id: str) -> dict[str, Any]:
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
            "detail": "results of reads are not kept"
            if last.get("command") != DRY_RUN
            else "a dry run: nothing was done, and its preview is not kept",
        }


def is_maker(caller: Caller, named: Sequence[str]) -> bool:
    """Whether the names in an entry are this caller's: the user's alone, or for an agent everybody's in its chain."""
    own = caller.pseudonyms
    return bool(own) and tuple(named if caller.agents else named[:1]) == own


def _asked(facts: dict[str, Any]) -> dict[str, Any] | None:
    """What people are asked about a call that waits for them."""
    approval: dict[str, Any] | None = facts.get("approval")
    return approval if approval is not None and approval["state"] == "open" else None


def _record(keys: KeySet, call_id: str, row: asyncpg.Record) -> dict[str, Any]:
    told: dict[str, Any] = orjson.loads(keys.open(call_id, "progress", row["told"]))
    return {"call_id": call_id, "progress_id": f"{call_id}:{row['seq']}", **told}


def _id(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise _unknown(text) from None


def _unknown(call_id: str) -> CallNotFound:
    return CallNotFound("there is no such call, or it is not yours", details={"call_id": call_id[:64]})


def facts_of(row: asyncpg.Record) -> dict[str, Any]:
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
