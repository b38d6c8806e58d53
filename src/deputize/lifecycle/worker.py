"""A worker: carries runs the engine hands to this process, and takes over those of processes that are gone.

A dead process's lease says that it is dead; the database's clock says when. Whoever finds it hands its runs out again.
A run that outlived too many owners is given up: it may be the run that kills them.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from deputize.core.errors import Internal, Problem, Unavailable
from deputize.lifecycle.carried import Desk
from deputize.lifecycle.resume import NotNow
from deputize.lifecycle.run import Lifecycle
from deputize.runs.engine import Engine
from deputize.store.pool import LOST
from deputize.store.queries import load

_SQL = load("runs")
# Looks that cost more than they find, most of the time, are taken every so many of the others.
_SELDOM = 5
_PAUSE_SECONDS, _LONGEST_PAUSE = 0.2, 1.0
_BROKEN_SECONDS = 10.0
_ROUNDS = 20
log = structlog.get_logger(__name__)


class Worker:
    def __init__(self, lifecycle: Lifecycle, engine: Engine) -> None:
        self._lifecycle = lifecycle
        self._rooms = lifecycle.rooms
        self._engine = engine
        self._desk = Desk(self._rooms)
        self._watching: asyncio.Task[None] | None = None
        self._here: dict[asyncio.Task[None], str] = {}
        self._astray: frozenset[str] = frozenset()
        self.left = 0
        """How many runs had not ended when this worker would wait no longer for them."""

    async def start(self) -> None:
        await self._enlist()
        await self._desk.start()
        await self._engine.start(self._carry)
        self._watching = asyncio.create_task(self._watch(), name="takeover")

    @property
    def alive(self) -> bool:
        return self._watching is not None and not self._watching.done() and self._desk.alive

    @property
    def carrying(self) -> int:
        """How many runs are under way here."""
        return len(self._desk)

    async def stop(self) -> None:
        """Takes no more and waits for what runs; what does not end in time is said to be unknown and left to others."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        await self._engine.stop(seconds=self._rooms.settings.runs.drain_seconds)
        self.left = len(self._here)
        for task in self._here:
            task.cancel()
        if self._here:
            await asyncio.wait(self._here, timeout=self._rooms.settings.timing.lease_seconds)
        await self._desk.stop()

    async def _carry(self, tenant: str, call_id: str) -> None:
        """Until the run has ended, waits as a row, or is handed out again: whatever else happens, it is not dropped.
        What goes wrong is the run's to tell, through its row; the engine would only try it again blindly.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a run is carried in a task")
        self._here[task] = call_id
        try:
            pause = _PAUSE_SECONDS
            while not await self._carried(tenant, call_id):
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            del self._here[task]

    async def _carried(self, tenant: str, call_id: str) -> bool:
        """One try; whether there is nothing more to do for it here."""
        try:
            await self._lifecycle.resume(tenant, call_id, self._desk)
        except NotNow as later:
            log.info("run_put_back", call_id=call_id, why=str(later))
            return await self._put_back(tenant, call_id, later.seconds, unable=later.unable)
        except (Unavailable, *LOST) as away:
            log.warning("run_waits_for_database", call_id=call_id, reason=type(away).__name__)
            return False
        except Internal:
            # The database would not take what was to be written. Nothing was begun by that, so nothing has ended.
            log.error("run_not_begun", call_id=call_id)
            return await self._put_back(tenant, call_id, _BROKEN_SECONDS, unable=False)
        except Problem as problem:
            log.warning("run_ended_early", call_id=call_id, problem=problem.face.slug)
        except Exception as fault:
            # A fault of ours before the run was begun: after that, the run itself would tell of it.
            log.exception("run_not_carried", call_id=call_id, reason=type(fault).__name__)
            return await self._put_back(tenant, call_id, _BROKEN_SECONDS, unable=True)
        return True

    async def _put_back(self, tenant: str, call_id: str, seconds: float, *, unable: bool) -> bool:
        try:
            async with self._rooms.store.writing() as connection:
                await connection.execute(_SQL["put_back"], tenant, call_id, seconds, unable)
        except LOST as error:
            log.warning("run_not_put_back", call_id=call_id, reason=repr(error))
            return False
        return True

    async def _watch(self) -> None:
        often = (self._enlist, self._take_over_all, self._tidy)
        seldom = (self._find_astray, self._find_orphaned, self._forget)
        looks = 0
        while True:
            await asyncio.sleep(self._rooms.settings.timing.sweep_seconds)
            looks += 1
            for look in often if looks % _SELDOM else (*often, *seldom):
                await self._try(look)

    async def _try(self, look: Callable[[], Awaitable[object]]) -> None:
        """The engine's own errors are as many as its library's; none of them may end the watch."""
        try:
            await look()
        except Exception as error:  # noqa: BLE001 -- whatever it was, the next look may go well
            log.warning("look_failed", look=look.__name__.strip("_"), reason=repr(error))

    async def _enlist(self) -> None:
        """Among those whose runs are taken over when they die; again, if they were while this process was only away."""
        async with self._rooms.store.writing() as connection:
            await connection.execute(_SQL["add_worker"], self._rooms.lease.boot, self._rooms.release)

    async def _take_over_all(self) -> None:
        lease = self._rooms.lease
        for _ in range(_ROUNDS):
            if not lease.is_good or lease.was_cut_off or await self.take_over() is None:
                return

    async def take_over(self) -> int | None:
        """One look at dead processes; how many runs of one were handed out again, or None if nobody is dead.

        Its row is locked while its runs are handed out, so that one worker does it, and forgotten last, so that one
        that dies half way leaves the rest to the next.
        """
        taken = 0
        async with self._rooms.store.writing() as connection:
            dead = await connection.fetchval(_SQL["lock_dead_worker"], self._rooms.settings.timing.margin_seconds)
            if dead is None:
                return None
            for _ in range(_ROUNDS):
                names = await self._engine.held_by(str(dead))
                if not names:
                    break
                await self._engine.hand_out_again(names)
                taken += len(names)
            await connection.execute(_SQL["worker_is_buried"], dead)
        log.warning("runs_taken_over", executor=str(dead), count=taken)
        return taken

    async def _find_astray(self) -> None:
        """Runs the engine thinks are here and are not: it lost the database just when they were handed to it."""
        here = set(self._here.values())
        astray = {name for name in await self._engine.held_by(self._rooms.lease.boot) if name[:36] not in here}
        # One that is seen twice did not just arrive, and did not just leave.
        lost = astray & self._astray
        self._astray = frozenset(astray - lost)
        if lost:
            await self._engine.hand_out_again(sorted(lost))
            log.warning("runs_found_astray", count=len(lost))

    async def _find_orphaned(self) -> None:
        """Runs of a process that was buried while it was only away, came back, was handed more, and then really died
        before it could enlist again: nobody looks for what such a one had.
        """
        lease = self._rooms.lease
        if not lease.is_good or lease.was_cut_off:
            return
        async with self._rooms.store.writing() as connection:
            rows = await connection.fetch(_SQL["dead_and_not_enlisted"], self._rooms.settings.timing.margin_seconds)
        orphaned = await self._engine.held_by(*(str(row["boot"]) for row in rows)) if rows else ()
        if orphaned:
            await self._engine.hand_out_again(orphaned)
            log.warning("runs_found_orphaned", count=len(orphaned))

    async def _tidy(self) -> None:
        async with self._rooms.store.writing() as connection:
            await connection.execute(_SQL["tidy_lines"])
            waiting = await connection.fetchval(_SQL["tenants_that_wait"], self._rooms.settings.runs.at_once)
        await self._engine.share_among(waiting)

    async def _forget(self) -> None:
        for _ in range(_ROUNDS):
            if not await self._engine.forget_ended():
                return
