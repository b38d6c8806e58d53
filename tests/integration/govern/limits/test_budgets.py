"""Budgets on a real PostgreSQL: leased in slices, never overspent together, and given back."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest

from deputize.core.clock import Clock
from deputize.govern.limits.budgets import Budget, Budgets, Lease
from deputize.store.pool import Store
from deputize.store.shared.counters import CountersLost

pytestmark = pytest.mark.requirement("GOV-8")

_numbers = count()
# No test lasts until its period ends.
LONG = 31 * 86_400.0


@pytest.fixture
async def store(fresh_database: str) -> AsyncIterator[Store]:
    opened = await Store.open(fresh_database, read_connections=2)
    yield opened
    await opened.close()


def _budget(limit: int = 1000, *, seconds: float = LONG, key: str = "k", tenant: str = "acme") -> Budget:
    return Budget(tenant=tenant, rule="daily", key=key, limit=limit, seconds=seconds)


class Replica(Budgets):
    """Counts how often it asked PostgreSQL."""

    asked = 0

    async def _ask(self, budget: Budget, wanted: int) -> tuple[int, int, float]:
        self.asked += 1
        return await super()._ask(budget, wanted)


async def _granted(store: Store, tenant: str = "acme") -> int:
    async with store.writing() as connection:
        found = await connection.fetchval("select sum(granted) from deputize.budgets where tenant = $1", tenant)
    return int(found or 0)


async def _spends(budgets: Budgets, budget: Budget, amount: int) -> bool:
    return isinstance(await budgets.spend(budget, amount), Lease)


async def test_spending_asks_once_for_each_slice(store: Store) -> None:
    budgets = Replica(store, Clock())
    assert [await _spends(budgets, _budget(), 1) for _ in range(101)] == [True] * 101
    assert (budgets.asked, await _granted(store)) == (3, 150)


async def test_a_lease_at_hand_is_spent_without_waiting(store: Store) -> None:
    budgets = Budgets(store, Clock())
    assert budgets.spend_now(_budget(), 1) is None
    await budgets.spend(_budget(), 1)
    assert isinstance(budgets.spend_now(_budget(), 49), Lease)
    assert budgets.spend_now(_budget(), 1) is None


async def test_whoever_needs_the_same_slice_shares_one_lease(store: Store) -> None:
    budgets = Replica(store, Clock())
    assert all(await asyncio.gather(*(_spends(budgets, _budget(), 1) for _ in range(50))))
    assert budgets.asked == 1


async def test_replicas_together_spend_no_more_than_the_limit(store: Store) -> None:
    replicas = [Replica(store, Clock()) for _ in range(4)]

    async def spend_all(replica: Budgets) -> int:
        return sum([await _spends(replica, _budget(), 7) for _ in range(60)])

    calls = sum(await asyncio.gather(*(spend_all(replica) for replica in replicas)))
    assert 7 * calls <= 1000
    # Each may be left with the end of a slice that no call fits into.
    assert 7 * calls >= 1000 - 4 * 7
    assert await _granted(store) == 1000


async def test_a_spent_budget_is_not_asked_for_again_and_again(store: Store) -> None:
    now = 100.0
    budgets = Replica(store, Clock(monotonic=lambda: now))
    assert await _spends(budgets, _budget(10), 10)
    asked = budgets.asked
    told = [await budgets.spend(_budget(10), 1) for _ in range(100)]
    assert budgets.asked == asked + 1
    assert all(isinstance(each, int) and 0 < each <= LONG * 1000 for each in told)
    now += 1.5
    assert not await _spends(budgets, _budget(10), 1)
    assert budgets.asked == asked + 2


async def test_a_spent_budget_covers_nothing_even_if_it_costs_nothing(store: Store) -> None:
    budgets = Budgets(store, Clock())
    assert await _spends(budgets, _budget(10), 0)
    assert await _spends(budgets, _budget(10), 10)
    assert not await _spends(budgets, _budget(10), 0)


async def test_a_call_that_costs_more_than_a_slice_is_leased_for_whole(store: Store) -> None:
    budgets = Budgets(store, Clock())
    assert await _spends(budgets, _budget(), 600)
    assert not await _spends(budgets, _budget(), 600)
    assert await _spends(budgets, _budget(), 400)


async def test_what_was_not_spent_is_given_back_at_the_end(store: Store) -> None:
    one, other = Budgets(store, Clock()), Budgets(store, Clock())
    assert await _spends(one, _budget(), 20)
    assert await _spends(other, _budget(), 970 - 20)
    assert not await _spends(other, _budget(), 30)
    await one.stop()
    assert await _granted(store) == 970
    await asyncio.sleep(1.1)
    assert await _spends(other, _budget(), 30)
    await other.stop()
    assert await _granted(store) == 1000


async def test_a_crash_costs_at_most_a_slice(store: Store) -> None:
    await _spends(Budgets(store, Clock()), _budget(), 1)
    survivor = Budgets(store, Clock())
    spent = 0
    while await _spends(survivor, _budget(), 1):
        spent += 1
    assert spent == 950


async def test_an_idle_slice_is_given_back(store: Store) -> None:
    now = 100.0
    budgets = Budgets(store, Clock(monotonic=lambda: now))
    await budgets.spend(_budget(), 1)
    await budgets.tidy()
    assert await _granted(store) == 50
    now += 31
    await budgets.tidy()
    assert await _granted(store) == 1


async def test_a_correction_counts_whether_or_not_the_lease_is_still_held(store: Store) -> None:
    now = 100.0
    budgets = Budgets(store, Clock(monotonic=lambda: now))
    lease = await budgets.spend(_budget(), 10)
    assert isinstance(lease, Lease)
    budgets.correct(lease, 30)
    budgets.correct(lease, -5)
    assert lease.left == 50 - 35
    now += 31
    await budgets.tidy()
    assert await _granted(store) == 35
    budgets.correct(lease, 7)
    await budgets.tidy()
    assert await _granted(store) == 42


async def test_an_overdraft_is_paid_before_anything_else(store: Store) -> None:
    budgets = Budgets(store, Clock())
    lease = await budgets.spend(_budget(100), 1)
    assert isinstance(lease, Lease)
    budgets.correct(lease, 89)
    assert [await _spends(budgets, _budget(100), 1) for _ in range(11)] == [True] * 10 + [False]
    budgets.correct(lease, 50)
    assert not await _spends(budgets, _budget(100), 0)
    await budgets.stop()
    assert await _granted(store) == 150


async def _spends_later(budgets: Budgets, budget: Budget, amount: int) -> bool:
    await asyncio.sleep(0.2)
    return await _spends(budgets, budget, amount)


async def test_a_period_that_ends_begins_anew(store: Store) -> None:
    budgets = Replica(store, Clock())
    budget = _budget(10, seconds=1.0)
    assert await _spends(budgets, budget, 10)
    wait = await budgets.spend(budget, 1)
    assert isinstance(wait, int)
    assert wait <= 1000
    await asyncio.sleep(wait / 1000 + 0.02)
    # Its first look may come a moment before the database's clock has passed the end.
    assert await _spends(budgets, budget, 10) or await _spends_later(budgets, budget, 10)


async def test_tenants_and_keys_have_budgets_of_their_own(store: Store) -> None:
    budgets = Budgets(store, Clock())
    for budget in (_budget(10), _budget(10, key="other"), _budget(10, tenant="other")):
        assert await _spends(budgets, budget, 10)
        assert not await _spends(budgets, budget, 1)
    assert (await _granted(store), await _granted(store, "other")) == (20, 10)


async def test_periods_long_over_are_forgotten(store: Store) -> None:
    async with store.writing() as connection:
        for period, rule in ((1000, "daily"), (2000, "daily"), (1000, "another")):
            await connection.execute("insert into deputize.budgets values ('acme', $2, 'old', $1, 5)", period, rule)
    await Budgets(store, Clock()).spend(_budget(100, seconds=60), 5)
    async with store.writing() as connection:
        left = await connection.fetch("select rule, granted from deputize.budgets order by 1")
    assert [tuple(row) for row in left] == [("another", 5), ("daily", 5)]


async def test_whoever_gives_up_waiting_does_not_end_the_lease(store: Store) -> None:
    budgets = Budgets(store, Clock())
    leaving, staying = (asyncio.create_task(budgets.spend(_budget(), 1)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert isinstance(await staying, Lease)
    assert leaving.cancelled()


async def test_a_database_that_is_away_is_said_to_be(fresh_database: str) -> None:
    store = await Store.open(fresh_database, read_connections=1)
    await store.close()
    with pytest.raises(CountersLost):
        await Budgets(store, Clock()).spend(_budget(), 1)
