"""Run hooks, the operator's own functions, each with its own time limit.

Async hooks run in the request's task, synchronous hooks in threads. A thread cannot be stopped; after its time limit
its result is discarded.
"""

import asyncio
import contextvars
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from deputize.core.hooks import LoadedHook

log = structlog.get_logger(__name__)


class HookFailure(Exception):
    """A hook raised an error or took too long. The message contains none of the call's values."""


class HookRunner:
    """Runs hooks in the request's task or in a thread pool."""

    def __init__(self, *, threads: int = 16) -> None:
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="hook")

    def close(self) -> None:
        """Stop the threads without waiting for running hooks."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, hook: LoadedHook, arguments: tuple[Any, ...], seconds: float) -> Any:
        """Run a hook and return its result; raise `HookFailure` if it raises or exceeds its time."""
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                result = await (hook.function(*arguments) if hook.is_async else self._run_in_thread(hook, arguments))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _build_failure(hook, error) from error
        except (Exception, SystemExit) as error:
            if not limit.expired():
                raise _build_failure(hook, error) from error
        # A hook that suppresses its cancellation has exceeded its time too.
        if limit.expired():
            raise HookFailure(f"it took longer than {seconds:.3g} s")
        return result

    async def _run_in_thread(self, hook: LoadedHook, arguments: tuple[Any, ...]) -> Any:
        future = self._threads.submit(contextvars.copy_context().run, _call_hook, hook, arguments)
        return await asyncio.wrap_future(future)


def _call_hook(hook: LoadedHook, arguments: tuple[Any, ...]) -> Any:
    try:
        return hook.function(*arguments)
    except (StopIteration, SystemExit) as error:
        # A future cannot hold StopIteration, and SystemExit would end the process.
        raise RuntimeError(type(error).__name__) from error


def _build_failure(hook: LoadedHook, error: BaseException) -> HookFailure:
    # The error's text is left out, because it may contain values of the call.
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error("hook_failed", hook=hook.name, moment=hook.moment, reason=type(error).__name__, where=where)
    return HookFailure(f"it failed with {type(error).__name__}")
