"""What a server says becomes tools, or waits for somebody: the first look registers, every later one only compares.

    first look    tools without a flag are registered and pinned, all in one commit; flagged ones wait
    later         what changed, came or went is held as an open change; what is again as agreed closes its change
    at start-up   what the operator says of agreed tools otherwise than before is registered anew

Several gateways may look at once: everything is decided again under the tenant's barrier, and only the first of them
finds something to do. Above: `connected.py`. Below: `catalog/drift/` which judges, and `barrier.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import orjson
import structlog

from deputize.catalog import registry
from deputize.catalog.admission import admit, admit_beside
from deputize.catalog.drift.judge import Judged, Standing, judge
from deputize.catalog.snapshot import TenantTools
from deputize.core.caller import Caller
from deputize.core.contract import Contract
from deputize.core.errors import NotAdmitted
from deputize.core.servers import Discovered
from deputize.core.settings import McpServer
from deputize.lifecycle.barrier import add, change, record
from deputize.lifecycle.operator import operator
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.servers.agreed import (
    SQL,
    Agreed,
    Names,
    agreed,
    flags_json,
    is_registered,
    known_elsewhere,
    reasons_flagged,
)
from deputize.store.pool import Connection

_P = ParamSpec("_P")
_T = TypeVar("_T")
log = structlog.get_logger(__name__)
# What is gone has no content; its row still has a name.
GONE = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """One thing that waits for somebody, as a row of `server_changes`."""

    item: str
    digest: str
    said: bytes | None
    kind: str
    flags: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Looked:
    """What came of one look: tools that were registered in it, and how many changes it opened."""

    registered: tuple[str, ...]
    opened: int
    agreed: Agreed


class Importing:
    def __init__(self, rooms: Rooms, complete: Callable[[Caller], Awaitable[Caller]]) -> None:
        self._rooms = rooms
        self._complete = complete
        self._judging = asyncio.Lock()

    async def take(self, tenant: str, server: McpServer, found: Discovered) -> Looked:
        """Everything a look at a server leads to."""
        rooms = self._rooms
        tools = (await rooms.authority.of(tenant)).tools
        async with rooms.store.reading(tenant) as connection:
            known = await agreed(connection, tenant, server.name)
            others = await known_elsewhere(connection, tenant, server.name, tools)
        judged = await self._beside_the_loop(judge, server, known.pins, found, others)
        by = await self._complete(operator(tenant))
        registered: tuple[str, ...] = ()
        if not known.seen and server.review == "changes":
            taken = await self._first(by, server, judged, tools)
            if taken is None:
                # Another gateway was here first; what it agreed to is what counts.
                return await self.take(tenant, server, found)
            registered = taken
            async with rooms.store.reading(tenant) as connection:
                known = await agreed(connection, tenant, server.name)
            judged = tuple(each for each in judged if each.item not in known.pins)
        opened = await self._hold(by, server, judged, known, tools)
        if opened is None:
            # Somebody decided while this was judged by what was agreed to before.
            return await self.take(tenant, server, found)
        return Looked(registered=registered, opened=opened, agreed=known)

    async def _beside_the_loop(self, work: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """A server says how much there is to read, and nobody's call waits for it. One at a time: each thread that
        reads takes its turn from the loop, and among many that do, the loop would hardly have one.
        """
        async with self._judging:
            return await asyncio.to_thread(work, *args, **named)

    async def _first(
        self, by: Caller, server: McpServer, judged: Sequence[Judged], tools: TenantTools
    ) -> tuple[str, ...] | None:
        """Registers and pins what nothing speaks against; None where somebody else did meanwhile."""
        good = [each for each in judged if each.standing is Standing.ADDED]
        made = await self._beside_the_loop(_written, server, good, tools)

        async def act(connection: Connection) -> tuple[str, ...] | None:
            if (await agreed(connection, by.tenant, server.name)).seen:
                return None
            # Under the barrier: whatever came since has to leave room for all of it.
            now = (await self._rooms.authority.of(by.tenant)).tools
            if now.epoch != tools.epoch:
                for new in made.values():
                    admit_beside(new.contract, known=now.owner_of, facts=now.fact, other=now.contract_of)
            await registry.register_many(connection, by.tenant, list(made.values()), by=by.user)
            for each in good:
                written = made.get(each.item)
                contract = None if written is None else written.contract
                if contract is not None or not is_registered(each.item):
                    await pin(connection, by, server.name, each, contract)
                if contract is not None:
                    await record(
                        self._rooms, connection, by, "register:available", f"{contract.full_name}@{contract.version}",
                        contract,
                    )  # fmt: skip
            return tuple(each.contract.full_name for each in made.values())

        if not good:
            return ()
        return await change(self._rooms, by, "import_server", server.name, act)

    async def _hold(
        self, by: Caller, server: McpServer, judged: Sequence[Judged], known: Agreed, tools: TenantTools
    ) -> int | None:
        """Writes down what waits now and what does so no more; nothing where that stands there already. None where
        something else was agreed to meanwhile than what this was judged by.
        """
        waiting = await self._beside_the_loop(_held, server, judged, tools)
        held = {(each.item, each.digest): each for each in waiting}
        async with self._rooms.store.reading(by.tenant) as connection:
            rows = await connection.fetch(SQL["changes_known"], by.tenant, server.name)
        there = {(row["item"], row["digest"]): row for row in rows}
        new = [
            each
            for key, each in held.items()
            if key not in there
            or (there[key]["state"] == "open" and (there[key]["kind"], there[key]["flags"]) != (each.kind, each.flags))
        ]
        over = [key for key, row in there.items() if row["state"] == "open" and key not in held]
        if not new and not over:
            return 0

        async def act(connection: Connection) -> int | None:
            if (await agreed(connection, by.tenant, server.name)).digests != known.digests:
                return None
            opened = 0
            for each in new:
                if await connection.fetchval(
                    SQL["open_change"], by.tenant, server.name, each.item, each.digest, each.said, each.kind, each.flags
                ):
                    opened += 1
                    await record(
                        self._rooms, connection, by, f"hold:{each.kind}", _subject(server, each.item, each.digest)
                    )
            for item, digest in over:
                if await connection.fetchval(SQL["change_gone"], by.tenant, server.name, item, digest):
                    await record(self._rooms, connection, by, "hold_over", _subject(server, item, digest))
            return opened

        opened = await add(self._rooms, by, "look_at_server", server.name, act, ())
        if opened:
            log.warning("server_changes_held", tenant=by.tenant, server=server.name, count=opened)
        return opened


async def pin(connection: Connection, by: Caller, server: str, judged: Judged, contract: Contract | None) -> None:
    assert judged.digest is not None
    assert judged.said is not None
    await connection.execute(
        SQL["pin"], by.tenant, server, judged.item, judged.digest, orjson.dumps(dict(judged.said)),
        None if contract is None else contract.full_name, None if contract is None else contract.version, by.user,
    )  # fmt: skip


def _written(server: McpServer, good: Sequence[Judged], tools: TenantTools) -> dict[str, registry.Written]:
    """What can be registered, by item."""
    made, _ = Names(server, tools).contracts([each.definition for each in good if each.definition is not None])
    return {item: registry.Written.of(contract) for item, contract in made.items() if _admitted(contract, tools)}


def _held(server: McpServer, judged: Iterable[Judged], tools: TenantTools) -> list[Held]:
    """What waits, of what was judged: everything that is not as agreed. Of what could not be registered if somebody
    agreed to it, that is said.
    """
    waiting = [each for each in judged if each.standing is not Standing.SAME]
    definitions = [each.definition for each in waiting if each.definition is not None]
    made, refused = Names(server, tools).contracts(definitions) if definitions else ({}, {})
    found = []
    for each in waiting:
        against = refused.get(each.item)
        if each.item in made:
            against = _against(made[each.item], tools)
        more = [] if against is None else reasons_flagged(against)
        flagged = each.standing is Standing.ADDED and bool(more)
        found.append(
            Held(
                item=each.item,
                digest=GONE if each.digest is None else each.digest,
                said=None if each.said is None else orjson.dumps(dict(each.said)),
                kind=Standing.FLAGGED if flagged else each.standing,
                flags=flags_json(each.flags, more),
            )
        )
    return found


def _admit(contract: Contract, tools: TenantTools) -> None:
    admit(contract, known=tools.owner_of, facts=tools.fact, other=tools.contract_of)


def _against(contract: Contract, tools: TenantTools) -> NotAdmitted | None:
    try:
        _admit(contract, tools)
    except NotAdmitted as problem:
        return problem
    return None


def _admitted(contract: Contract, tools: TenantTools) -> bool:
    return _against(contract, tools) is None


def _subject(server: McpServer, item: str, digest: str) -> str:
    return f"{server.name} {item} {digest}".rstrip()
