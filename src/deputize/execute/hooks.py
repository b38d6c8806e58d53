"""Runs hooks: the operator's own functions, each under its own time limit.

Async ones run in the request's task, synchronous ones in threads. A thread cannot be stopped; its hook is given up all
the same, and what it says later is heard by nobody.
"""

import asyncio
import contextvars
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from deputize.core.hooks import LoadedHook

log = structlog.get_logger(__name__)


class HookBroke(Exception):
    """A hook gave no answer: it raised, or took too long. The message quotes nothing it saw."""


class HookRunner:
    def __init__(self, *, threads: int = 16) -> None:
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="hook")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, hook: LoadedHook, seen: tuple[Any, ...], seconds: float) -> Any:
        """What the hook returned, within the time; anything else is `HookBroke`."""
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                said = await (hook.function(*seen) if hook.is_async else self._in_thread(hook, seen))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _broke(hook, error) from error
        except (Exception, SystemExit) as error:
            if not limit.expired():
                raise _broke(hook, error) from error
        # A hook that swallows its own cancellation has used its time up all the same.
        if limit.expired():
            raise HookBroke(f"it took longer than {seconds:.3g} s")
        return said

    async def _in_thread(self, hook: LoadedHook, seen: tuple[Any, ...]) -> Any:
        queued = self._threads.submit(contextvars.copy_context().run, _called, hook, seen)
        return await asyncio.wrap_future(queued)


def _called(hook: LoadedHook, seen: tuple[Any, ...]) -> Any:
    try:
        return hook.function(*seen)
    except (StopIteration, SystemExit) as error:
        # A future cannot carry the one, and the loop would end the process for the other.
        raise RuntimeError(type(error).__name__) from error


def _broke(hook: LoadedHook, error: BaseException) -> HookBroke:
    # Without the error's own words, which may quote values.
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error("hook_failed", hook=hook.name, moment=hook.moment, reason=type(error).__name__, where=where)
    return HookBroke(f"it failed with {type(error).__name__}")
