"""The durable engine by itself: the same steps, enqueued and carried in one process, and nothing around them.

python -m proofs.run_overhead.bare_engine DSN COUNT STEPS
"""

import asyncio
import sys
import time
from typing import Any

import uvloop
from dbos import DBOS, DBOSPortableJSONSerializer, SetEnqueueOptions, SetWorkflowID

from deputize.core.clock import Clock
from proofs.kit.cpu_metrics import CONCURRENCY, POLL_SECONDS, START_LINE, print_figures

QUEUE = "bare"


async def _measure_engine(dsn: str, count: int, steps: int) -> None:
    clock, done_count = Clock(), 0
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

    async def mark_step(label: str) -> dict[str, str]:
        return {"label": label}

    step = DBOS.step(name="mark")(mark_step)

    async def run_steps(label: str) -> dict[str, str]:
        nonlocal done_count
        answer = {"label": label}
        for _ in range(steps):
            answer = await step(answer["label"])
        done_count += 1
        return answer

    workflow = DBOS.workflow(name="bare")(run_steps)
    DBOS.listen_queues([QUEUE])
    DBOS.launch()
    await DBOS.register_queue_async(
        QUEUE, worker_concurrency=CONCURRENCY, partition_worker_concurrency=CONCURRENCY * 3 // 4,
        polling_interval_sec=POLL_SECONDS,
    )  # fmt: skip

    async def enqueue_run(label: str) -> None:
        with SetWorkflowID(clock.new_id()), SetEnqueueOptions(priority=5, queue_partition_key="acme"):
            await DBOS.enqueue_workflow_async(QUEUE, workflow, label)

    await asyncio.sleep(2)
    print(START_LINE, flush=True)
    began, cpu = time.monotonic(), time.process_time()
    pending = iter(range(count))

    async def run_lane() -> None:
        for number in pending:
            await enqueue_run(f"mark-{number}")

    await asyncio.gather(*(run_lane() for _ in range(16)))
    while done_count < count:  # noqa: ASYNC110 -- it is the engine's threads that change it
        await asyncio.sleep(0.05)
    print_figures(cpu_seconds=time.process_time() - cpu, seconds=time.monotonic() - began, count=count)
    await asyncio.to_thread(DBOS.destroy)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_measure_engine(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
