"""A slow service holds its own slots and no more than its share of what all services have in common."""

import asyncio
from typing import Any

import pytest

from deputize.core.errors import ServiceBusy
from deputize.execute.bulkheads import Bulkheads, ServiceSlot, SlotRequest
from tests.support.contracts import make_contract

pytestmark = [pytest.mark.requirement("RES-1"), pytest.mark.asyncio(loop_scope="session")]
# Only there to end a hang.
PATIENCE = 60.0


def make_bulkheads(*, max_concurrent: int = 2, threads: int = 32, runs: int = 20) -> Bulkheads:
    return Bulkheads(max_concurrent=max_concurrent, threads=threads, runs=runs)


def make_request(
    bulkheads: Bulkheads,
    service: str = "shop",
    tenant: str = "acme",
    *,
    uses_thread: bool = False,
    is_run: bool = False,
    **limits: Any,
) -> SlotRequest:
    contract = make_contract(external_service=service, service_limits=limits or None)
    return bulkheads.build_request(tenant, contract, uses_thread=uses_thread, is_run=is_run)


def take_all(bulkheads: Bulkheads, request: SlotRequest) -> list[ServiceSlot]:
    slots = []
    while (slot := bulkheads.take_now(request)) is not None:
        slots.append(slot)
    return slots


async def start_waiting(bulkheads: Bulkheads, request: SlotRequest) -> "asyncio.Task[ServiceSlot]":
    task = asyncio.ensure_future(bulkheads.wait_for_slot(request, PATIENCE))
    await asyncio.sleep(0)
    return task


def list_loads(bulkheads: Bulkheads) -> dict[str, tuple[int, int]]:
    return {service: (running, waiting) for service, running, waiting in bulkheads.iterate_loads()}


async def test_a_service_has_as_many_slots_as_its_contract_declares_or_the_settings_say() -> None:
    bulkheads = make_bulkheads()
    assert len(take_all(bulkheads, make_request(bulkheads))) == 2
    assert len(take_all(bulkheads, make_request(bulkheads, "mail", max_concurrent=3))) == 3
    # The slots are those of the service: a contract that allows more finds those that are left.
    assert len(take_all(bulkheads, make_request(bulkheads, max_concurrent=5))) == 3


async def test_tenants_and_services_take_no_slots_from_each_other() -> None:
    bulkheads = make_bulkheads()
    take_all(bulkheads, make_request(bulkheads))
    assert len(take_all(bulkheads, make_request(bulkheads, tenant="globex"))) == 2
    assert len(take_all(bulkheads, make_request(bulkheads, "mail"))) == 2


async def test_calls_wait_in_the_order_of_arrival_and_a_released_slot_is_released_once() -> None:
    bulkheads = make_bulkheads(max_concurrent=1)
    request = make_request(bulkheads, max_wait_seconds=PATIENCE, max_waiting=2)
    slot = bulkheads.take_now(request)
    assert slot is not None
    first, second = await start_waiting(bulkheads, request), await start_waiting(bulkheads, request)
    assert list_loads(bulkheads) == {"shop": (1, 2)}
    slot.release()
    slot.release()
    (await first).release()
    assert not second.done()
    (await second).release()
    assert list_loads(bulkheads) == {}


async def test_a_call_is_refused_when_too_many_wait_and_says_what_to_do() -> None:
    refusals: list[str] = []
    bulkheads = Bulkheads(max_concurrent=1, threads=2, runs=2, on_refusal=refusals.append)
    request = make_request(bulkheads, max_wait_seconds=PATIENCE, max_waiting=1)
    slots = take_all(bulkheads, request)
    waiting = await start_waiting(bulkheads, request)
    with pytest.raises(ServiceBusy) as refusal:
        await bulkheads.wait_for_slot(request, PATIENCE)
    problem = refusal.value
    assert problem.message == (
        "1 calls to shop are in progress, as many as are allowed at once (1), and 1 wait: this call was not sent"
    )
    assert (problem.nothing_happened, problem.retry_after_ms, refusals) == (True, 1000, ["shop"])
    assert problem.details == {
        "service": "shop", "in_progress": 1, "waiting": 1, "max_concurrent": 1, "max_waiting": 1,
    }  # fmt: skip
    slots[0].release()
    (await waiting).release()


@pytest.mark.parametrize(("declared", "left"), [(0.01, PATIENCE), (PATIENCE, 0.01), (PATIENCE, -1.0), (0, PATIENCE)])
async def test_a_call_waits_no_longer_than_its_contract_and_its_deadline_allow(declared: float, left: float) -> None:
    bulkheads = make_bulkheads()
    request = make_request(bulkheads, max_wait_seconds=declared)
    slots = take_all(bulkheads, request)
    with pytest.raises(ServiceBusy):
        await bulkheads.wait_for_slot(request, left)
    for slot in slots:
        slot.release()
    assert list_loads(bulkheads) == {}


async def test_with_no_place_to_wait_a_call_is_refused_at_once() -> None:
    bulkheads = make_bulkheads()
    request = make_request(bulkheads, max_waiting=0, max_wait_seconds=PATIENCE)
    take_all(bulkheads, request)
    with pytest.raises(ServiceBusy):
        await bulkheads.wait_for_slot(request, PATIENCE)


async def test_a_canceled_call_leaves_its_place_and_a_slot_it_got_meanwhile() -> None:
    bulkheads = make_bulkheads(max_concurrent=1)
    request = make_request(bulkheads, max_wait_seconds=PATIENCE, max_waiting=2)
    slot = bulkheads.take_now(request)
    assert slot is not None
    canceled, next_call = await start_waiting(bulkheads, request), await start_waiting(bulkheads, request)
    canceled.cancel()
    await asyncio.gather(canceled, return_exceptions=True)
    assert list_loads(bulkheads) == {"shop": (1, 1)}
    slot.release()
    # It has the slot already, and does not know it yet.
    next_call.cancel()
    await asyncio.gather(next_call, return_exceptions=True)
    assert list_loads(bulkheads) == {}


async def test_a_later_call_may_pass_where_the_contract_of_the_first_allows_less() -> None:
    bulkheads = make_bulkheads()
    narrow = make_request(bulkheads, max_concurrent=1, max_wait_seconds=PATIENCE)
    wide = make_request(bulkheads, max_concurrent=3, max_wait_seconds=PATIENCE)
    slots = take_all(bulkheads, wide)
    first, second = await start_waiting(bulkheads, narrow), await start_waiting(bulkheads, wide)
    slots[0].release()
    slot = await second
    assert not first.done()
    for each in (*slots[1:], slot):
        each.release()
    (await first).release()


async def test_of_threads_there_is_always_room_for_another_service_and_another_tenant() -> None:
    bulkheads = make_bulkheads(max_concurrent=1000)

    def count(service: str, tenant: str) -> int:
        return len(take_all(bulkheads, make_request(bulkheads, service, tenant, uses_thread=True)))

    assert count("slow", "acme") == 16
    # All services of a tenant together leave as much to others as one of them.
    assert count("slower", "acme") == 0
    assert [count(f"s{number}", "globex") for number in range(2)] == [8, 0]
    assert count("shop", "initech") == 4
    # What needs no thread is not concerned.
    assert len(take_all(bulkheads, make_request(bulkheads, "mail"))) == 1000


async def test_a_freed_thread_is_given_to_a_call_of_another_service_that_waits_for_it() -> None:
    bulkheads = make_bulkheads(max_concurrent=1000, threads=3)
    slow = make_request(bulkheads, "slow", uses_thread=True)
    shop = make_request(bulkheads, "shop", "globex", uses_thread=True, max_wait_seconds=PATIENCE)
    slots, first = take_all(bulkheads, slow), bulkheads.take_now(shop)
    assert (len(slots), first is not None) == (2, True)
    waiting = await start_waiting(bulkheads, shop)
    for slot in slots:
        slot.release()
    (await waiting).release()


async def test_a_thread_that_outlives_its_call_keeps_the_slot() -> None:
    bulkheads = make_bulkheads(max_concurrent=1)
    request = make_request(bulkheads, uses_thread=True)
    slot = bulkheads.take_now(request)
    assert slot is not None
    thread: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    slot.hold_for_thread(thread)
    slot.release()
    assert bulkheads.take_now(request) is None
    thread.set_result(None)
    await asyncio.sleep(0)
    assert bulkheads.take_now(request) is not None


async def test_a_service_gets_half_of_a_workers_runs_and_even_a_worker_with_one_place_works() -> None:
    bulkheads = make_bulkheads(max_concurrent=1000)
    assert len(take_all(bulkheads, make_request(bulkheads, "slow", is_run=True))) == 10
    assert len(take_all(bulkheads, make_request(bulkheads, "shop", is_run=True))) == 5
    single = make_bulkheads(max_concurrent=1000, runs=1)
    assert len(take_all(single, make_request(single, is_run=True))) == 1
    refusal = single.build_refusal(make_request(single, "shop", is_run=True))
    assert "what is left of this gateway's runs is kept for others" in refusal.message
