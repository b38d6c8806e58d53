"""Looks at each server for as long as the process runs: at once, when the server says it changed, and every so often.

One task per server, so that none waits for another, and starting up waits for none. A server that does not answer is
asked again after pauses that grow; what it offered stays registered and stands as unavailable.

Above: `app.py`, which starts and stops it, and doors that ask for a look now. Below: `execute/upstreams/` which asks,
`importing.py` which makes something of the answer, `states.py` which remembers how it went.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

import asyncpg
import orjson
import structlog

from deputize.catalog.drift.judge import INSTRUCTIONS
from deputize.core.caller import Caller, Epochs
from deputize.core.errors import Problem
from deputize.core.offers import Offers
from deputize.core.settings import McpServer
from deputize.lifecycle.operator import operator
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.servers.agreed import SQL
from deputize.lifecycle.servers.credential import credential_for
from deputize.lifecycle.servers.described import describe_again
from deputize.lifecycle.servers.importing import Importing, Looked
from deputize.store.pool import LOST

log = structlog.get_logger(__name__)
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
# A server that says without end that it changed is still asked only so often: looking at it takes at most a quarter of
# the time, and one that says something new in every look is heard less and less, down to once per `probe_seconds`.
_LEAST_SECONDS = 0.5
_REST = 3.0
_CHANGES_IN_A_ROW = 3


class Connected:
    def __init__(self, rooms: Rooms, complete: Callable[[Caller], Awaitable[Caller]]) -> None:
        self._rooms = rooms
        self._complete = complete
        self._importing = Importing(rooms, complete)
        self.named = [(each.tenant or rooms.settings.tools.tenant, each) for each in rooms.settings.servers]
        keys = [(tenant, each.name) for tenant, each in self.named]
        self._nudged = {key: asyncio.Event() for key in keys}
        self._looked = {key: asyncio.Event() for key in keys}
        self._looking = {key: asyncio.Lock() for key in keys}
        # Servers that what the settings say of their tools was not compared with yet.
        self._undescribed = set(keys)
        self._heard: dict[str, Epochs] = {}
        self._hearing = {tenant: asyncio.Lock() for tenant, _ in self.named}
        # What was agreed to beside tools, as it was last told to those who go by it.
        self._pinned: dict[tuple[str, str], dict[str, str]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        if self.named:
            # Before any call: no server may have been told otherwise for a moment.
            for tenant in sorted({tenant for tenant, _ in self.named}):
                await self.hear(tenant)
            self._rooms.upstreams.watch(self.look_soon)
        self._tasks = [
            asyncio.create_task(self._keep_looking(tenant, each), name=f"server {each.name}")
            for tenant, each in self.named
        ]

    @property
    def alive(self) -> bool:
        return not any(task.done() for task in self._tasks)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def first_looks(self, seconds: float) -> None:
        """Returns once every server was looked at or could not be, or when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for looked in self._looked.values():
                    await looked.wait()

    def look_soon(self, tenant: str, server: str) -> None:
        """Asked for by whoever has reason to think that something changed; of any number at once, one look comes."""
        nudged = self._nudged.get((tenant, server))
        if nudged is not None:
            nudged.set()

    async def look(self, tenant: str, server: str) -> Looked:
        """A look now. Raises what stands in its way, and notes it either way; two at once come one after the other."""
        settings = self._rooms.upstreams.settings_of(tenant, server)
        async with self._looking[tenant, server]:
            try:
                return await self._look(tenant, settings)
            except Problem as problem:
                self._lost(tenant, server, problem.message)
                raise
            finally:
                self._looked[tenant, server].set()

    async def _look(self, tenant: str, server: McpServer) -> Looked:
        rooms = self._rooms
        async with credential_for(rooms, tenant, server) as credential:
            found = await rooms.upstreams.discover(tenant, server.name, credential, server.start_seconds)
        if (tenant, server.name) in self._undescribed:
            await describe_again(rooms, await self._complete(operator(tenant)), server)
            self._undescribed.discard((tenant, server.name))
        looked = await self._importing.take(tenant, server, found)
        await self.hear(tenant)
        rooms.servers.found(tenant, server.name, found, now=rooms.stamps.now())
        return looked

    async def hear(self, tenant: str) -> None:
        """Something of the tenant's authority changed, here or on another gateway: perhaps what is agreed to."""
        named = [server.name for owner, server in self.named if owner == tenant]
        if not named:
            return
        # One after the other: who reads later knows more, and must not be overtaken by who read before.
        async with self._hearing[tenant]:
            async with self._rooms.store.reading(tenant) as connection:
                rows = await connection.fetch(SQL["agreed_beside_tools"], tenant)
                pinned = {name: {row["item"]: row["digest"] for row in rows if row["server"] == name} for name in named}
                moved = [name for name in named if self._pinned.get((tenant, name)) != pinned[name]]
                said = {name: await connection.fetch(SQL["said_beside_tools"], tenant, name) for name in moved}
            for name in named:
                self._agree(tenant, name, pinned[name].get(INSTRUCTIONS))
            for name, found in said.items():
                # Beside the loop: there may be megabytes of it.
                offers = await asyncio.to_thread(_offers, found)
                self._rooms.upstreams.agree_to_offers(tenant, name, offers)
                self._pinned[tenant, name] = {row["item"]: row["digest"] for row in found}

    async def refresh(self, tenant: str, at_least: Epochs) -> object:
        """What the watcher over epochs calls, in place of the authority's own: it hears of both."""
        fresh = await self._rooms.authority.refresh(tenant, at_least)
        await self.hear(tenant)
        self._heard[tenant] = at_least
        return fresh

    def known_epochs(self) -> dict[str, Epochs]:
        """What the watcher goes by: a call may have refreshed the authority already, and nobody heard of it here."""
        known = self._rooms.authority.known_epochs()
        for tenant in {tenant for tenant, _ in self.named} & known.keys():
            heard = self._heard.get(tenant, Epochs())
            if not heard.covers(known[tenant]):
                known[tenant] = heard
        return known

    def _agree(self, tenant: str, server: str, instructions: str | None) -> None:
        # Where nobody agreed to any, none are as agreed.
        self._rooms.servers.agree(tenant, server, instructions or "")
        self._rooms.upstreams.agree(tenant, server, instructions or "")

    def _lost(self, tenant: str, server: str, why: str) -> None:
        before = self._rooms.servers.of(tenant, server)
        if before is None or before.connected:
            log.warning("server_unavailable", tenant=tenant, server=server, reason=why)
        self._rooms.servers.lost(tenant, server, why, now=self._rooms.stamps.now())

    async def _keep_looking(self, tenant: str, server: McpServer) -> None:
        nudged, failed, restless = self._nudged[tenant, server.name], 0, 0
        while True:
            nudged.clear()
            began = self._rooms.clock.monotonic()
            try:
                looked = await self.look(tenant, server.name)
                failed, restless = 0, restless + 1 if looked.opened else 0
            except Problem:
                failed += 1
            except LOST as error:
                # Our own database, not the server: what is known of it stays as it is.
                failed += 1
                log.warning("server_not_looked_at", server=server.name, reason=repr(error))
            except Exception as error:
                # Whatever one server says must not end the watch over it for good.
                failed += 1
                self._lost(tenant, server.name, "what it said could not be dealt with; the log says more")
                log.error("server_not_understood", server=server.name, reason=type(error).__name__, exc_info=True)
            pause = self._pause(failed) if failed else self._jittered(server.probe_seconds)
            least = max(_LEAST_SECONDS, _REST * (self._rooms.clock.monotonic() - began))
            if restless > _CHANGES_IN_A_ROW:
                least = max(least, self._pause(restless - _CHANGES_IN_A_ROW))
            await asyncio.sleep(min(least, pause))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(nudged.wait(), pause)

    def _pause(self, failed: int) -> float:
        return self._jittered(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(failed - 1, 10)))

    def _jittered(self, seconds: float) -> float:
        """Between three quarters and five quarters, so that many gateways do not ask in one breath."""
        return seconds * (0.75 + self._rooms.clock.random_bytes(1)[0] / 510)


def _offers(rows: Sequence[asyncpg.Record]) -> Offers:
    return Offers.of((row["item"], orjson.loads(row["definition"])) for row in rows)
