"""Workers in processes of their own that are killed, frozen and started again, and who holds what at that moment.

Above: `recovery` and the other proofs of runs. Below: the nursery, which forks a worker at once.
"""

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import asyncpg

from deputize.store.pool import LOST
from proofs.crash.nursery import UNMODIFIED, Born, Nursery
from proofs.kit.world import World

_HELD = """
select distinct left(workflow_uuid, 36)::uuid as id from dbos.workflow_status
where executor_id = $1 and status = 'PENDING'
"""
_BOOTS = "select boot from deputize.workers"
_STARTS = 20
_OPEN = "select id from deputize.calls where id = any($1::uuid[]) and state in ('queued', 'running')"


class Database:
    """A look into the database that survives its being killed."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: asyncpg.Connection | None = None
        self._one_at_a_time = asyncio.Lock()

    async def fetch(self, sql: str, *arguments: object) -> list[asyncpg.Record]:
        async with asyncio.timeout(120), self._one_at_a_time:
            while True:
                try:
                    if self._connection is None or self._connection.is_closed():
                        self._connection = await asyncpg.connect(self._dsn)
                    return await self._connection.fetch(sql, *arguments)
                except LOST:
                    self._connection = None
                    await asyncio.sleep(0.1)

    async def value(self, sql: str, *arguments: object) -> object:
        return (await self.fetch(sql, *arguments))[0][0]

    async def until(self, sql: str, *arguments: object, seconds: float = 60.0) -> None:
        """Waits until the value is there, and not nothing or none."""
        async with asyncio.timeout(seconds):
            while not await self.value(sql, *arguments):  # noqa: ASYNC110 -- what changes it is another process
                await asyncio.sleep(0.1)

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()


@dataclass(frozen=True, kw_only=True, slots=True)
class Blow:
    """A worker that was killed or frozen: when, which boot, and the open runs that were with it."""

    at: datetime
    boot: str
    runs: tuple[str, ...]
    frozen: bool = False


@dataclass(kw_only=True, slots=True)
class Hand:
    """One place in the crew; whoever stands there changes."""

    born: Born
    boot: str


@dataclass(kw_only=True, slots=True)
class Crew:
    world: World
    nursery: Nursery
    folder: Path
    env: dict[str, str]
    database: Database
    module: str = UNMODIFIED
    name: str = "worker"
    hands: dict[int, Hand] = field(default_factory=dict)
    blows: list[Blow] = field(default_factory=list)
    frozen: set[int] = field(default_factory=set)
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def man(self, place: int) -> None:
        """A new worker in this place, and another if it finds no database; returns when the others know of it."""
        async with self._looking, asyncio.timeout(120):
            before = {str(row["boot"]) for row in await self.database.fetch(_BOOTS)}
            log = self.world.folder / f"{self.name}-{place}.log"
            for _ in range(_STARTS):
                env = {**self.env, "DEPUTIZE_SERVER__METRICS_PORT": "0"}
                born = await self.nursery.bear(self.folder, env, None, module=self.module, command="work", log=log)
                while _alive(born.pid):
                    new = {str(row["boot"]) for row in await self.database.fetch(_BOOTS)} - before
                    if new:
                        self.hands[place] = Hand(born=born, boot=new.pop())
                        return
                    await asyncio.sleep(0.05)
                await born.end()
        raise RuntimeError(f"a worker did not start:\n{log.read_text()[-3000:]}")

    async def kill(self, place: int) -> None:
        """SIGKILL, and note what was with it."""
        hand = self.hands.pop(place)
        at = datetime.now(UTC)
        # Its handle is closed with it: it may have died by itself.
        await hand.born.end()
        self.blows.append(Blow(at=at, boot=hand.boot, runs=await self._with(hand.boot)))

    async def freeze(self, place: int, seconds: float) -> None:
        """SIGSTOP for so long, then SIGCONT: it wakes after others took over what it had."""
        hand = self.hands[place]
        at = datetime.now(UTC)
        if not _alive(hand.born.pid):
            # It died by itself, as a process may whose database is killed under it; the next blow replaces it.
            return
        self.frozen.add(place)
        os.kill(hand.born.pid, signal.SIGSTOP)
        try:
            self.blows.append(Blow(at=at, boot=hand.boot, runs=await self._with(hand.boot), frozen=True))
            await asyncio.sleep(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(hand.born.pid, signal.SIGCONT)
            self.frozen.discard(place)

    async def dismiss(self) -> None:
        for hand in self.hands.values():
            await hand.born.end()
        self.hands.clear()

    async def _with(self, boot: str) -> tuple[str, ...]:
        held = [row["id"] for row in await self.database.fetch(_HELD, boot)]
        return tuple(str(row["id"]) for row in await self.database.fetch(_OPEN, held))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
