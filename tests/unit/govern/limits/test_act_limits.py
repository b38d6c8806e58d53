"""Administrative acts: a rate for each tenant and user, one act of a tenant at a time, and a reserve for operators."""

import asyncio
from dataclasses import replace

import pytest

from deputize.core.caller import ADMIN_SCOPE, OPERATE_SCOPE, Caller, Capability
from deputize.core.clock import Clock
from deputize.core.errors import RateLimited
from deputize.core.settings.limits import LimitSettings
from deputize.govern.limits.act_limits import ADMIN_ACTS, ActLimits

pytestmark = pytest.mark.requirement("GOV-8")


ADMIN = Caller(tenant="acme", user="root", scopes=frozenset({ADMIN_SCOPE}))
OPERATOR = Caller(tenant="acme", user="olga", scopes=frozenset({OPERATE_SCOPE}))
AGENT = Caller(tenant="acme", user="root", agents=("bot",))


def _make_limits(clock: Clock, refusals: list[str]) -> ActLimits:
    settings = LimitSettings(admin_acts_per_second=20, admin_acts_at_once=6)
    return ActLimits(settings, clock, on_refusal=refusals.append)


def _use_up(limits: ActLimits, caller: Caller, *, is_tightening: bool) -> int:
    """Perform acts until one is refused; return how many were not."""
    for count in range(100):
        try:
            limits.count_act(caller, is_tightening=is_tightening)
        except RateLimited:
            return count
    raise AssertionError("nothing is refused")


def test_a_user_has_half_of_the_tenants_burst_and_then_half_of_its_rate() -> None:
    now, refusals = [100.0], list[str]()
    limits = _make_limits(Clock(monotonic=lambda: now[0]), refusals)
    assert _use_up(limits, ADMIN, is_tightening=False) == 3
    with pytest.raises(RateLimited) as refused:
        limits.count_act(ADMIN, is_tightening=False)
    assert refused.value.retry_after_ms == 100
    assert refused.value.nothing_happened
    limits.count_act(replace(ADMIN, tenant="other"), is_tightening=False)
    assert [_use_up(limits, replace(ADMIN, user=user), is_tightening=False) for user in "abc"] == [3, 0, 0]
    now[0] += 0.11
    assert _use_up(limits, ADMIN, is_tightening=False) == 1
    now[0] += 3600
    assert _use_up(limits, ADMIN, is_tightening=False) == 3
    assert set(refusals) == {ADMIN_ACTS}


def test_nobody_else_uses_up_what_operators_revoke_with() -> None:
    """Neither agents, whatever they are called and whosever they are, nor users, nor operators that loosen."""
    limits = _make_limits(Clock(monotonic=lambda: 100.0), [])
    limited = replace(ADMIN, capabilities=(Capability(tool="notes.read"),))
    others = (AGENT, replace(AGENT, agents=("bot2",)), replace(AGENT, user="eve"), limited)
    assert sum(_use_up(limits, each, is_tightening=True) for each in others) == 6
    assert sum(_use_up(limits, each, is_tightening=False) for each in (ADMIN, OPERATOR)) == 0
    assert [_use_up(limits, each, is_tightening=True) for each in (ADMIN, OPERATOR)] == [3, 3]


def test_an_operators_agents_leave_half_of_the_reserve_to_the_operator() -> None:
    limits = _make_limits(Clock(monotonic=lambda: 100.0), [])
    agents = [replace(OPERATOR, agents=(name,)) for name in "abc"]
    assert [_use_up(limits, each, is_tightening=True) for each in agents] == [3, 0, 0]
    assert _use_up(limits, OPERATOR, is_tightening=True) == 3


async def test_acts_of_a_tenant_take_turns_and_those_of_others_do_not_wait() -> None:
    limits = _make_limits(Clock(), [])
    order: list[str] = []

    async def act(tenant: str, name: str) -> None:
        async with limits.take_turn(replace(ADMIN, tenant=tenant), is_tightening=False):
            order.append(f"{name} begins")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            order.append(f"{name} ends")

    async with limits.take_turn(AGENT, is_tightening=True):
        waiting = [asyncio.create_task(act("acme", name)) for name in "ab"]
        canceled = asyncio.create_task(act("acme", "never"))
        await asyncio.sleep(0)
        await act("other", "other")
        assert order == ["other begins", "other ends"]
        async with limits.take_turn(ADMIN, is_tightening=True):
            order.append("an operator tightens")
        canceled.cancel()
    await asyncio.gather(*waiting)
    assert order[3:] == ["a begins", "a ends", "b begins", "b ends"]
    assert not limits._locks
