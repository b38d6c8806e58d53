"""Slow requests of one tenant or one caller leave room for the others."""

import asyncio
from contextlib import ExitStack

import pytest

from deputize.core.caller import Caller
from deputize.core.errors import ConcurrencyLimitReached
from deputize.core.settings import ServerSettings
from deputize.govern.limits.request_slots import RequestSlots


def make_caller(tenant: str = "acme", user: str = "ana", *, agents: tuple[str, ...] = ()) -> Caller:
    return Caller(tenant=tenant, user=user, agents=agents, issuer="https://idp.example")


def make_slots(
    refusals: list[str], *, max_requests: int = 12, per_tenant: int = 100, per_caller: int = 100
) -> RequestSlots:
    settings = ServerSettings(
        max_requests=max_requests, max_requests_per_tenant=per_tenant, max_requests_per_caller=per_caller
    )
    return RequestSlots(settings, on_refusal=refusals.append)


def fill(slots: RequestSlots, stack: ExitStack, caller: Caller) -> int:
    """Open requests of a caller until one is refused; return how many are in progress."""
    for count in range(1000):
        try:
            with ExitStack() as request:
                request.enter_context(slots.open_request())
                slots.take_slot(caller)
                stack.push(request.pop_all())
        except ConcurrencyLimitReached:
            return count
    raise AssertionError("nothing was refused")


def test_a_tenant_holds_at_most_what_it_leaves_to_the_others() -> None:
    refusals: list[str] = []
    slots = make_slots(refusals)
    with ExitStack() as stack:
        assert [fill(slots, stack, make_caller(tenant)) for tenant in ("a", "b", "c", "d")] == [6, 3, 2, 1]
    assert set(refusals) == {"default:requests-per-tenant"}
    with ExitStack() as stack:
        assert fill(slots, stack, make_caller("d")) == 6


def test_a_caller_and_a_tenant_have_limits_of_their_own() -> None:
    refusals: list[str] = []
    slots = make_slots(refusals, max_requests=100, per_tenant=5, per_caller=3)
    with ExitStack() as stack:
        assert fill(slots, stack, make_caller()) == 3
        with pytest.raises(ConcurrencyLimitReached) as refused, slots.open_request():
            slots.take_slot(make_caller(agents=("another-name",)))
        assert refused.value.details["rule"] == "default:requests-per-caller"
        assert "server.max_requests_per_caller" in refused.value.message
        assert fill(slots, stack, make_caller(user="bob")) == 2
        assert fill(slots, stack, make_caller("other")) == 3
    assert refusals == [f"default:requests-per-{each}" for each in ("caller", "caller", "tenant", "caller")]


def test_a_request_takes_one_slot_however_often_it_authenticates() -> None:
    slots = make_slots([], per_caller=1)
    with slots.open_request():
        slots.take_slot(make_caller())
        slots.take_slot(make_caller())
    with slots.open_request():
        slots.take_slot(make_caller())


async def test_a_task_that_outlives_its_request_takes_no_slot() -> None:
    slots = make_slots([], per_caller=1)
    has_ended = asyncio.Event()

    async def authenticate_later() -> None:
        await has_ended.wait()
        slots.take_slot(make_caller())

    with slots.open_request():
        task = asyncio.create_task(authenticate_later())
    has_ended.set()
    await task
    with slots.open_request():
        slots.take_slot(make_caller())


def test_a_request_that_is_refused_frees_nothing_of_others() -> None:
    slots = make_slots([], per_caller=1)
    with slots.open_request():
        slots.take_slot(make_caller())
        for _ in range(3):
            with pytest.raises(ConcurrencyLimitReached), slots.open_request():
                slots.take_slot(make_caller())
