"""Interactive reads at a fixed rate, while workers carry runs on the same PostgreSQL, and while they do not."""

import asyncio
import itertools
import time
from collections.abc import Iterator

import orjson

from proofs.kit.declarations import get_declaration
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.load import Target, run_wrk
from proofs.kit.open_loop import run_open_loop
from proofs.kit.run_submitter import Job, RunSubmitter
from proofs.recovery.judge import compute_percentile
from proofs.run_overhead.testbed import PartResult, Testbed

_NONE_OPEN = "select not exists (select from deputize.calls where state in ('queued', 'running'))"
_CONTROL_READS, _MOST_CONTROL_RUNS = 20.0, 1000
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
        alone_p99, p99_beside_runs = await _measure_round(
            testbed, f"beside-{number}", read_rate=0.3 * capacity, run_rate=0.25 * run_capacity, seconds=seconds
        )
        await testbed.database.wait_until(_NONE_OPEN, seconds=120)
        alone_p99s.append(alone_p99)
        p99s_beside_runs.append(p99_beside_runs)
        ratios.append(p99_beside_runs / alone_p99)
    await pool.stop_all()
    return PartResult(
        figures={
            "reads_per_second": round(0.3 * capacity),
            "runs_per_second_beside": round(0.25 * run_capacity, 1),
            "read_p99_ms_alone": round(1000 * compute_percentile(alone_p99s, 0.5), 2),
            "read_p99_ms_beside_runs": round(1000 * compute_percentile(p99s_beside_runs, 0.5), 2),
            "read_p99_beside_runs_of_alone": round(compute_percentile(ratios, 0.5), 3),
        },
        notes=[
            "Reads: at 30% of what wrk got out of the gateway, each sent when it is due whatever became of those "
            "before, and runs at 25% of what two workers carried at most. Client, gateway, workers and PostgreSQL "
            "share the cores.",
        ],
    )


async def is_blocking_submit_caught(testbed: Testbed) -> bool:
    """Measure a gateway that blocks while it submits: its reads have to miss the bar, even that of the quick form."""
    await restart_as_variant(testbed.gateway, "run_overhead_blocking_submit")
    target, stop = _build_read_target(testbed), asyncio.Event()
    await run_wrk(target, seconds=1, connections=4)
    # The better of two: a machine with other work delays some of the few reads.
    alone_p99 = min([await _measure_reads(target, _CONTROL_READS, 1) for _ in range(2)])
    jobs = itertools.takewhile(lambda _: not stop.is_set(), _generate_jobs("blocking", _MOST_CONTROL_RUNS))
    run_task = asyncio.create_task(testbed.create_submitter().submit_runs(jobs, lanes=4))
    p99_beside_runs = await _measure_reads(target, _CONTROL_READS, 2)
    stop.set()
    await run_task
    testbed.sandbox.log(f"blocking: p99 {1000 * alone_p99:.1f} ms alone, {1000 * p99_beside_runs:.1f} ms beside runs")
    return is_disturbed(alone_p99, p99_beside_runs)


async def _measure_reads(target: Target, rate: float, seconds: float) -> float:
    return compute_percentile(await run_open_loop(target, rate=rate, seconds=seconds), 0.99)


def is_disturbed(alone_p99: float, p99_beside_runs: float) -> bool:
    """Tell whether reads beside runs miss the bar of the quick form, which allows more than the full one."""
    _, most = get_declaration("run_overhead").quick_bars["read_p99_beside_runs_of_alone"]
    return p99_beside_runs / alone_p99 > float(most)


async def _measure_round(
    testbed: Testbed, name: str, *, read_rate: float, run_rate: float, seconds: float
) -> tuple[float, float]:
    """Measure the p99 of reads in seconds, without and with runs that are submitted meanwhile."""
    target = _build_read_target(testbed)
    alone_p99 = await _measure_reads(target, read_rate, seconds)
    run_task = asyncio.create_task(_submit_runs(testbed, name, run_rate, seconds + 2))
    await asyncio.sleep(1)
    p99_beside_runs = await _measure_reads(target, read_rate, seconds)
    await run_task
    testbed.sandbox.log(f"reads: p99 {1000 * alone_p99:.1f} ms alone, {1000 * p99_beside_runs:.1f} ms beside runs")
    return alone_p99, p99_beside_runs


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
