"""A service is called no more often than declared, and not at all while it asks for a pause."""

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError

from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract, ServiceLimits
from deputize.core.errors import LimitsUnavailable, UpstreamRateLimited
from deputize.execute.service_rates import ServiceRates
from deputize.store.counters.in_process import InProcessCounters
from deputize.store.counters.port import CountersUnavailable
from tests.support.contracts import make_contract

pytestmark = [pytest.mark.requirement("GOV-8"), pytest.mark.asyncio(loop_scope="session")]
CLOCK = Clock()
HOUR_MS = 3_600_000


def make_rates(**options: Any) -> ServiceRates:
    return ServiceRates(InProcessCounters(CLOCK), CLOCK.monotonic, **options)


def make_service(service: str = "shop", credential: str = "none", **limits: Any) -> Contract:
    auth = {"credential": credential, "secret": "shop/key" if credential == "vault" else None}
    return make_contract(external_service=service, service_limits=limits or None, auth=auth)


async def test_a_service_is_called_as_often_as_declared_and_no_more() -> None:
    refusals: list[str] = []
    rates, shop = make_rates(on_refusal=refusals.append), make_service(max_calls=2, window_seconds=3600)
    assert rates.is_limited(shop)
    for _ in range(2):
        await rates.take_turn_now("acme", shop)
    with pytest.raises(UpstreamRateLimited) as refusal:
        await rates.take_turn_now("acme", shop)
    problem = refusal.value
    assert problem.message == "shop is called at most 2 times in 3600 s: this call was not sent"
    assert problem.details == {"service": "shop", "max_calls": 2, "window_seconds": 3600.0}
    assert problem.nothing_happened
    assert 0 < (problem.retry_after_ms or 0) <= HOUR_MS + 10_000
    assert refusals == ["shop"]
    # Another tenant and another service have rates of their own.
    await rates.take_turn_now("globex", shop)
    await rates.take_turn_now("acme", make_service("mail", max_calls=2, window_seconds=3600))


async def test_a_turn_that_was_not_used_is_free_again() -> None:
    rates, shop = make_rates(), make_service(max_calls=1, window_seconds=3600)
    turn = await rates.take_turn_now("acme", shop)
    assert turn is not None
    assert isinstance(await rates.request_turn("acme", shop), UpstreamRateLimited)
    turn.give_back()
    assert await rates.take_turn_now("acme", shop) is not None
    assert isinstance(await rates.request_turn("acme", shop), UpstreamRateLimited)
    # Nothing is counted for a service without a rate.
    assert await rates.take_turn_now("acme", make_service("mail")) is None


async def test_a_call_waits_until_the_window_has_room() -> None:
    rates, shop = make_rates(), make_service(max_calls=1, window_seconds=1, max_wait_seconds=300)
    started_at = CLOCK.monotonic()
    await rates.take_turn_now("acme", shop)
    await rates.wait_for_turn("acme", shop, 300)
    assert CLOCK.monotonic() - started_at > 0.9


@pytest.mark.parametrize(("declared", "left"), [(0.5, 300), (300, 0.5)])
async def test_a_call_that_would_wait_too_long_is_refused_at_once(declared: float, left: float) -> None:
    rates, shop = make_rates(), make_service(max_calls=1, window_seconds=3600, max_wait_seconds=declared)
    await rates.wait_for_turn("acme", shop, left)
    async with asyncio.timeout(60):
        with pytest.raises(UpstreamRateLimited):
            await rates.wait_for_turn("acme", shop, left)


async def test_a_pause_is_obeyed_by_all_calls_of_the_tenant_to_the_service() -> None:
    woken: list[bool] = []
    rates, shop = make_rates(), make_service()
    rates.wake = lambda: woken.append(True)
    assert not rates.is_limited(shop)
    rates.note_pause("acme", shop, 10 * HOUR_MS)
    assert rates.is_limited(shop)
    with pytest.raises(UpstreamRateLimited, match="shop asked not to be called for another") as refusal:
        await rates.wait_for_turn("acme", shop, 300)
    # No service pauses its calls for longer than an hour.
    assert HOUR_MS - 300_000 < (refusal.value.retry_after_ms or 0) <= HOUR_MS + 1
    await rates.take_turn_now("globex", shop)
    await rates.take_turn_now("acme", make_service("mail"))
    assert woken == [True]


async def test_a_pause_of_one_persons_credential_does_not_stop_others() -> None:
    rates = make_rates()
    for credential in ("link", "delegated"):
        contract = make_contract(
            external_service="shop",
            auth={"credential": credential, "audience": "shop" if credential == "delegated" else None},
        )
        rates.note_pause("acme", contract, HOUR_MS)
        assert not rates.is_limited(contract)
    rates.note_pause("acme", make_service(credential="vault"), HOUR_MS)
    assert rates.is_limited(make_service())


async def test_pauses_are_given_to_other_processes_once_and_end() -> None:
    now = [0.0]
    first, second = (ServiceRates(InProcessCounters(CLOCK), lambda: now[0]) for _ in range(2))
    shop = make_service()
    first.note_pause("acme", shop, 30_000)
    # What ends earlier says nothing new.
    first.note_pause("acme", shop, 10_000)
    pauses = first.take_pauses()
    assert pauses == {("acme", "shop"): 30.0}
    assert first.take_pauses() == {}
    second.update_pauses(pauses.items())
    now[0] = 29.0
    for rates in (first, second):
        with pytest.raises(UpstreamRateLimited) as refusal:
            await rates.take_turn_now("acme", shop)
        assert refusal.value.retry_after_ms == 1001
    assert second.take_pauses() == {}
    now[0] = 30.5
    for rates in (first, second):
        await rates.take_turn_now("acme", shop)
        rates.update_pauses(())
        assert not rates.is_limited(shop)


class LostCounters(InProcessCounters):
    """Counters that cannot be reached."""

    def take(self, requests: Any) -> Any:
        raise CountersUnavailable("no answer")


async def test_what_cannot_be_counted_is_not_sent() -> None:
    rates, shop = ServiceRates(LostCounters(CLOCK), CLOCK.monotonic), make_service(max_calls=2)
    with pytest.raises(LimitsUnavailable):
        await rates.wait_for_turn("acme", shop, 300)
    # What declares no rate is not counted.
    await rates.wait_for_turn("acme", make_service(), 300)


async def test_a_window_without_a_number_of_calls_is_refused() -> None:
    with pytest.raises(ValidationError, match="set max_calls too"):
        ServiceLimits(window_seconds=5)
