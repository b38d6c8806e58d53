"""Spend budgets that live in PostgreSQL through local leases, without a query for each call.

A process leases a slice of what remains in a period (a twentieth of the limit, or what a call needs), spends it locally
and returns the rest: when it stops, after idle time, and at the end of the period. A process that dies loses its slice
until the period ends, so less may be spent than allowed, but not more. Only a call that costs more than its contract
declares overdraws a budget, and the overdraft is charged to the period.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

import asyncpg
import structlog

from deputize.core.bounded_dict import BoundedDict
from deputize.core.clock import Clock
from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.core.value_types import frozen
from deputize.store.counters.port import CountersUnavailable
from deputize.store.pool import Store
from deputize.store.queries import load_statements

_SQL = load_statements("budgets")
_DATABASE_ERRORS = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)
_SLICES_PER_LIMIT: Final = 20
_LEASE_SECONDS: Final = 2.0
# An exhausted budget is queried again after this long, because another process may have returned a slice.
_EXHAUSTED_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 30.0
_TIDY_SECONDS: Final = 2.0
_PRUNE_SECONDS: Final = 3600.0
_MAX_LEASES: Final = 100_000
log = structlog.get_logger(__name__)


@frozen
class Budget:
    """One rule's budget for one counter in each period. Amounts are millionths."""

    tenant: str
    rule: str
    key: str
    limit: int
    seconds: float

    @property
    def name(self) -> tuple[str, str, str]:
        return self.tenant, self.rule, self.key


class BudgetLease:
    """This process's slice of a budget period."""

    __slots__ = ("budget", "ends", "exhausted_until", "is_closed", "left", "period", "used_at")

    def __init__(self, budget: Budget, period: int, ends: float, now: float) -> None:
        self.budget = budget
        self.period = period
        self.ends = ends
        self.used_at = now
        self.left = 0
        self.exhausted_until = 0.0
        self.is_closed = False


class Budgets(PeriodicTask):
    """Leases slices of the budgets that gateways share, and returns what is not used."""

    task_name = "budgets"
    tolerated_errors = _DATABASE_ERRORS
    runs_at_start = False

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__()
        self._store = store
        self._clock = clock
        self._leases: dict[tuple[str, str, str], BudgetLease] = {}
        self._lease_tasks: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        self._adjustments: list[tuple[BudgetLease, int]] = []
        self._pruned_at: BoundedDict[tuple[str, str], float] = BoundedDict(_MAX_LEASES)

    def spend_now(self, budget: Budget, amount: int) -> BudgetLease | None:
        """Spend from a local lease and return it, or None if no lease covers the amount.

        An exhausted budget refuses even free calls, because the real cost is known only afterwards.
        """
        lease = self._leases.get(budget.name)
        if lease is None:
            return None
        now = self._clock.monotonic()
        if now >= lease.ends or lease.left < max(amount, 1):
            return None
        lease.left -= amount
        lease.used_at = now
        return lease

    async def spend(self, budget: Budget, amount: int) -> BudgetLease | int:
        """Spend from a budget and return the lease, or the milliseconds until its next period."""
        while True:
            lease = self.spend_now(budget, amount)
            if lease is not None:
                return lease
            current, now = self._leases.get(budget.name), self._clock.monotonic()
            if current is not None and now < min(current.ends, current.exhausted_until):
                return max(int((current.ends - now) * 1000), 1)
            await self._await_lease(budget, amount)

    def adjust_lease(self, lease: BudgetLease, amount: int) -> None:
        """Charge a lease for the difference between a call's real and estimated cost; negative amounts refund."""
        if lease.is_closed:
            self._adjustments.append((lease, -amount))
        else:
            lease.left -= amount

    @property
    def interval_seconds(self) -> float:
        return _TIDY_SECONDS

    async def run_step(self) -> float:
        await self.close_idle_leases()
        return self.interval_seconds

    def report_error(self, error: Exception) -> None:
        log.warning("budgets_not_given_back", reason=type(error).__name__)

    async def stop(self) -> None:
        """Return every lease to its budget; what cannot be returned is lost until its period ends."""
        await super().stop()
        for task in self._lease_tasks.values():
            task.cancel()
        await asyncio.gather(*self._lease_tasks.values(), return_exceptions=True)
        for lease in list(self._leases.values()):
            self._close(lease)
        with contextlib.suppress(*_DATABASE_ERRORS):
            await self._flush_adjustments()

    async def close_idle_leases(self) -> None:
        """Return the leases of ended periods and those that were idle for a while."""
        now = self._clock.monotonic()
        for lease in list(self._leases.values()):
            if now >= lease.ends or now - lease.used_at > _IDLE_SECONDS:
                self._close(lease)
        await self._flush_adjustments()

    def _close(self, lease: BudgetLease) -> None:
        if self._leases.get(lease.budget.name) is lease:
            del self._leases[lease.budget.name]
        lease.is_closed = True
        if lease.left:
            self._adjustments.append((lease, lease.left))
            lease.left = 0

    async def _flush_adjustments(self) -> None:
        adjustments, self._adjustments = self._adjustments, []
        if not adjustments:
            return
        try:
            async with asyncio.timeout(_LEASE_SECONDS), self._store.write_transaction() as connection:
                await connection.execute(_SQL["return_unspent_budget"], *_sum_by_period(adjustments))
        except _DATABASE_ERRORS:
            # Keep overdrafts. Drop refunds, because the transaction may have committed and a refund must not count
            # twice.
            self._adjustments += [(lease, amount) for lease, amount in adjustments if amount < 0]
            raise

    async def _await_lease(self, budget: Budget, amount: int) -> None:
        """Wait for a lease that all callers of the same budget share; a cancelled caller does not cancel it."""
        task = self._lease_tasks.get(budget.name)
        if task is None:
            task = self._lease_tasks[budget.name] = asyncio.create_task(self._lease_slice(budget, amount))
            task.add_done_callback(lambda _: self._lease_tasks.pop(budget.name, None))
        try:
            await asyncio.shield(task)
        except _DATABASE_ERRORS as error:
            raise CountersUnavailable("the database did not grant a budget lease") from error

    async def _lease_slice(self, budget: Budget, amount: int) -> None:
        started_at = self._clock.monotonic()
        lease = self._leases.get(budget.name)
        if lease is not None and started_at >= lease.ends:
            self._close(lease)
            lease = None
        shortfall = max(amount, 1) - (lease.left if lease else 0)
        slice_amount = max(budget.limit // _SLICES_PER_LIMIT, shortfall)
        granted_amount, period, seconds_left = await self._request_slice(budget, slice_amount)
        if lease is None or lease.is_closed or lease.period != period:
            if lease is not None:
                self._close(lease)
            self._evict_leases()
            lease = self._leases[budget.name] = BudgetLease(budget, period, started_at + seconds_left, started_at)
        lease.left += granted_amount
        lease.used_at = started_at
        lease.exhausted_until = self._clock.monotonic() + _EXHAUSTED_SECONDS if granted_amount < slice_amount else 0.0

    async def _request_slice(self, budget: Budget, amount: int) -> tuple[int, int, float]:
        period_key = (*budget.name, budget.seconds)
        async with asyncio.timeout(_LEASE_SECONDS), self._store.write_transaction() as connection:
            row = await connection.fetchrow(_SQL["lease_slice"], *period_key, amount, budget.limit)
            if row is None:
                await connection.execute(_SQL["insert_period"], *period_key)
                row = await connection.fetchrow(_SQL["lease_slice"], *period_key, amount, budget.limit)
                now, rule_key = self._clock.monotonic(), (budget.tenant, budget.rule)
                if now - self._pruned_at.get(rule_key, -_PRUNE_SECONDS) >= _PRUNE_SECONDS:
                    self._pruned_at.put(rule_key, now)
                    await connection.execute(_SQL["delete_old_periods"], *rule_key, int(2 * budget.seconds) + 86_400)
        assert row is not None
        return row["granted"], row["period"], row["seconds_left"]

    def _evict_leases(self) -> None:
        while len(self._leases) >= _MAX_LEASES:
            self._close(next(iter(self._leases.values())))


def _sum_by_period(
    adjustments: Sequence[tuple[BudgetLease, int]],
) -> tuple[list[str], list[str], list[str], list[int], list[int]]:
    """Sum adjustments by period, because one UPDATE changes a row only once."""
    sums: dict[tuple[str, str, str, int], int] = {}
    for lease, amount in adjustments:
        name = (*lease.budget.name, lease.period)
        sums[name] = sums.get(name, 0) + amount
    tenants, rules, keys, periods = zip(*sums, strict=True)
    return list(tenants), list(rules), list(keys), list(periods), list(sums.values())
