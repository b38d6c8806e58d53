"""A background loop runs until it is stopped, waits out the errors it knows, and dies of any other in sight."""

import asyncio
from typing import ClassVar

import pytest

from deputize.core.event_loop.periodic_task import PeriodicTask


class CountingTask(PeriodicTask):
    """Runs the steps it is given, and reports when each was reached."""

    task_name = "counting"
    tolerated_errors: ClassVar[tuple[type[Exception], ...]] = (ConnectionError,)

    def __init__(self, errors: list[Exception | None]) -> None:
        super().__init__()
        self.errors = errors
        self.reports: list[Exception] = []
        self.finished = asyncio.Event()

    @property
    def interval_seconds(self) -> float:
        return 0.0

    async def run_step(self) -> float:
        if not self.errors:
            self.finished.set()
            await asyncio.Event().wait()
        error = self.errors.pop(0)
        if error is not None:
            raise error
        return 0.0

    def report_error(self, error: Exception) -> None:
        self.reports.append(error)


async def test_a_known_error_is_reported_and_the_loop_goes_on() -> None:
    task = CountingTask([None, ConnectionError("away"), None])
    assert not task.is_alive
    await task.start()
    async with asyncio.timeout(60):
        await task.finished.wait()
    assert task.is_alive
    assert [str(error) for error in task.reports] == ["away"]
    await task.stop()
    assert not task.is_alive


async def test_an_unknown_error_ends_the_loop_and_shows() -> None:
    task = CountingTask([None, ValueError("a fault")])
    await task.start()
    async with asyncio.timeout(60):
        while task.is_alive:  # noqa: ASYNC110 -- the loop's own end is what is waited for
            await asyncio.sleep(0)
    with pytest.raises(ValueError, match="a fault"):
        await task.stop()


class DeafTask(CountingTask):
    """Swallows its first cancellation, as a driver does that is closing a connection."""

    async def run_step(self) -> float:
        try:
            self.finished.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not self.reports:
                raise ConnectionError("the connection's check failed") from None
            raise
        return 0.0


async def test_a_loop_whose_cancellation_got_lost_is_canceled_again() -> None:
    task = DeafTask([])
    await task.start()
    async with asyncio.timeout(60):
        await task.finished.wait()
        await task.stop()
    assert (task.is_alive, len(task.reports)) == (False, 1)


async def test_a_task_that_was_never_started_can_be_stopped() -> None:
    await CountingTask([]).stop()
