"""Deadlines for tools that run in their caller's own task: one coarse clock for all of them.

A timer per call costs more than most calls do. Here a call puts its deadline into a table and takes it out again; a
tick, running only while the table holds something, cancels what is overdue. Late by at most one tick.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any

TICK_SECONDS = 0.01


class Deadlines:
    def __init__(self) -> None:
        self._due: dict[asyncio.Task[Any], float] = {}
        self._expired: set[asyncio.Task[Any]] = set()
        self._ticking = False

    async def run(self, work: Awaitable[Any], seconds: float) -> Any:
        """Awaits `work` in this task; raises TimeoutError once it has taken `seconds`."""
        task = asyncio.current_task()
        assert task is not None
        if task in self._due:
            # A tool that calls another one: the inner call gets a timer of its own.
            async with asyncio.timeout(seconds):
                return await work
        loop = asyncio.get_running_loop()
        before = task.cancelling()
        self._due[task] = loop.time() + seconds
        if not self._ticking:
            self._ticking = True
            loop.call_later(TICK_SECONDS, self._tick, loop)
        try:
            return await work
        except asyncio.CancelledError:
            if task in self._expired:
                self._expired.discard(task)
                if task.uncancel() <= before:
                    raise TimeoutError from None
            raise
        finally:
            del self._due[task]
            if task in self._expired:
                # It ended in a way of its own although it was canceled here; the task must not stay canceled for it.
                self._expired.discard(task)
                task.uncancel()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task, due in self._due.items():
            if due <= now and task not in self._expired:
                self._expired.add(task)
                task.cancel()
        self._ticking = bool(self._due)
        if self._ticking:
            loop.call_later(TICK_SECONDS, self._tick, loop)
