"""A stall of the event loop is measured, and the task that held it is named."""

import asyncio
import time

import structlog

from deputize.evidence.loop_watchdog import LoopWatchdog


async def test_a_task_that_blocks_the_loop_is_measured_and_named() -> None:
    stalls: list[float] = []
    watchdog = LoopWatchdog(stalls.append, quiet_seconds=0)
    await watchdog.start()

    async def block_the_loop() -> None:
        time.sleep(0.4)

    with structlog.testing.capture_logs() as lines:
        await asyncio.create_task(block_the_loop(), name="greedy")
        await asyncio.sleep(0.2)
    await watchdog.stop()
    assert max(stalls) >= 0.3
    (line,) = (each for each in lines if each["event"] == "event_loop_stalled")
    assert "greedy" in line["task"]
    assert "block_the_loop" in line["stack"]
