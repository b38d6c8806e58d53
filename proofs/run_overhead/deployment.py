"""A deploy in mid-run: workers of two releases of a project side by side, then the old ones told to stop in turn."""

import asyncio
import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proofs.kit.report import Figure
from proofs.kit.run_submitter import Job
from proofs.kit.worker_pool import WorkerPool
from proofs.run_overhead.testbed import PartResult, Testbed

STEPS = 3
_NONE_OPEN = (
    "select not exists (select from deputize.calls where id = any($1::uuid[]) and state in ('queued', 'running'))"
)
_ROWS = "select version, state, owner_epoch from deputize.calls where id = any($1::uuid[])"


async def measure_deploy(testbed: Testbed) -> PartResult:
    count = testbed.sandbox.pick_size(quick=100, full=500)
    old_pool = await testbed.start_pool(2, name="old")
    submitter = testbed.create_submitter()
    rng = random.Random(5)
    await submitter.submit_runs(_generate_jobs("before", count // 2, rng), lanes=6)
    new_pool = await _start_new_release(testbed)
    submit_task = asyncio.create_task(
        submitter.submit_runs(_generate_jobs("during", count - count // 2, rng), lanes=2, pace=0.02)
    )
    for slot in list(old_pool.workers):
        await _stop_worker(old_pool, slot)
    await submit_task
    ids = list(submitter.calls.values())
    await testbed.database.wait_until(_NONE_OPEN, ids, seconds=300)
    rows = await testbed.database.fetch(_ROWS, ids)
    effects = Counter(effect.call for effect in await testbed.ledger.list_effects())
    attempts = Counter(
        int(times) for key, times in (await testbed.ledger.count_attempts()).items() if key.partition(":")[0] in ids
    )
    await new_pool.stop_all()
    versions = Counter(str(row["version"]) for row in rows)
    testbed.sandbox.log(
        f"deploy: {dict(versions)}, {dict(Counter(row['state'] for row in rows))}, attempts {dict(attempts)}"
    )
    return PartResult(
        figures=judge_deploy(list(submitter.calls), [dict(row) for row in rows], effects, attempts),
        notes=[
            f"Deploy: {count} runs of three steps; two workers of an old release, then two of a new one beside them, "
            "then SIGTERM to the old ones in turn. Each run keeps the version of the tool it was asked for under.",
        ],
    )


def judge_deploy(
    labels: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    effect_counts: Mapping[str, int],
    attempt_counts: Mapping[int, int],
) -> dict[str, Figure]:
    """Judge runs by their rows and by the ledger; `attempt_counts` says how many steps were tried how often."""
    return {
        "deploy_runs": len(labels),
        "deploy_lost": sum(row["state"] != "succeeded" for row in rows)
        + sum(effect_counts.get(label, 0) != STEPS for label in labels),
        "deploy_repeated": sum(number for times, number in attempt_counts.items() if times > 1),
        "deploy_versions": len({row["version"] for row in rows}),
    }


def _generate_jobs(name: str, count: int, rng: random.Random) -> Iterator[Job]:
    for number in range(count):
        label = f"{name}-{number}"
        yield Job(label=label, tool="steps.book", arguments={"label": label, "delay_ms": rng.randrange(50, 300)})


async def _start_new_release(testbed: Testbed) -> WorkerPool:
    """The same project with a newer version of each tool."""
    folder = testbed.sandbox.folder / "release-2"
    shutil.copytree(testbed.gateway.folder, folder)
    for name in ("steps.py", "jobs.py"):
        file = folder / "tools" / name
        file.write_text(file.read_text().replace('namespace="', 'version="0.2.0", namespace="'))
    # A worker registers nothing: a gateway of the new release does, when it starts.
    port, metrics_port = testbed.sandbox.pick_free_port(), testbed.sandbox.pick_free_port()
    gateway = await testbed.sandbox.start_process(
        "release-2",
        [sys.executable, "-m", "deputize", "serve", "--no-worker"],
        env={
            **testbed.gateway.env,
            "DEPUTIZE_SERVER__PORT": str(port),
            "DEPUTIZE_SERVER__METRICS_PORT": str(metrics_port),
        },
        cwd=folder,
        ready_url=f"http://127.0.0.1:{port}/readyz",
        timeout=120,
    )
    await gateway.stop()
    return await testbed.start_pool(2, folder=folder, name="new")


async def _stop_worker(pool: WorkerPool, slot: int) -> None:
    worker = pool.workers.pop(slot)
    os.kill(worker.process.pid, signal.SIGTERM)
    await worker.process.wait_for_exit(60)
    await worker.process.close()
