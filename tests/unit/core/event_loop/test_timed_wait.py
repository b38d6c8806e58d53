"""A timed wait ends with its event, with its time, and with a cancellation at whatever moment."""

import asyncio

import pytest

from deputize.core.event_loop.timed_wait import wait_for_event


async def test_it_tells_whether_the_event_was_set() -> None:
    event = asyncio.Event()
    assert not await wait_for_event(event, 0.001)
    asyncio.get_running_loop().call_soon(event.set)
    assert await wait_for_event(event, 60)


@pytest.mark.parametrize("turns", range(8))
async def test_a_loop_that_is_cancelled_while_it_is_woken_ends(turns: int) -> None:
    event = asyncio.Event()

    async def wait_in_a_loop() -> None:
        while True:
            event.clear()
            await wait_for_event(event, 60)

    task = asyncio.create_task(wait_in_a_loop())
    await asyncio.sleep(0.001)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=60)
    assert task.cancelled()
