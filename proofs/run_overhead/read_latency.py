"""Interactive reads at a fixed rate, while workers carry runs on the same PostgreSQL, and while they do not."""

import asyncio
import time
from collections.abc import Iterator

import orjson

from proofs.kit.load import Target, run_wrk
from proofs.kit.open_loop import run_open_loop
from proofs.kit.run_submitter import Job, RunSubmitter
from proofs.recovery.judge import compute_percentile
from proofs.run_overhead.testbed import PartResult, Testbed

_NONE_OPEN = "select not exists (select from deputize.calls where state in ('queued', 'running'))"
_BODY = {"tool": "jobs.rest", "arguments": {"label": "read"}}


async def measure_read_latency(testbed: Testbed) -> PartResult:
    sandbox = testbed.sandbox
    seconds, rounds = sandbox.pick_size(quick=4, full=20), sandbox.pick_size(quick=1, full=5)
    pool = await testbed.start_pool(2)
    target = _build_read_target(testbed)
    capacity = (await run_wrk(target, seconds=sandbox.pick_size(quick=3, full=10), connections=16)).per_second
    run_capacity = await _measure_run_capacity(testbed, sandbox.pick_size(quick=150, full=1500))
    ratios, alone_p99s, p99s_beside_runs = [], [], []
    for number in range(rounds):
        alone_durations = await run_open_loop(target, rate=0.3 * capacity, seconds=seconds)
        run_task = asyncio.create_task(_submit_runs(testbed, f"beside-{number}", 0.25 * run_capacity, seconds + 2))
        await asyncio.sleep(1)
        durations_beside_runs = await run_open_loop(target, rate=0.3 * capacity, seconds=seconds)
        await run_task
        await testbed.database.wait_until(_NONE_OPEN, seconds=120)
        alone_p99s.append(compute_percentile(alone_durations, 0.99))
        p99s_beside_runs.append(compute_percentile(durations_beside_runs, 0.99))
        ratios.append(p99s_beside_runs[-1] / alone_p99s[-1])
        sandbox.log(
            f"reads: p99 {1000 * alone_p99s[-1]:.1f} ms alone, {1000 * p99s_beside_runs[-1]:.1f} ms beside runs"
        )
    await pool.stop_all()
    return PartResult(
        figures={
            "reads_per_second": round(0.3 * capacity),
            "runs_per_second_beside": round(0.25 * run_capacity, 1),
            "read_p99_ms_alone": round(1000 * compute_percentile(alone_p99s, 0.5), 2),
            "read_p99_ms_beside_runs": round(1000 * compute_percentile(p99s_beside_runs, 0.5), 2),
            "read_p99_beside_runs_of_alone": round(compute_percentile(ratios, 0.5), 3),
        },
        # One short round is at the mercy of whatever else the machine does.
        bars={"read_p99_beside_runs_of_alone": ("<=", 1.5 if sandbox.full else 5.0)},
        notes=[
            "Reads: at 30% of what wrk got out of the gateway, each sent when it is due whatever became of those "
            "before, and runs at 25% of what two workers carried at most. Client, gateway, workers and PostgreSQL "
            "share the cores.",
        ],
    )


def _build_read_target(testbed: Testbed) -> Target:
    headers = {"authorization": f"Bearer {testbed.issuer.issue_token('ann')}", "content-type": "application/json"}
    return Target(url=f"{testbed.gateway.url}/v1/calls", headers=headers, body=orjson.dumps(_BODY))


def _generate_jobs(name: str, count: int) -> Iterator[Job]:
    for number in range(count):
        yield Job(label=f"{name}-{number}", tool="jobs.mark", arguments={"label": f"{name}-{number}"})


async def _measure_run_capacity(testbed: Testbed, count: int) -> float:
    began = time.monotonic()
    await testbed.create_submitter().submit_runs(_generate_jobs("most", count), lanes=8)
    await testbed.database.wait_until(_NONE_OPEN, seconds=300)
    return count / (time.monotonic() - began)


async def _submit_runs(testbed: Testbed, name: str, rate: float, seconds: float) -> None:
    submitter: RunSubmitter = testbed.create_submitter()
    count = int(rate * seconds)
    await submitter.submit_runs(_generate_jobs(name, count), lanes=2, pace=2 / rate)
