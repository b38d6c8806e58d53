"""End background tasks for certain, although a library may swallow a cancellation."""

import asyncio
from typing import Any, Final

_REPEAT_SECONDS: Final = 1.0


async def cancel_task(task: "asyncio.Task[Any]") -> None:
    """Cancel a task, wait for its end, and raise the error that ended it if it was not the cancellation."""
    await cancel_until_done(task)
    if not task.cancelled():
        task.result()


async def cancel_until_done(task: "asyncio.Task[Any]") -> None:
    """Cancel a task again and again until it has ended; its error, if any, stays in it.

    A cancellation can get lost: asyncpg raises the error of a failed connection check although it was canceled while
    it closed that connection. A loop that tolerates the error then goes on, and its owner would wait for ever.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_REPEAT_SECONDS)
