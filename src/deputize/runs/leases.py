"""Hold the lease of this process. Without a valid lease, a process starts no effect.

PostgreSQL's clock decides when a lease ends. The process measures from before it sent the renewal, with a margin, so it
always stops before other processes consider it dead.
"""

import asyncio
import contextlib

import structlog

from deputize.core.clock import Clock
from deputize.core.errors import Unavailable
from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.store.pool import CONNECTION_ERRORS, Store
from deputize.store.queries import load_statements

_SQL = load_statements("runs")
log = structlog.get_logger(__name__)


class ProcessLease(PeriodicTask):
    """The lease by which other processes know that this one is alive."""

    task_name = "lease"
    tolerated_errors = CONNECTION_ERRORS
    runs_at_start = False

    def __init__(self, store: Store, clock: Clock, *, boot_id: str, seconds: float, release: str) -> None:
        super().__init__()
        self._store = store
        self._clock = clock
        self._seconds = seconds
        self._release = release
        self._valid_until = float("-inf")
        self._lapsed_until = float("-inf")
        self.boot_id = boot_id
        self.skew_seconds = 0.0

    @property
    def is_valid(self) -> bool:
        """True while this process may start effects."""
        return self._clock.monotonic() < self._valid_until

    @property
    def has_recently_lapsed(self) -> bool:
        """True shortly after this process lost the database. Other live processes may have lost it too, so they get
        time to renew before they are considered dead.
        """
        return self._clock.monotonic() < self._lapsed_until + self._seconds / 2

    def require_valid(self) -> None:
        """Raise `Unavailable` if other processes may already have taken over this one's runs."""
        if not self.is_valid:
            raise Unavailable(
                "this gateway could not renew its lease in PostgreSQL, so it starts no calls",
                retry_after_ms=1000,
                nothing_happened=True,
            )

    @property
    def interval_seconds(self) -> float:
        return self._seconds / 4

    async def start(self) -> None:
        """Acquire the lease, then keep renewing it."""
        await self.renew()
        await super().start()

    async def run_step(self) -> float:
        await self.renew()
        return self.interval_seconds

    def report_error(self, error: Exception) -> None:
        log.warning("lease_not_renewed", reason=repr(error))

    async def stop(self) -> None:
        """Stop renewing and end the lease."""
        await super().stop()
        self._valid_until = float("-inf")
        with contextlib.suppress(*CONNECTION_ERRORS):
            # A database that does not answer sees the lease run out by itself.
            async with asyncio.timeout(self._seconds), self._store.write_transaction() as connection:
                await connection.execute(_SQL["end_lease"], self.boot_id)

    async def renew(self) -> None:
        """Renew the lease, and measure the clock skew to PostgreSQL."""
        started_at = self._clock.monotonic()
        async with asyncio.timeout(self._seconds / 2), self._store.write_transaction() as connection:
            database_ms = await connection.fetchval(_SQL["renew_lease"], self.boot_id, self._seconds, self._release)
        if self._valid_until != float("-inf") and not self.is_valid:
            self._lapsed_until = self._clock.monotonic()
        self._valid_until = started_at + self._seconds * 0.8
        self.skew_seconds = (self._clock.epoch_ms() - database_ms) / 1000
