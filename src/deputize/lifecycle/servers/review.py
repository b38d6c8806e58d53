"""Reviewing what a server said otherwise: an administrator accepts a change or rejects it, about exactly what they saw.

    accept    tool            registers it as its next major version and pins it
              tool, removed   retires it and forgets the pin
              all else        pins it, or forgets the pin: resources, templates, prompts, instructions
    reject                    writes that down; what was agreed to stays, and what the server says stays held

Whoever decides names the content by its digest, so that nobody accepts what came after they looked. Above: the doors.
Below: `barrier.py`, `versions.py`.
"""

from typing import Any, Literal

import asyncpg
import orjson

from deputize.catalog import registry
from deputize.catalog.drift.flags import FlagCode
from deputize.core.caller import Caller
from deputize.core.errors import ChangeNotFound, Malformed, NotAdmitted
from deputize.core.servers import Definition, Kind, kind_of
from deputize.core.settings import McpServer
from deputize.govern.decide import require_administering
from deputize.lifecycle.barrier import add, change
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.servers.agreed import SQL, Names, is_registered
from deputize.lifecycle.servers.connected import Connected
from deputize.lifecycle.servers.versions import pin_tool, put_version, retire
from deputize.store.pool import Connection

Decision = Literal["accept", "reject"]
# What may still be decided: a change of mind about what was rejected is one, too.
_UNDECIDED = frozenset({"open", "rejected"})


class Review:
    def __init__(self, rooms: Rooms, connected: Connected) -> None:
        self._rooms = rooms
        self._connected = connected

    async def decide(
        self, caller: Caller, server: str, item: str, digest: str, decision: Decision, reason: str = ""
    ) -> dict[str, Any]:
        """What the item is registered as from now on, and what was decided."""
        require_administering(caller)
        named = self._rooms.upstreams.settings_of(caller.tenant, server)
        subject = f"{server} {item} {digest}".rstrip()
        if decision == "reject" and not reason.strip():
            raise Malformed("say why you reject it", details={"field": "reason"})

        async def act(connection: Connection) -> str | None:
            row = await connection.fetchrow(SQL["change_for_update"], caller.tenant, server, item, digest)
            if row is None or row["state"] not in _UNDECIDED:
                raise ChangeNotFound(
                    f"no change of {item[:120]} with this content waits", details={"server": server, "item": item[:120]}
                )
            accepted = await self._accept(connection, caller, named, row) if decision == "accept" else None
            state = "accepted" if decision == "accept" else "rejected"
            await connection.execute(
                SQL["decide_change"], caller.tenant, server, item, digest, state, caller.user, reason
            )
            return accepted

        if decision == "accept":
            registered = await change(self._rooms, caller, "accept_change", subject, act)
        else:
            registered = await add(self._rooms, caller, "reject_change", subject, act, ())
        await self._connected.hear(caller.tenant)
        self._connected.look_soon(caller.tenant, server)
        return {"server": server, "item": item, "digest": digest, "decision": decision, "registered": registered}

    async def _accept(
        self, connection: Connection, caller: Caller, server: McpServer, row: asyncpg.Record
    ) -> str | None:
        """What the tool is registered as; None where nothing is."""
        rooms, item = self._rooms, row["item"]
        tools = (await rooms.authority.of(caller.tenant)).tools
        if row["kind"] == "removed":
            pinned = {each["item"]: each for each in await connection.fetch(SQL["pins_of"], caller.tenant, server.name)}
            if item in pinned and pinned[item]["tool"] is not None:
                await retire(rooms, connection, caller, pinned[item]["tool"], tools)
            await connection.execute(SQL["unpin"], caller.tenant, server.name, item)
            await self._tell_everybody(connection, caller)
            return None
        if _is_ambiguous(row):
            raise NotAdmitted(
                "the server declares this in several ways at once, so there is nothing to agree to",
                details={"server": server.name, "item": item},
                advice="Have its server's author give each a name of its own; until then none of them is called.",
            )
        if not is_registered(item):
            await connection.execute(
                SQL["pin"], caller.tenant, server.name, item, row["digest"], row["definition"], None, None, caller.user
            )
            await self._tell_everybody(connection, caller)
            return None
        definition = Definition.of(orjson.loads(row["definition"]), kind_of(item) or Kind.TOOL)
        made, refused = Names(server, tools).contracts([definition])
        if item in refused:
            raise _still(refused[item])
        contract = made[item]
        await put_version(rooms, connection, caller, contract, tools)
        await pin_tool(connection, caller, server.name, item, row["definition"], contract)
        return f"{contract.full_name}@{contract.version}"

    async def _tell_everybody(self, connection: Connection, caller: Caller) -> None:
        """No tool changed, and still every gateway has to hear of it: this is what they watch."""
        await connection.execute(registry.SQL["raise_registry_epoch"], caller.tenant)


def _is_ambiguous(row: asyncpg.Record) -> bool:
    """By our own flag: what stands in the definition is the server's to choose."""
    return any(each["code"] == FlagCode.AMBIGUOUS for each in orjson.loads(row["flags"]))


def _still(problem: NotAdmitted) -> NotAdmitted:
    """Whoever accepts it cannot mend it: the server's author can, or the operator by what the settings say of it."""
    problem.advice = "Have its server's author mend the definition, or leave the tool out with `tools` of [[servers]]."
    return problem
