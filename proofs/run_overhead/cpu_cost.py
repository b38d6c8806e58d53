"""CPU per run of one step and per step of a flow, beside the bare engine doing the same: two processes in turn."""

import os
import statistics
import sys
from pathlib import Path

from deputize.store.migrate import upgrade_async
from proofs.kit.cpu_metrics import FIGURES_PREFIX, START_LINE, parse_figures, read_postgres_cpu_seconds
from proofs.kit.report import Figure
from proofs.run_overhead.testbed import PartResult, Testbed

_ROOT = Path(__file__).resolve().parents[2]
STEPS = 10  # as many as `jobs.mark_often` has


async def measure_cpu_cost(testbed: Testbed) -> PartResult:
    sandbox = testbed.sandbox
    # A database of its own: the two would be one application's to each other.
    testbed.postgres.run_sql("create database bare", database="postgres")
    await upgrade_async(testbed.postgres.dsn_for("bare"))
    run_count, flow_count = sandbox.pick_size(quick=200, full=1500), sandbox.pick_size(quick=20, full=150)
    rounds = sandbox.pick_size(quick=1, full=5)
    figures = {
        **await _compare_engines(testbed, "run", tool="jobs.mark", count=run_count, steps=1, rounds=rounds),
        **await _compare_engines(
            testbed, "flow_step", tool="jobs.mark_often", count=flow_count, steps=STEPS, rounds=rounds
        ),
    }
    return PartResult(
        figures=figures,
        notes=[
            f"CPU: {run_count} runs of a tool that does nothing, {flow_count} flows of {STEPS} such steps, {rounds} "
            "rounds in turn; time of the one process that submits, queues, carries and records them, against one that "
            "enqueues and carries workflows of as many steps.",
        ],
    )


async def _compare_engines(
    testbed: Testbed, unit: str, *, tool: str, count: int, steps: int, rounds: int
) -> dict[str, Figure]:
    own_ms, bare_ms, ratios, ratios_with_postgres = [], [], [], []
    bare_dsn = testbed.postgres.dsn_for("bare")
    for number in range(rounds):
        bare_command = ["proofs.run_overhead.bare_engine", bare_dsn, str(count), str(steps)]
        bare_cpu = await _measure_process(testbed, f"bare-{unit}-{number}", bare_command)
        own_command = ["proofs.run_overhead.own_engine", str(count), tool]
        own_cpu = await _measure_process(testbed, f"own-{unit}-{number}", own_command)
        bare_ms.append(bare_cpu[0] / steps)
        own_ms.append(own_cpu[0] / steps)
        ratios.append(own_cpu[0] / bare_cpu[0])
        ratios_with_postgres.append(sum(own_cpu) / sum(bare_cpu))
        testbed.sandbox.log(
            f"CPU of {count} x {tool}: {own_cpu[0]:.2f} ms each, bare {bare_cpu[0]:.2f} ms; PostgreSQL's "
            f"{own_cpu[1]:.2f} and {bare_cpu[1]:.2f} ms"
        )
    return {
        f"cpu_per_{unit}_of_bare": round(statistics.median(ratios), 3),
        f"cpu_ms_per_{unit}": round(statistics.median(own_ms), 2),
        f"cpu_ms_per_bare_{unit}": round(statistics.median(bare_ms), 2),
        f"cpu_with_postgres_per_{unit}_of_bare": round(statistics.median(ratios_with_postgres), 3),
    }


async def _measure_process(testbed: Testbed, name: str, command: list[str]) -> tuple[float, float]:
    """Milliseconds per run: the process's own, and PostgreSQL's."""
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    child = await testbed.sandbox.start_process(
        name, [sys.executable, "-m", *command], env={**testbed.env, "PYTHONPATH": path}, cwd=testbed.gateway.folder
    )
    await child.wait_for_line(START_LINE, timeout=60)
    before = read_postgres_cpu_seconds(testbed.postgres.pid)
    figures = parse_figures(await child.wait_for_line(FIGURES_PREFIX, timeout=180))
    after = read_postgres_cpu_seconds(testbed.postgres.pid)
    await child.close()
    return 1000 * figures["cpu_seconds"] / figures["count"], 1000 * (after - before) / figures["count"]
