"""The limits on approval requests, token exchanges and backtests that every gateway has."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NoReturn

import pytest

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.errors import ConcurrencyLimitReached, RateLimited, TokenMalformed
from deputize.core.settings import LimitSettings
from deputize.govern.limits.request_limits import (
    APPROVAL_REQUESTS,
    BACKTESTS,
    FAILED_EXCHANGES,
    MAX_BACKTESTS,
    TOKEN_EXCHANGES,
    RequestLimits,
)
from deputize.store.counters.in_process import InProcessCounters
from deputize.store.counters.port import CounterRequest, Counters, CountersUnavailable, CounterUpdate

pytestmark = pytest.mark.requirement("GOV-8")
ANA = Caller(tenant="acme", user="ana", issuer="https://login.example.com")
SETTINGS = LimitSettings(
    approval_requests_per_hour=2, token_exchanges_per_minute=2, failed_exchanges_per_minute=2, backtests_at_once=1
)


class _LostCounters:
    """Counters whose Redis does not answer."""

    is_shared = True

    def take(self, requests: Sequence[CounterRequest]) -> NoReturn:
        raise CountersUnavailable("Redis does not answer")

    def apply_updates(self, updates: Sequence[CounterUpdate]) -> NoReturn:
        raise CountersUnavailable("Redis does not answer")

    async def close(self) -> None: ...


class _Time:
    def __init__(self) -> None:
        self.seconds = 1000.0
        self.clock = Clock(monotonic=lambda: self.seconds)


def _make_limits(time: _Time, refusals: list[str], counters: Counters | None = None) -> RequestLimits:
    return RequestLimits(SETTINGS, counters or InProcessCounters(time.clock), time.clock, on_refusal=refusals.append)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_user_and_their_agents_share_one_allowance(is_lost: bool) -> None:
    time, refusals = _Time(), list[str]()
    limits = _make_limits(time, refusals, _LostCounters() if is_lost else None)
    for count, name in ((limits.count_approval_request, APPROVAL_REQUESTS), (limits.count_exchange, TOKEN_EXCHANGES)):
        await count(ANA)
        await count(Caller(tenant="acme", user="ana", agents=("bot-1",), issuer=ANA.issuer))
        with pytest.raises(RateLimited) as refusal:
            await count(Caller(tenant="acme", user="ana", agents=("bot-2",), issuer=ANA.issuer))
        assert refusal.value.details["rule"] == name
        assert refusal.value.retry_after_ms
        await count(Caller(tenant="acme", user="ben", issuer=ANA.issuer))
        await count(Caller(tenant="other", user="ana", issuer=ANA.issuer))
    assert refusals == [APPROVAL_REQUESTS, TOKEN_EXCHANGES]
    time.seconds += 3601 + 4
    await limits.count_approval_request(ANA)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_backtest_is_refused_while_another_runs_and_not_after_it(is_lost: bool) -> None:
    refusals: list[str] = []
    limits = _make_limits(_Time(), refusals, _LostCounters() if is_lost else None)
    async with limits.hold_backtest(ANA):
        with pytest.raises(ConcurrencyLimitReached):
            async with limits.hold_backtest(ANA):
                pytest.fail("two ran at once")
        async with limits.hold_backtest(Caller(tenant="other", user="ana")):
            pass
    async with limits.hold_backtest(ANA):
        pass
    assert refusals == [BACKTESTS]


async def test_backtests_of_all_tenants_are_limited_and_a_second_one_leaves_room_for_others() -> None:
    refusals: list[str] = []
    clock = _Time().clock
    limits = RequestLimits(LimitSettings(), InProcessCounters(clock), clock, on_refusal=refusals.append)
    async with AsyncExitStack() as stack:
        for number in range(MAX_BACKTESTS):
            await stack.enter_async_context(limits.hold_backtest(Caller(tenant=f"t{number}", user="ana")))
            if number == MAX_BACKTESTS // 2:
                with pytest.raises(ConcurrencyLimitReached, match="one more of this tenant"):
                    await stack.enter_async_context(limits.hold_backtest(Caller(tenant="t0", user="ana")))
        with pytest.raises(ConcurrencyLimitReached, match="this gateway runs 8 backtests"):
            await stack.enter_async_context(limits.hold_backtest(ANA))
    async with limits.hold_backtest(ANA), limits.hold_backtest(ANA):
        pass
    assert refusals == [BACKTESTS, BACKTESTS]


def test_failures_of_an_address_are_refused_without_their_reason_for_a_minute() -> None:
    time, refusals = _Time(), list[str]()
    limits, problem = _make_limits(time, refusals), TokenMalformed("not a token")
    for _ in range(2):
        limits.count_failure("192.0.2.7", problem)
    with pytest.raises(RateLimited) as refusal:
        limits.count_failure("192.0.2.7", problem)
    assert 0 < (refusal.value.retry_after_ms or 0) <= 60_000
    assert refusals == [FAILED_EXCHANGES]
    limits.count_failure("192.0.2.8", problem)
    time.seconds += 61
    limits.count_failure("192.0.2.7", problem)
