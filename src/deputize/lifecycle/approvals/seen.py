"""A ticket as somebody may see it: read, opened, and with what was said about it so far."""

from typing import Any
from uuid import UUID

import asyncpg
import orjson

from deputize.core.caller import BREAK_GLASS_SCOPE, Caller
from deputize.core.errors import TicketNotFound
from deputize.core.frozen import frozen
from deputize.govern.approvals.deciders import Deciding
from deputize.govern.approvals.demands import Vote, asked_from
from deputize.lifecycle.approvals.shown import in_full
from deputize.lifecycle.approvals.tickets import Sealed
from deputize.lifecycle.rooms import Rooms
from deputize.store.pool import Connection
from deputize.store.queries import load

_SQL = load("approvals")


@frozen
class Seen:
    row: asyncpg.Record
    sealed: Sealed
    groups: tuple[str, ...]
    votes: tuple[asyncpg.Record, ...]
    deciding: Deciding

    @property
    def id(self) -> str:
        return str(self.row["id"])

    @property
    def call_id(self) -> str:
        return str(self.row["call_id"])

    @property
    def call_state(self) -> str:
        return str(self.row["call_state"])

    @property
    def binding(self) -> str:
        return bytes(self.row["binding"]).hex()

    def told(self, rooms: Rooms) -> dict[str, Any]:
        return in_full(rooms, self.row, self.sealed, self.groups, self.votes)

    def differs_from(self, other: "Seen") -> frozenset[str]:
        """The arguments that are not the same in both, what a server is answered with, and who is behind them."""
        mine, others = self.sealed.shown, other.sealed.shown
        names = {*mine["arguments"], *others["arguments"]}
        differ = {name for name in names if _spelled(mine, name) != _spelled(others, name)}
        behind = {
            name for name in ("for_user", "agents", "environment", "answers") if mine.get(name) != others.get(name)
        }
        return frozenset(differ | behind)


def _spelled(shown: dict[str, Any], name: str) -> bytes | None:
    arguments = shown["arguments"]
    return orjson.dumps(arguments[name], option=orjson.OPT_SORT_KEYS) if name in arguments else None


async def seen(rooms: Rooms, connection: Connection, caller: Caller, ticket_id: str, *, locked: bool = False) -> Seen:
    """By its own id or that of its call. Whoever has nothing to do with it learns nothing, not even that it exists."""
    try:
        named = str(UUID(ticket_id))
    except ValueError:
        raise _not_there() from None
    tenant = caller.tenant
    if locked:
        await connection.fetchval(_SQL["lock_ticket"], tenant, named)
    row = await connection.fetchrow(_SQL["show_ticket"], tenant, named)
    if row is None:
        raise _not_there()
    asked = asked_from(orjson.loads(row["demands"]), levels=row["levels"])
    everybody = {group for demand in asked.demands for group in demand.groups}
    theirs = caller.made(row["caller_user"], row["caller_agent"])
    # Whoever may break the glass is asked by nobody, and sees what it is about.
    asked_for = not caller.groups.isdisjoint(everybody) or BREAK_GLASS_SCOPE in caller.scopes
    if not (theirs or caller.is_admin or (caller.console and asked_for)):
        raise _not_there()
    keys = rooms.keys.ready(tenant) or await rooms.keys.load(rooms.store, tenant)
    groups = await connection.fetch(_SQL["groups_now"], tenant, row["id"])
    votes = tuple(await connection.fetch(_SQL["votes_on"], tenant, row["id"]))
    deciding = Deciding(
        tenant=tenant,
        chain=tuple(row["chain"]),
        asked=asked,
        level=row["level"],
        votes=tuple(
            Vote(voter=vote["voter"], approve=vote["approve"], counts=frozenset(vote["counts"]), glass=vote["glass"])
            for vote in votes
        ),
    )
    return Seen(
        row=row,
        sealed=Sealed.opened(keys, str(row["id"]), row["shown"]),
        groups=tuple(each["grp"] for each in groups),
        votes=votes,
        deciding=deciding,
    )


def _not_there() -> TicketNotFound:
    return TicketNotFound("there is no ticket with this id, or it is not for you to see")
