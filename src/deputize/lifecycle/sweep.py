"""The sweeper: finds calls whose process died before their outcome, and says what is true of them, UNKNOWN.

Every gateway runs one; they share the work by skipping what another holds. It never executes anything.
"""

import asyncio
import contextlib

import asyncpg
import structlog

from deputize.core.caller import Caller, Epochs
from deputize.core.decision import Decision
from deputize.core.errors import OutcomeUnknown
from deputize.core.events import State
from deputize.lifecycle.rooms import Rooms
from deputize.prove.entries import About, entry
from deputize.store.pool import LOST
from deputize.store.queries import load

_SQL = load("runs")
_CHECKPOINTS = load("checkpoints")
_PARTITIONS_EVERY = 3600.0
_OWNER_GONE = Decision(rules=("owner-gone",), epochs=Epochs())
log = structlog.get_logger(__name__)


class Sweeper:
    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._task: asyncio.Task[None] | None = None
        self._partitions_due = 0.0

    async def start(self) -> None:
        await self._make_partitions()
        self._task = asyncio.create_task(self._keep_sweeping(), name="sweeper")

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _keep_sweeping(self) -> None:
        while True:
            await asyncio.sleep(self._rooms.settings.timing.sweep_seconds)
            try:
                await self.sweep()
                if self._rooms.clock.monotonic() >= self._partitions_due:
                    await self._make_partitions()
            except LOST as error:
                log.warning("sweep_failed", reason=repr(error))

    async def sweep(self) -> int:
        """Marks one round of abandoned calls unknown; how many there were."""
        async with self._rooms.store.writing() as connection:
            abandoned = await connection.fetch(_SQL["find_abandoned"], self._rooms.settings.timing.margin_seconds)
            for call in abandoned:
                await connection.execute(_SQL["mark_unknown"], call["tenant"], call["id"], call["owner_epoch"])
                entry_id, body = self._entry(call)
                await connection.execute(_SQL["add_entry"], call["tenant"], entry_id, call["id"], body, None)
        if abandoned:
            log.warning("calls_unknown", count=len(abandoned))
        return len(abandoned)

    def _entry(self, call: asyncpg.Record) -> tuple[str, bytes]:
        """Written by nobody's authority: the caller chain stands in the intent it refers to."""
        entry_id = self._rooms.clock.new_id()
        about = About(
            caller=Caller(tenant=call["tenant"], user=""),
            trace=call["trace"],
            call=str(call["id"]),
            session=call["session"],
            tool=call["tool"],
        )
        body = entry(
            about,
            id=entry_id,
            kind="outcome",
            time=self._rooms.stamps.now(),
            decision=_OWNER_GONE,
            outcome=State.UNKNOWN,
            error=OutcomeUnknown.face.e_number,
        )
        return entry_id, body

    async def _forget(self, days: int) -> None:
        """What is kept so many days and no longer. Of any number of processes one does it, some of it once a day."""
        async with self._rooms.store.writing() as connection:
            if await connection.fetchval(_SQL["begin_chore"], "forget", 50):
                await connection.execute(_CHECKPOINTS["forget_ended"], days)
                await connection.execute(_SQL["forget_old_progress"], days)
        async with self._rooms.store.writing() as connection:
            if await connection.fetchval(_SQL["begin_chore"], "forget originals", 23 * 60):
                await connection.execute(_SQL["forget_originals"], days)

    async def _make_partitions(self) -> None:
        async with self._rooms.store.writing() as connection:
            await connection.execute(_SQL["make_partitions"])
            await connection.execute(_SQL["forget_dead_leases"])
        await self._forget(self._rooms.settings.database.retention_days)
        self._partitions_due = self._rooms.clock.monotonic() + _PARTITIONS_EVERY
