"""Interrupt the tools of several calls at once, where their contracts say that they may be canceled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from deputize.core.errors import Problem

T = TypeVar("T")


class Interruption:
    """A request to stop, shared by calls in progress. It is made once, and counts for tools that start later too."""

    def __init__(self) -> None:
        self._problem: Problem | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def interrupt(self, problem: Problem) -> None:
        """Stop all tools with this problem, and start no other."""
        if self._problem is None:
            self._problem = problem
            for task in self._tasks:
                task.cancel()

    async def run(self, tool: Coroutine[Any, Any, T]) -> T:
        """Run a tool until it ends or is interrupted, which raises the problem."""
        if self._problem is not None:
            tool.close()
            raise self._problem.replace(nothing_happened=True)
        task = asyncio.create_task(tool)
        self._tasks.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            current_task = asyncio.current_task()
            if self._problem is None or (current_task is not None and current_task.cancelling()):
                raise
            # A copy: each call that is interrupted adds what it knows.
            raise self._problem.replace(nothing_happened=False) from None
        finally:
            self._tasks.discard(task)
