"""All or none, budgets included: what is refused, or left while it waits, was charged nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.errors import BudgetSpent, LimitsUnavailable, RateLimited
from deputize.core.limit_settings import LimitRule
from deputize.govern.limits import admission
from deputize.govern.limits.admission import Admission, Limits
from deputize.govern.limits.budgets import Budgets
from deputize.govern.limits.rules import Asked
from deputize.govern.limits.tally import Tally
from deputize.store.pool import Store
from deputize.store.shared.counters import Counters
from deputize.store.shared.in_process import InProcessCounters
from deputize.store.shared.redis import RedisCounters
from tests.unit.catalog.contracts import contract

pytestmark = pytest.mark.requirement("GOV-8")

ANA = Caller(tenant="acme", user="ana")
CONTRACT = contract(observability={"cost_per_call": 1.0})


@pytest.fixture
async def store(fresh_database: str) -> AsyncIterator[Store]:
    opened = await Store.open(fresh_database, read_connections=2)
    yield opened
    await opened.close()


def _rule(kind: str, limit: float, name: str, **more: Any) -> LimitRule:
    return LimitRule.model_validate({"name": name, "kind": kind, "limit": limit, "seconds": 86_400, **more})


def _asked(call_id: str = "c") -> Asked:
    return Asked(call_id=call_id, caller=ANA, contract=CONTRACT, session=None, canonical=b"{}")


class Told:
    """Limits, and what they told of themselves."""

    def __init__(self, store: Store, *rules: LimitRule, counters: Counters | None = None) -> None:
        self._store = store
        self.refused: list[str] = []
        self.uncounted: list[str] = []
        self.limits = Limits(
            rules,
            counters or InProcessCounters(Clock()),
            Budgets(store, Clock()),
            refused=self.refused.append,
            uncounted=self.uncounted.append,
        )

    async def admit(self) -> Admission:
        concerned = self.limits.concerning("acme", CONTRACT.full_name)
        assert concerned is not None
        return self.limits.admit_now(concerned, _asked()) or await self.limits.admit(concerned, _asked())

    async def spent(self) -> int:
        """Of all budgets together: what was leased and is not at hand any more."""
        async with self._store.writing() as connection:
            leased = await connection.fetchval("select sum(granted) from deputize.budgets")
        return int(leased) - self.left

    @property
    def left(self) -> int:
        return sum(lease.left for lease in self.limits._budgets._leases.values())


async def test_what_a_counter_refuses_no_budget_pays_for(store: Store) -> None:
    told = Told(store, _rule("budget", 10, "purse"), _rule("rate", 2, "slow"))
    await told.admit()
    await told.admit()
    for _ in range(20):
        with pytest.raises(RateLimited):
            await told.admit()
    assert (await told.spent(), told.refused) == (2_000_000, ["slow"] * 20)


async def test_what_one_budget_refuses_no_other_pays_for(store: Store) -> None:
    told = Told(store, _rule("budget", 10, "wide"), _rule("budget", 1, "narrow"), _rule("rate", 5, "slow"))
    await told.admit()
    for _ in range(10):
        with pytest.raises(BudgetSpent):
            await told.admit()
    assert (await told.spent(), told.refused) == (2_000_000, ["narrow"] * 10)


async def test_once_a_slice_is_leased_nobody_waits(store: Store) -> None:
    told = Told(store, _rule("budget", 100, "purse"), _rule("rate", 100, "slow"))
    concerned = told.limits.concerning("acme", CONTRACT.full_name)
    assert concerned is not None
    assert told.limits.admit_now(concerned, _asked()) is None
    await told.limits.admit(concerned, _asked())
    assert told.limits.admit_now(concerned, _asked()) is not None


async def test_whoever_leaves_while_counters_are_asked_paid_nothing(store: Store) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    counters = RedisCounters(f"redis://127.0.0.1:{port}/0", seconds=1, clock=Clock())
    told = Told(store, _rule("budget", 20, "purse"), _rule("rate", 5, "slow"), counters=counters)
    waiting = asyncio.create_task(told.admit())
    async with asyncio.timeout(90):
        while not counters._waiting and counters._flight is None:  # noqa: ASYNC110 -- seen only from outside
            await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert told.left == 1_000_000
    with pytest.raises(LimitsUnavailable) as refused:
        await told.admit()
    assert (refused.value.details["rule"], told.left) == ("slow", 1_000_000)
    await counters.close()
    server.close()


async def test_a_budget_that_cannot_be_leased_says_what_it_was_told_to(fresh_database: str) -> None:
    store = await Store.open(fresh_database, read_connections=1)
    await store.close()
    strict = Told(store, _rule("budget", 20, "purse"))
    with pytest.raises(LimitsUnavailable, match="purse"):
        await strict.admit()
    lenient = Told(store, _rule("budget", 20, "purse", when_lost="allow"))
    assert (await lenient.admit()).uncounted == ("limit purse was not counted: no slice of the budget could be leased",)
    assert lenient.uncounted == ["purse"]


async def test_a_replay_gives_everything_back(store: Store) -> None:
    told = Told(store, _rule("budget", 20, "purse"), _rule("rate", 1, "slow"), _rule("concurrency", 1, "one"))
    for _ in range(5):
        told.limits.end(await told.admit(), replayed=True)
    assert told.left == 1_000_000
    told.limits.end(await told.admit())
    with pytest.raises(RateLimited):
        await told.admit()


def test_what_is_known_of_tools_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_MOST_KNOWN", 100)
    limits = Limits(
        [_rule("rate", 1, "slow", tools="crm.*")],
        InProcessCounters(Clock()),
        Budgets(None, Clock()),  # type: ignore[arg-type]  # no budget is asked for
        refused=lambda _: None,
        uncounted=lambda _: None,
    )
    for number in range(1000):
        assert limits.concerning("acme", f"shop.tool{number}") is None
        assert limits.concerning("acme", f"crm.tool{number}") is not None
    assert len(limits._known) <= 100


def test_the_tally_forgets_whoever_was_added_to_longest_ago() -> None:
    tally = Tally()
    for number in range(Tally.MOST + 5):
        tally.add(ANA, "kept", 1)
        tally.add(ANA, str(number), 1)
    assert tally.of(ANA, "kept") == Tally.MOST + 5
    assert (tally.of(ANA, "0"), tally.of(ANA, str(Tally.MOST))) == (0, 1)
    assert len(tally._costs) == Tally.MOST
