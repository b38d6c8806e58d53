"""Stream server-sent events until their source ends or the gateway stops, with a sign of life in between."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeVar

from deputize.core.errors import Problem

_KEEP_ALIVE_SECONDS: Final = 15.0
T = TypeVar("T")


async def stream_events(
    events: AsyncIterator[T],
    shutdown: asyncio.Event,
    format_event: Callable[[T], bytes],
    format_problem: Callable[[Problem], bytes],
) -> AsyncIterator[bytes]:
    """Stream events. A problem that ends them is sent as the last one: the status was sent before."""
    yield b"retry: 1000\n: open\n\n"
    next_event = asyncio.ensure_future(anext(events, None))
    shutdown_task = asyncio.ensure_future(shutdown.wait())
    try:
        while not shutdown_task.done():
            tasks: set[asyncio.Future[Any]] = {next_event, shutdown_task}
            await asyncio.wait(tasks, timeout=_KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not next_event.done():
                yield b": still here\n\n"
                continue
            event = next_event.result()
            if event is None:
                return
            yield format_event(event)
            next_event = asyncio.ensure_future(anext(events, None))
    except Problem as problem:
        yield format_problem(problem)
    finally:
        shutdown_task.cancel()
        next_event.cancel()
        with contextlib.suppress(asyncio.CancelledError, Problem):
            await next_event
