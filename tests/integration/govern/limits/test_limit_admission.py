"""Limits charge all rules or none, budgets included: a refused or cancelled call costs nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.errors import BudgetExhausted, LimitsUnavailable, RateLimited
from deputize.core.settings.limits import LimitRule
from deputize.govern.limits import limit_admission
from deputize.govern.limits.budgets import Budgets
from deputize.govern.limits.limit_admission import Admission, LimitEnforcer
from deputize.govern.limits.rules import MeteredCall
from deputize.store.counters.in_process import InProcessCounters
from deputize.store.counters.port import Counters
from deputize.store.counters.redis import RedisCounters
from deputize.store.pool import Store
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("GOV-8")

ANA = Caller(tenant="acme", user="ana")
CONTRACT = make_contract(observability={"cost_per_call": 1.0})


@pytest.fixture
async def store(fresh_database: str) -> AsyncIterator[Store]:
    opened = await Store.open(fresh_database, read_connections=2)
    yield opened
    await opened.close()


def _make_rule(kind: str, limit: float, name: str, **more: Any) -> LimitRule:
    return LimitRule.model_validate({"name": name, "kind": kind, "limit": limit, "seconds": 86_400, **more})


def _make_request(call_id: str = "c") -> MeteredCall:
    return MeteredCall(call_id=call_id, caller=ANA, contract=CONTRACT, session=None, canonical_arguments=b"{}")


class LimitsRecorder:
    """Limits, with the refusals and warnings they reported."""

    def __init__(self, store: Store, *rules: LimitRule, counters: Counters | None = None) -> None:
        self._store = store
        self.refusals: list[str] = []
        self.uncounted_rules: list[str] = []
        self.limits = LimitEnforcer(
            rules,
            counters or InProcessCounters(Clock()),
            Budgets(store, Clock()),
            clock=Clock(),
            on_refusal=self.refusals.append,
            on_uncounted=self.uncounted_rules.append,
        )

    async def admit(self) -> Admission:
        concerned = self.limits.find_applicable("acme", CONTRACT.full_name)
        assert concerned is not None
        return self.limits.admit_now(concerned, _make_request()) or await self.limits.admit(concerned, _make_request())

    async def fetch_spent(self) -> int:
        """Sum what was leased from all budgets and is already spent."""
        async with self._store.write_transaction() as connection:
            leased = await connection.fetchval("select sum(granted) from deputize.budgets")
        return int(leased) - self.slots_left

    @property
    def slots_left(self) -> int:
        return sum(lease.left for lease in self.limits._budgets._leases.values())


async def test_no_budget_is_charged_when_a_counter_refuses(store: Store) -> None:
    told = LimitsRecorder(store, _make_rule("budget", 10, "purse"), _make_rule("rate", 2, "slow"))
    await told.admit()
    await told.admit()
    for _ in range(20):
        with pytest.raises(RateLimited):
            await told.admit()
    assert (await told.fetch_spent(), told.refusals) == (2_000_000, ["slow"] * 20)


async def test_no_budget_is_charged_when_another_refuses(store: Store) -> None:
    told = LimitsRecorder(
        store, _make_rule("budget", 10, "wide"), _make_rule("budget", 1, "narrow"), _make_rule("rate", 5, "slow")
    )
    await told.admit()
    for _ in range(10):
        with pytest.raises(BudgetExhausted):
            await told.admit()
    assert (await told.fetch_spent(), told.refusals) == (2_000_000, ["narrow"] * 10)


async def test_calls_do_not_wait_once_a_slice_is_leased(store: Store) -> None:
    told = LimitsRecorder(store, _make_rule("budget", 100, "purse"), _make_rule("rate", 100, "slow"))
    concerned = told.limits.find_applicable("acme", CONTRACT.full_name)
    assert concerned is not None
    assert told.limits.admit_now(concerned, _make_request()) is None
    await told.limits.admit(concerned, _make_request())
    assert told.limits.admit_now(concerned, _make_request()) is not None


async def test_a_caller_cancelled_during_the_counter_check_is_refunded(store: Store) -> None:
    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    counters = RedisCounters(f"redis://127.0.0.1:{port}/0", seconds=3, clock=Clock())
    told = LimitsRecorder(store, _make_rule("budget", 20, "purse"), _make_rule("rate", 5, "slow"), counters=counters)
    waiting = asyncio.create_task(told.admit())
    async with asyncio.timeout(90):
        while not counters._queue and counters._flush_task is None:  # noqa: ASYNC110 -- seen only from outside
            await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert told.slots_left == 1_000_000
    with pytest.raises(LimitsUnavailable) as refused:
        await told.admit()
    assert (refused.value.details["rule"], told.slots_left) == ("slow", 1_000_000)
    await counters.close()
    server.close()


async def test_an_unavailable_budget_follows_its_configured_fallback(fresh_database: str) -> None:
    store = await Store.open(fresh_database, read_connections=1)
    await store.close()
    strict = LimitsRecorder(store, _make_rule("budget", 20, "purse"))
    with pytest.raises(LimitsUnavailable, match="purse"):
        await strict.admit()
    lenient = LimitsRecorder(store, _make_rule("budget", 20, "purse", when_lost="allow"))
    assert (await lenient.admit()).warnings == (
        "limit purse was not counted: the database did not grant a budget lease",
    )
    assert lenient.uncounted_rules == ["purse"]


async def test_a_replay_is_refunded_in_full(store: Store) -> None:
    told = LimitsRecorder(
        store, _make_rule("budget", 20, "purse"), _make_rule("rate", 1, "slow"), _make_rule("concurrency", 1, "one")
    )
    for _ in range(5):
        told.limits.finish_call(await told.admit(), is_replay=True)
    assert told.slots_left == 1_000_000
    told.limits.finish_call(await told.admit())
    with pytest.raises(RateLimited):
        await told.admit()


def test_the_cache_of_applicable_limits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_admission, "_MAX_CACHED_TOOLS", 100)
    limits = LimitEnforcer(
        [_make_rule("rate", 1, "slow", tools="crm.*")],
        InProcessCounters(Clock()),
        Budgets(None, Clock()),  # type: ignore[arg-type]  # no budget is asked for
        clock=Clock(),
        on_refusal=lambda _: None,
        on_uncounted=lambda _: None,
    )
    for number in range(1000):
        assert limits.find_applicable("acme", f"shop.tool{number}") is None
        assert limits.find_applicable("acme", f"crm.tool{number}") is not None
    assert len(limits._applicable) <= 100
