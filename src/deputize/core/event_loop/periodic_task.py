"""Run a step again and again in the background: one start, stop and health rule for every loop of the gateway."""

import asyncio
from abc import ABC, abstractmethod
from typing import ClassVar

from deputize.core.event_loop.task_cancellation import cancel_task


class PeriodicTask(ABC):
    """A background loop. A tolerated error is reported and waited out; any other ends the loop, and health shows it."""

    task_name: ClassVar[str]
    tolerated_errors: ClassVar[tuple[type[Exception], ...]]
    # False if `start` already did the work of the first step, or it can wait.
    runs_at_start: ClassVar[bool] = True

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    @abstractmethod
    def interval_seconds(self) -> float:
        """The usual pause between two steps, and the pause after an error."""

    @abstractmethod
    async def run_step(self) -> float:
        """Do what is due; return the seconds to wait before the next step."""

    @abstractmethod
    def report_error(self, error: Exception) -> None:
        """Log a tolerated error."""

    @property
    def is_alive(self) -> bool:
        """True while the loop runs."""
        return self._task is not None and not self._task.done()

    async def start(self) -> None:
        """Start the loop."""
        first_pause = 0.0 if self.runs_at_start else self.interval_seconds
        self._task = asyncio.create_task(self._run_loop(first_pause), name=self.task_name)

    async def stop(self) -> None:
        """Cancel the loop and wait for its end."""
        if self._task is not None:
            await cancel_task(self._task)

    async def _run_loop(self, pause: float) -> None:
        while True:
            await asyncio.sleep(pause)
            try:
                pause = await self.run_step()
            except self.tolerated_errors as error:
                self.report_error(error)
                pause = self.interval_seconds
