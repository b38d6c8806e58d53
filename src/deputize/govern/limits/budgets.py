"""Budgets in PostgreSQL, leased in slices: spending is local, and no row is asked for each call.

A process takes a slice of what is left of a period (a twentieth of the limit, or what a call needs), spends it without
asking, and gives back what it did not spend: when it stops, when it was idle for a while, and when the period ends. A
process that dies loses its slice until the period ends, so less may be spent than allowed, and never more: only a call
that costs more than its contract said overdraws, and what it overdraws is charged to the period all the same.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

import asyncpg
import structlog

from deputize.core.clock import Clock
from deputize.core.frozen import frozen
from deputize.store.pool import Store
from deputize.store.queries import load
from deputize.store.shared.counters import CountersLost

_SQL = load("budgets")
_LOST = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)
_SLICES: Final = 20
_LEASE_SECONDS: Final = 2.0
# Somebody may have given something back; nobody asks more often than this whether they have.
_DRY_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 30.0
_TIDY_SECONDS: Final = 2.0
_FORGET_EVERY: Final = 3600.0
_MOST_LEASES: Final = 100_000
log = structlog.get_logger(__name__)


@frozen
class Budget:
    """What is spent from: one rule's allowance of one counter in each period. Amounts are millionths."""

    tenant: str
    rule: str
    key: str
    limit: int
    seconds: float

    @property
    def name(self) -> tuple[str, str, str]:
        return self.tenant, self.rule, self.key


class Lease:
    """A process's slice of one period."""

    __slots__ = ("budget", "closed", "dry_until", "ends", "left", "period", "used_at")

    def __init__(self, budget: Budget, period: int, ends: float, now: float) -> None:
        self.budget = budget
        self.period = period
        self.ends = ends
        self.used_at = now
        self.left = 0
        self.dry_until = 0.0
        self.closed = False


class Budgets:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._leases: dict[tuple[str, str, str], Lease] = {}
        self._leasing: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        self._owed: list[tuple[Lease, int]] = []
        self._forgotten: dict[tuple[str, str], float] = {}
        self._tidying: asyncio.Task[None] | None = None

    def spend_now(self, budget: Budget, amount: int) -> Lease | None:
        """The lease it was spent from, if one is at hand that covers it. A spent budget covers nothing, not even what
        costs nothing: what a call really costs is known only afterwards."""
        lease = self._leases.get(budget.name)
        if lease is None:
            return None
        now = self._clock.monotonic()
        if now >= lease.ends or lease.left < max(amount, 1):
            return None
        lease.left -= amount
        lease.used_at = now
        return lease

    async def spend(self, budget: Budget, amount: int) -> Lease | int:
        """The lease it was spent from; or the milliseconds until the budget begins anew."""
        while True:
            lease = self.spend_now(budget, amount)
            if lease is not None:
                return lease
            known, now = self._leases.get(budget.name), self._clock.monotonic()
            if known is not None and now < min(known.ends, known.dry_until):
                return max(int((known.ends - now) * 1000), 1)
            await self._leased(budget, amount)

    def correct(self, lease: Lease, amount: int) -> None:
        """A call spent so much more (or, below zero, less) than was taken for it."""
        if lease.closed:
            self._owed.append((lease, -amount))
        else:
            lease.left -= amount

    async def start(self) -> None:
        self._tidying = asyncio.create_task(self._keep_tidy(), name="budgets")

    @property
    def alive(self) -> bool:
        return self._tidying is not None and not self._tidying.done()

    async def stop(self) -> None:
        """Gives everything back; what cannot be is lost until its period ends."""
        if self._tidying is not None:
            self._tidying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._tidying
        for task in self._leasing.values():
            task.cancel()
        await asyncio.gather(*self._leasing.values(), return_exceptions=True)
        for lease in list(self._leases.values()):
            self._close(lease)
        with contextlib.suppress(*_LOST):
            await self._pay()

    async def tidy(self) -> None:
        """Gives back what was leased for periods that are over, and what nobody has used for a while."""
        now = self._clock.monotonic()
        for lease in list(self._leases.values()):
            if now >= lease.ends or now - lease.used_at > _IDLE_SECONDS:
                self._close(lease)
        await self._pay()

    async def _keep_tidy(self) -> None:
        while True:
            await asyncio.sleep(_TIDY_SECONDS)
            try:
                await self.tidy()
            except _LOST as error:
                log.warning("budgets_not_given_back", reason=type(error).__name__)

    def _close(self, lease: Lease) -> None:
        if self._leases.get(lease.budget.name) is lease:
            del self._leases[lease.budget.name]
        lease.closed = True
        if lease.left:
            self._owed.append((lease, lease.left))
            lease.left = 0

    async def _pay(self) -> None:
        owed, self._owed = self._owed, []
        if not owed:
            return
        try:
            async with asyncio.timeout(_LEASE_SECONDS), self._store.writing() as connection:
                await connection.execute(_SQL["give_back"], *_columns(owed))
        except _LOST:
            # An overdraft is never forgotten; what would be given back is, for it may have been given back already.
            self._owed += [(lease, amount) for lease, amount in owed if amount < 0]
            raise

    async def _leased(self, budget: Budget, amount: int) -> None:
        """Whoever needs the same slice waits for the same lease, and whoever leaves does not end it."""
        task = self._leasing.get(budget.name)
        if task is None:
            task = self._leasing[budget.name] = asyncio.create_task(self._lease(budget, amount))
            task.add_done_callback(lambda _: self._leasing.pop(budget.name, None))
        try:
            await asyncio.shield(task)
        except _LOST as error:
            raise CountersLost("no slice of the budget could be leased") from error

    async def _lease(self, budget: Budget, amount: int) -> None:
        began = self._clock.monotonic()
        known = self._leases.get(budget.name)
        if known is not None and began >= known.ends:
            self._close(known)
            known = None
        short = max(amount, 1) - (known.left if known else 0)
        wanted = max(budget.limit // _SLICES, short)
        granted, period, seconds_left = await self._ask(budget, wanted)
        if known is None or known.closed or known.period != period:
            if known is not None:
                self._close(known)
            self._make_room()
            known = self._leases[budget.name] = Lease(budget, period, began + seconds_left, began)
        known.left += granted
        known.used_at = began
        known.dry_until = self._clock.monotonic() + _DRY_SECONDS if granted < wanted else 0.0

    async def _ask(self, budget: Budget, wanted: int) -> tuple[int, int, float]:
        asked = (*budget.name, budget.seconds)
        async with asyncio.timeout(_LEASE_SECONDS), self._store.writing() as connection:
            row = await connection.fetchrow(_SQL["lease_slice"], *asked, wanted, budget.limit)
            if row is None:
                await connection.execute(_SQL["begin_period"], *asked)
                row = await connection.fetchrow(_SQL["lease_slice"], *asked, wanted, budget.limit)
                now, which = self._clock.monotonic(), (budget.tenant, budget.rule)
                if now - self._forgotten.get(which, -_FORGET_EVERY) >= _FORGET_EVERY:
                    self._forgotten[which] = now
                    await connection.execute(_SQL["forget_periods"], *which, int(2 * budget.seconds) + 86_400)
        assert row is not None
        return row["granted"], row["period"], row["seconds_left"]

    def _make_room(self) -> None:
        while len(self._leases) >= _MOST_LEASES:
            self._close(next(iter(self._leases.values())))


def _columns(owed: Sequence[tuple[Lease, int]]) -> tuple[list[str], list[str], list[str], list[int], list[int]]:
    """One row per period: an update changes no row twice."""
    sums: dict[tuple[str, str, str, int], int] = {}
    for lease, amount in owed:
        name = (*lease.budget.name, lease.period)
        sums[name] = sums.get(name, 0) + amount
    tenants, rules, keys, periods = zip(*sums, strict=True)
    return list(tenants), list(rules), list(keys), list(periods), list(sums.values())
