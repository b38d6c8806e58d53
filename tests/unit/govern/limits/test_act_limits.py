"""Administrative acts: a rate for each tenant, and one act of a tenant at a time."""

import asyncio

import pytest

from deputize.core.clock import Clock
from deputize.core.errors import RateLimited
from deputize.core.settings.limits import LimitSettings
from deputize.govern.limits.act_limits import ADMIN_ACTS, ActLimits

pytestmark = pytest.mark.requirement("GOV-8")


def _make_limits(clock: Clock, refusals: list[str]) -> ActLimits:
    settings = LimitSettings(admin_acts_per_second=10, admin_acts_at_once=3)
    return ActLimits(settings, clock, on_refusal=refusals.append)


def test_a_tenant_has_a_burst_and_then_its_rate() -> None:
    now, refusals = [100.0], list[str]()
    limits = _make_limits(Clock(monotonic=lambda: now[0]), refusals)
    for _ in range(3):
        limits.count_act("acme")
    with pytest.raises(RateLimited) as refused:
        limits.count_act("acme")
    assert refused.value.retry_after_ms == 100
    assert refused.value.nothing_happened
    limits.count_act("other")
    now[0] += 0.11
    limits.count_act("acme")
    with pytest.raises(RateLimited):
        limits.count_act("acme")
    now[0] += 3600
    for _ in range(3):
        limits.count_act("acme")
    with pytest.raises(RateLimited):
        limits.count_act("acme")
    assert refusals == [ADMIN_ACTS] * 3


async def test_acts_of_a_tenant_take_turns_and_those_of_others_do_not_wait() -> None:
    limits = _make_limits(Clock(), [])
    order: list[str] = []

    async def act(tenant: str, name: str) -> None:
        async with limits.take_turn(tenant):
            order.append(f"{name} begins")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            order.append(f"{name} ends")

    async with limits.take_turn("acme"):
        waiting = [asyncio.create_task(act("acme", name)) for name in "ab"]
        canceled = asyncio.create_task(act("acme", "never"))
        await asyncio.sleep(0)
        await act("other", "other")
        assert order == ["other begins", "other ends"]
        canceled.cancel()
    await asyncio.gather(*waiting)
    assert order[2:] == ["a begins", "a ends", "b begins", "b ends"]
    assert not limits._locks
