"""Enforce deadlines of tools that run in their caller's task, with one coarse timer for all of them.

A timer per call costs more than most calls do. Here a call adds its deadline to a table and removes it again; a tick,
which runs only while the table has entries, cancels overdue tasks. A task is canceled at most one tick late.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any

TICK_SECONDS = 0.01


class Deadlines:
    """The deadlines of the tasks that run now."""

    def __init__(self) -> None:
        self._deadline_by_task: dict[asyncio.Task[Any], float] = {}
        self._expired_tasks: set[asyncio.Task[Any]] = set()
        self._is_ticking = False

    async def run(self, work: Awaitable[Any], seconds: float) -> Any:
        """Await `work` in this task; raise TimeoutError if it takes longer than `seconds`."""
        task = asyncio.current_task()
        assert task is not None
        if task in self._deadline_by_task:
            # A tool calls another tool in the same task, so the inner call needs its own timer.
            async with asyncio.timeout(seconds):
                return await work
        loop = asyncio.get_running_loop()
        cancel_count = task.cancelling()
        self._deadline_by_task[task] = loop.time() + seconds
        if not self._is_ticking:
            self._is_ticking = True
            loop.call_later(TICK_SECONDS, self._tick, loop)
        try:
            return await work
        except asyncio.CancelledError:
            if task in self._expired_tasks:
                self._expired_tasks.discard(task)
                if task.uncancel() <= cancel_count:
                    raise TimeoutError from None
            raise
        finally:
            del self._deadline_by_task[task]
            if task in self._expired_tasks:
                # The work ended differently although it was canceled here, so the task must not stay canceled.
                self._expired_tasks.discard(task)
                task.uncancel()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task, due in self._deadline_by_task.items():
            if due <= now and task not in self._expired_tasks:
                self._expired_tasks.add(task)
                task.cancel()
        self._is_ticking = bool(self._deadline_by_task)
        if self._is_ticking:
            loop.call_later(TICK_SECONDS, self._tick, loop)
