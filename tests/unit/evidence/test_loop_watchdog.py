"""A stall of the event loop is measured, and the task that held it is named."""

import asyncio
import time

import pytest
import structlog

from deputize.evidence import loop_watchdog
from deputize.evidence.loop_watchdog import LoopWatchdog


async def test_a_task_that_blocks_the_loop_is_measured_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may stall the loop as well, with another task or none, and before this one does.
    monkeypatch.setattr(loop_watchdog, "_LOG_SECONDS", 0.0)
    stalls: list[float] = []
    watchdog = LoopWatchdog(stalls.append, quiet_seconds=0)
    await watchdog.start()

    async def block_the_loop() -> None:
        began = time.monotonic()
        # Until the thread that watches has seen it, which may come late to it.
        while (blocked := time.monotonic() - began) < 0.4 or (watchdog._culprit is None and blocked < 60):
            time.sleep(0.01)

    with structlog.testing.capture_logs() as lines:
        await asyncio.create_task(block_the_loop(), name="greedy")
        async with asyncio.timeout(60):
            while not any("greedy" in each.get("task", "") for each in lines):  # noqa: ASYNC110 -- it only logs
                await asyncio.sleep(0.05)
    await watchdog.stop()
    assert max(stalls) >= 0.3
    (line,) = (each for each in lines if "greedy" in each.get("task", ""))
    assert line["event"] == "event_loop_stalled"
    assert "block_the_loop" in line["stack"]
