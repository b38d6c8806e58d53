"""Wait for an event for a limited time, without losing a cancellation."""

import asyncio
import contextlib


async def wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    """Wait until an event is set or the time is over; tell whether it is set.

    `asyncio.wait_for` of Python 3.11 loses a cancellation that comes in the moment in which the event is set. A task
    that waits in a loop then goes on, and its owner waits for its end forever.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
