"""The servers of a tenant as its administrators see them: how each stands, what it offers, and what waits for review.

How a server stands is what this gateway found when it last looked; what was agreed to and what waits is the tenant's.
Nothing of a server's credential or environment is told. Above: the doors. Below: `connected.py`, which looks.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import asyncpg
import orjson

from deputize.catalog.drift.diff import differences
from deputize.catalog.drift.judge import INSTRUCTIONS
from deputize.core.caller import Caller
from deputize.core.errors import EgressDenied, UpstreamTimeout, UpstreamUnavailable
from deputize.core.plain import plain
from deputize.core.settings import McpServer
from deputize.govern.decide import require_admin, require_administering
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.servers.agreed import SQL
from deputize.lifecycle.servers.connected import Connected

ChangeState = Literal["open", "accepted", "rejected", "gone"]
_LONGEST = 400
_SEE_TO_ADDRESS = "See that it runs, and that url under [[servers]] is where it speaks MCP; then look again."
_SEE_TO_PROGRAM = "Run its command from [[servers]] by hand; what it said last is in the log of this gateway."


class Servers:
    def __init__(self, rooms: Rooms, connected: Connected) -> None:
        self._rooms = rooms
        self._connected = connected

    async def listed(self, caller: Caller) -> list[dict[str, Any]]:
        """In order of name."""
        await self._check(caller)
        named = sorted(self._rooms.upstreams.named(caller.tenant), key=lambda each: each.name)
        counts = await self._counts(caller.tenant)
        return [self._shown(caller.tenant, each, counts) for each in named]

    async def of_the_process(self) -> list[dict[str, Any]]:
        """Those of every tenant, for whoever started the process; no door hands this out."""
        counts = {tenant: await self._counts(tenant) for tenant, _ in self._connected.named}
        return [self._shown(tenant, each, counts[tenant]) for tenant, each in self._connected.named]

    async def show(self, caller: Caller, server: str) -> dict[str, Any]:
        """One of them, with everything that was agreed to."""
        await self._check(caller)
        named = self._rooms.upstreams.settings_of(caller.tenant, server)
        counts = await self._counts(caller.tenant)
        async with self._rooms.store.reading(caller.tenant) as connection:
            rows = await connection.fetch(SQL["pins_of"], caller.tenant, server)
        return {
            **self._shown(caller.tenant, named, counts),
            "review": named.review,
            "probe_seconds": named.probe_seconds,
            "agreed": [self._agreed(caller.tenant, server, row) for row in rows],
            "left_out": self._left_out(caller.tenant, server),
        }

    async def test(self, caller: Caller, server: str) -> dict[str, Any]:
        """Looks at it now: what it offers that is new is registered or held, as in every look. Raises why it cannot be
        reached.
        """
        require_administering(caller)
        await self._check(caller)
        try:
            looked = await self._connected.look(caller.tenant, server)
        except (UpstreamUnavailable, UpstreamTimeout, EgressDenied) as problem:
            if problem.advice == problem.face.advice:
                # What is said to whoever calls a tool is of no use to whoever keeps the server.
                named = self._rooms.upstreams.settings_of(caller.tenant, server)
                problem.advice = _SEE_TO_ADDRESS if named.url is not None else _SEE_TO_PROGRAM
            raise
        shown = await self.show(caller, server)
        return {**shown, "registered": list(looked.registered), "opened": looked.opened}

    async def changes(
        self, caller: Caller, server: str, *, state: ChangeState | None = "open", limit: int = 200
    ) -> list[dict[str, Any]]:
        """What the server says otherwise than agreed, each with what differs."""
        await self._check(caller)
        self._rooms.upstreams.settings_of(caller.tenant, server)
        async with self._rooms.store.reading(caller.tenant) as connection:
            rows = await connection.fetch(SQL["changes_of"], caller.tenant, server, state, limit)
        return await asyncio.to_thread(lambda: [_changed(row) for row in rows])

    async def _counts(self, tenant: str) -> dict[str, asyncpg.Record]:
        async with self._rooms.store.reading(tenant) as connection:
            return {row["server"]: row for row in await connection.fetch(SQL["counts"], tenant)}

    def _shown(self, tenant: str, server: McpServer, counts: Mapping[str, asyncpg.Record]) -> dict[str, Any]:
        state, count = self._rooms.servers.of(tenant, server.name), counts.get(server.name)
        status = "unseen" if state is None else "connected" if state.connected else "unavailable"
        return {
            "name": server.name,
            "kind": "http" if server.url is not None else "stdio",
            "address": server.url if server.url is not None else server.command[0],
            "credential": server.credential,
            "status": status,
            "since": None if state is None else state.since,
            "looked_at": None if state is None else state.looked_at,
            "why": plain(state.why, _LONGEST) if state is not None and state.why else None,
            "protocol": None if state is None else state.protocol or None,
            "title": None if state is None else plain(state.title, _LONGEST) or None,
            "version": None if state is None else plain(state.version, _LONGEST) or None,
            "tools": 0 if count is None else count["tools"],
            "changes": 0 if count is None else count["waiting"],
        }

    def _left_out(self, tenant: str, server: str) -> list[str]:
        state = self._rooms.servers.of(tenant, server)
        return [] if state is None else [plain(each, _LONGEST) for each in state.left_out]

    def _agreed(self, tenant: str, server: str, row: asyncpg.Record) -> dict[str, Any]:
        state = self._rooms.servers.of(tenant, server)
        now: str | None = None
        if state is not None and state.connected:
            said = state.instructions if row["item"] == INSTRUCTIONS else state.digests.get(row["item"])
            now = "removed" if said is None else "same" if said == row["digest"] else "changed"
        return {
            "item": row["item"],
            "digest": row["digest"],
            "tool": row["tool"],
            "version": row["version"],
            "accepted_by": row["accepted_by"],
            "accepted_at": row["accepted_at"].isoformat(),
            "now": now,
        }

    async def _check(self, caller: Caller) -> None:
        require_admin(caller)
        (await self._rooms.authority.of(caller.tenant)).revocations.check(caller)


def _changed(row: asyncpg.Record) -> dict[str, Any]:
    # Of what the server took back itself nothing is kept to be held against what was agreed to.
    kept = row["state"] != "gone"
    before = None if row["agreed"] is None or not kept else orjson.loads(row["agreed"])
    after = None if row["definition"] is None else orjson.loads(row["definition"])
    return {
        "item": row["item"],
        "shown": plain(row["item"], _LONGEST),
        "digest": row["digest"],
        "kind": row["kind"],
        "state": row["state"],
        "tool": row["tool"],
        "version": row["version"],
        "seen_at": row["seen_at"].isoformat(),
        "flags": orjson.loads(row["flags"]),
        "differences": [
            {"where": each.where, "before": each.before, "after": each.after} for each in differences(before, after)
        ],
        "decided_by": row["decided_by"],
        "decided_at": None if row["decided_at"] is None else row["decided_at"].isoformat(),
        "reason": row["reason"],
    }
