"""The durable engine by itself: the same one step, enqueued and carried in one process, and nothing around it.

    python -m proofs.fleet.bare_engine DSN COUNT

Above: `beside`. Below: DBOS, set up as `runs/engine.py` sets it up.
"""

import asyncio
import sys
import time
from typing import Any

import uvloop
from dbos import DBOS, DBOSPortableJSONSerializer, SetEnqueueOptions, SetWorkflowID

from deputize.core.clock import Clock
from proofs.fleet.measured import AT_ONCE, POLL_SECONDS, STARTS, say

QUEUE = "bare"


async def _measure(dsn: str, count: int) -> None:
    clock, done = Clock(), 0
    config: Any = {
        "name": "bare-engine",
        "system_database_url": dsn,
        "executor_id": clock.new_id(),
        "application_version": "1",
        "run_migrations": False,
        "serializer": DBOSPortableJSONSerializer(),
        "log_level": "WARNING",
    }
    DBOS(config=config)

    async def mark(label: str) -> dict[str, str]:
        return {"label": label}

    step = DBOS.step(name="mark")(mark)

    async def body(label: str) -> dict[str, str]:
        nonlocal done
        answer = await step(label)
        done += 1
        return answer

    workflow = DBOS.workflow(name="bare")(body)
    DBOS.listen_queues([QUEUE])
    DBOS.launch()
    await DBOS.register_queue_async(
        QUEUE, worker_concurrency=AT_ONCE, partition_worker_concurrency=AT_ONCE * 3 // 4,
        polling_interval_sec=POLL_SECONDS,
    )  # fmt: skip

    async def ask(label: str) -> None:
        with SetWorkflowID(clock.new_id()), SetEnqueueOptions(priority=5, queue_partition_key="acme"):
            await DBOS.enqueue_workflow_async(QUEUE, workflow, label)

    await asyncio.sleep(2)
    print(STARTS, flush=True)
    began, cpu = time.monotonic(), time.process_time()
    waiting = iter(range(count))

    async def lane() -> None:
        for number in waiting:
            await ask(f"mark-{number}")

    await asyncio.gather(*(lane() for _ in range(16)))
    while done < count:  # noqa: ASYNC110 -- it is the engine's threads that change it
        await asyncio.sleep(0.05)
    say(cpu_seconds=time.process_time() - cpu, seconds=time.monotonic() - began, count=count)
    await asyncio.to_thread(DBOS.destroy)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_measure(sys.argv[1], int(sys.argv[2])))
