"""One lease per process boot. A process that cannot prove its own lease dispatches no effect.

PostgreSQL's clock decides when a lease ends; the process itself reckons from before it asked, with a margin, so it
always stops before others believe it dead.
"""

import asyncio
import contextlib

import structlog

from deputize.core.clock import Clock
from deputize.core.errors import Unavailable
from deputize.store.pool import LOST, Store
from deputize.store.queries import load

_SQL = load("runs")
log = structlog.get_logger(__name__)


class Lease:
    def __init__(self, store: Store, clock: Clock, *, boot: str, seconds: float, release: str) -> None:
        self._store = store
        self._clock = clock
        self._seconds = seconds
        self._release = release
        self._good_until = float("-inf")
        self._lapsed_until = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self.boot = boot
        self.skew_seconds = 0.0

    @property
    def is_good(self) -> bool:
        return self._clock.monotonic() < self._good_until

    @property
    def was_cut_off(self) -> bool:
        """Whether this process lost the database a moment ago. So may have others that live: nobody calls them dead
        before they had the time to say so.
        """
        return self._clock.monotonic() < self._lapsed_until + self._seconds / 2

    def require(self) -> None:
        """Raises before an effect that others may already have given up on."""
        if not self.is_good:
            raise Unavailable(
                "this gateway cannot prove that it is alive to the others, so it starts nothing",
                retry_after_ms=1000,
                nothing_happened=True,
            )

    async def start(self) -> None:
        await self.renew()
        self._task = asyncio.create_task(self._keep(), name="lease")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._good_until = float("-inf")
        with contextlib.suppress(*LOST):
            # A database that does not answer sees the lease run out by itself.
            async with asyncio.timeout(self._seconds), self._store.writing() as connection:
                await connection.execute(_SQL["end_lease"], self.boot)

    async def renew(self) -> None:
        asked = self._clock.monotonic()
        async with asyncio.timeout(self._seconds / 2), self._store.writing() as connection:
            database_ms = await connection.fetchval(_SQL["renew_lease"], self.boot, self._seconds, self._release)
        if self._good_until != float("-inf") and not self.is_good:
            self._lapsed_until = self._clock.monotonic()
        self._good_until = asked + self._seconds * 0.8
        self.skew_seconds = (self._clock.epoch_ms() - database_ms) / 1000

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._seconds / 4)
            try:
                await self.renew()
            except LOST as error:
                log.warning("lease_not_renewed", reason=repr(error))
