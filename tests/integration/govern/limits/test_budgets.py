"""Budgets on a real PostgreSQL: leased in slices, never overspent by all processes together, and returned."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest

from deputize.core.clock import Clock
from deputize.govern.limits.budgets import Budget, BudgetLease, Budgets
from deputize.store.counters.port import CountersUnavailable
from deputize.store.pool import Store

pytestmark = pytest.mark.requirement("GOV-8")

_numbers = count()
# Longer than any test runs.
LONG = 31 * 86_400.0


@pytest.fixture
async def store(fresh_database: str) -> AsyncIterator[Store]:
    opened = await Store.open(fresh_database, read_connections=2)
    yield opened
    await opened.close()


def _make_budget(limit: int = 1000, *, seconds: float = LONG, key: str = "k", tenant: str = "acme") -> Budget:
    return Budget(tenant=tenant, rule="daily", key=key, limit=limit, seconds=seconds)


class Replica(Budgets):
    """Counts its queries to PostgreSQL."""

    request_count = 0

    async def _request_slice(self, budget: Budget, amount: int) -> tuple[int, int, float]:
        self.request_count += 1
        return await super()._request_slice(budget, amount)


async def _fetch_granted(store: Store, tenant: str = "acme") -> int:
    async with store.write_transaction() as connection:
        found = await connection.fetchval("select sum(granted) from deputize.budgets where tenant = $1", tenant)
    return int(found or 0)


async def _can_spend(budgets: Budgets, budget: Budget, amount: int) -> bool:
    return isinstance(await budgets.spend(budget, amount), BudgetLease)


async def test_spending_queries_the_database_once_per_slice(store: Store) -> None:
    budgets = Replica(store, Clock())
    assert [await _can_spend(budgets, _make_budget(), 1) for _ in range(101)] == [True] * 101
    assert (budgets.request_count, await _fetch_granted(store)) == (3, 150)


async def test_a_local_lease_is_spent_without_waiting(store: Store) -> None:
    budgets = Budgets(store, Clock())
    assert budgets.spend_now(_make_budget(), 1) is None
    await budgets.spend(_make_budget(), 1)
    assert isinstance(budgets.spend_now(_make_budget(), 49), BudgetLease)
    assert budgets.spend_now(_make_budget(), 1) is None


async def test_concurrent_callers_share_one_lease(store: Store) -> None:
    budgets = Replica(store, Clock())
    assert all(await asyncio.gather(*(_can_spend(budgets, _make_budget(), 1) for _ in range(50))))
    assert budgets.request_count == 1


async def test_replicas_together_spend_no_more_than_the_limit(store: Store) -> None:
    replicas = [Replica(store, Clock()) for _ in range(4)]

    # Each would spend everything alone: one that stopped before would keep what it still has.
    async def spend_all(replica: Budgets) -> int:
        return sum([await _can_spend(replica, _make_budget(), 7) for _ in range(150)])

    calls = sum(await asyncio.gather(*(spend_all(replica) for replica in replicas)))
    assert 7 * calls <= 1000
    # Each process may keep the rest of a slice that is too small for a call.
    assert 7 * calls >= 1000 - 4 * 7
    assert await _fetch_granted(store) == 1000


async def test_an_exhausted_budget_is_queried_only_once_a_second(store: Store) -> None:
    now = 100.0
    budgets = Replica(store, Clock(monotonic=lambda: now))
    assert await _can_spend(budgets, _make_budget(10), 10)
    asked = budgets.request_count
    told = [await budgets.spend(_make_budget(10), 1) for _ in range(100)]
    assert budgets.request_count == asked + 1
    assert all(isinstance(each, int) and 0 < each <= LONG * 1000 for each in told)
    now += 1.5
    assert not await _can_spend(budgets, _make_budget(10), 1)
    assert budgets.request_count == asked + 2


async def test_an_exhausted_budget_refuses_even_free_calls(store: Store) -> None:
    budgets = Budgets(store, Clock())
    assert await _can_spend(budgets, _make_budget(10), 0)
    assert await _can_spend(budgets, _make_budget(10), 10)
    assert not await _can_spend(budgets, _make_budget(10), 0)


async def test_a_call_that_costs_more_than_a_slice_leases_its_full_cost(store: Store) -> None:
    budgets = Budgets(store, Clock())
    assert await _can_spend(budgets, _make_budget(), 600)
    assert not await _can_spend(budgets, _make_budget(), 600)
    assert await _can_spend(budgets, _make_budget(), 400)


async def test_unspent_budget_is_returned_on_stop(store: Store) -> None:
    now = 100.0
    one, other = Budgets(store, Clock()), Budgets(store, Clock(monotonic=lambda: now))
    assert await _can_spend(one, _make_budget(), 20)
    assert await _can_spend(other, _make_budget(), 970 - 20)
    assert not await _can_spend(other, _make_budget(), 30)
    await one.stop()
    assert await _fetch_granted(store) == 970
    now += 1.1
    assert await _can_spend(other, _make_budget(), 30)
    await other.stop()
    assert await _fetch_granted(store) == 1000


async def test_a_crash_loses_at_most_one_slice(store: Store) -> None:
    await _can_spend(Budgets(store, Clock()), _make_budget(), 1)
    survivor = Budgets(store, Clock())
    spent = 0
    while await _can_spend(survivor, _make_budget(), 1):
        spent += 1
    assert spent == 950


async def test_an_idle_slice_is_returned(store: Store) -> None:
    now = 100.0
    budgets = Budgets(store, Clock(monotonic=lambda: now))
    await budgets.spend(_make_budget(), 1)
    await budgets.close_idle_leases()
    assert await _fetch_granted(store) == 50
    now += 31
    await budgets.close_idle_leases()
    assert await _fetch_granted(store) == 1


async def test_a_correction_counts_with_or_without_an_open_lease(store: Store) -> None:
    now = 100.0
    budgets = Budgets(store, Clock(monotonic=lambda: now))
    lease = await budgets.spend(_make_budget(), 10)
    assert isinstance(lease, BudgetLease)
    budgets.adjust_lease(lease, 30)
    budgets.adjust_lease(lease, -5)
    assert lease.left == 50 - 35
    now += 31
    await budgets.close_idle_leases()
    assert await _fetch_granted(store) == 35
    budgets.adjust_lease(lease, 7)
    await budgets.close_idle_leases()
    assert await _fetch_granted(store) == 42


async def test_an_overdraft_is_charged_before_further_spending(store: Store) -> None:
    budgets = Budgets(store, Clock())
    lease = await budgets.spend(_make_budget(100), 1)
    assert isinstance(lease, BudgetLease)
    budgets.adjust_lease(lease, 89)
    assert [await _can_spend(budgets, _make_budget(100), 1) for _ in range(11)] == [True] * 10 + [False]
    budgets.adjust_lease(lease, 50)
    assert not await _can_spend(budgets, _make_budget(100), 0)
    await budgets.stop()
    assert await _fetch_granted(store) == 150


async def _can_spend_later(budgets: Budgets, budget: Budget, amount: int) -> bool:
    await asyncio.sleep(0.2)
    return await _can_spend(budgets, budget, amount)


async def test_a_new_period_starts_with_a_full_budget(store: Store) -> None:
    budgets = Replica(store, Clock())
    budget = _make_budget(10, seconds=3.0)
    wait: object = None
    async with asyncio.timeout(60):
        # Again, if the period ends between the two.
        while not isinstance(wait, int):
            if await _can_spend(budgets, budget, 10):
                wait = await budgets.spend(budget, 1)
    assert wait <= 3000
    await asyncio.sleep(wait / 1000 + 0.02)
    # The first query may come just before the database's clock passes the end of the period.
    assert await _can_spend(budgets, budget, 10) or await _can_spend_later(budgets, budget, 10)


async def test_tenants_and_keys_have_separate_budgets(store: Store) -> None:
    budgets = Budgets(store, Clock())
    for budget in (_make_budget(10), _make_budget(10, key="other"), _make_budget(10, tenant="other")):
        assert await _can_spend(budgets, budget, 10)
        assert not await _can_spend(budgets, budget, 1)
    assert (await _fetch_granted(store), await _fetch_granted(store, "other")) == (20, 10)


async def test_old_periods_are_deleted(store: Store) -> None:
    async with store.write_transaction() as connection:
        for period, rule in ((1000, "daily"), (2000, "daily"), (1000, "another")):
            await connection.execute("insert into deputize.budgets values ('acme', $2, 'old', $1, 5)", period, rule)
    await Budgets(store, Clock()).spend(_make_budget(100, seconds=60), 5)
    async with store.write_transaction() as connection:
        left = await connection.fetch("select rule, granted from deputize.budgets order by 1")
    assert [tuple(row) for row in left] == [("another", 5), ("daily", 5)]


async def test_a_cancelled_caller_does_not_cancel_the_lease(store: Store) -> None:
    budgets = Budgets(store, Clock())
    leaving, staying = (asyncio.create_task(budgets.spend(_make_budget(), 1)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert isinstance(await staying, BudgetLease)
    assert leaving.cancelled()


async def test_an_unavailable_database_is_reported(fresh_database: str) -> None:
    store = await Store.open(fresh_database, read_connections=1)
    await store.close()
    with pytest.raises(CountersUnavailable):
        await Budgets(store, Clock()).spend(_make_budget(), 1)
