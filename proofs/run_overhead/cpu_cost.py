"""CPU per run, beside the bare engine doing the same one step: two processes in turn, each carrying its own."""

import os
import statistics
import sys
from pathlib import Path

from deputize.store.migrate import upgrade_async
from proofs.kit.cpu_metrics import FIGURES_PREFIX, START_LINE, parse_figures, read_postgres_cpu_seconds
from proofs.run_overhead.testbed import PartResult, Testbed

_ROOT = Path(__file__).resolve().parents[2]


async def measure_cpu_cost(testbed: Testbed) -> PartResult:
    sandbox = testbed.sandbox
    count, rounds = sandbox.pick_size(quick=200, full=1500), sandbox.pick_size(quick=1, full=5)
    # A database of its own: the two would be one application's to each other.
    testbed.postgres.run_sql("create database bare", database="postgres")
    bare_dsn = testbed.postgres.dsn_for("bare")
    await upgrade_async(bare_dsn)
    ratios, own_ms, bare_ms, ratios_with_postgres = [], [], [], []
    for number in range(rounds):
        bare_cpu = await _measure_process(
            testbed, f"bare-{number}", ["proofs.run_overhead.bare_engine", bare_dsn, str(count)]
        )
        own_cpu = await _measure_process(testbed, f"own-{number}", ["proofs.run_overhead.own_engine", str(count)])
        bare_ms.append(bare_cpu[0])
        own_ms.append(own_cpu[0])
        ratios.append(own_cpu[0] / bare_cpu[0])
        ratios_with_postgres.append(sum(own_cpu) / sum(bare_cpu))
        sandbox.log(
            f"CPU per run: {own_cpu[0]:.2f} ms, bare {bare_cpu[0]:.2f} ms; PostgreSQL's {own_cpu[1]:.2f} and "
            f"{bare_cpu[1]:.2f} ms"
        )
    return PartResult(
        figures={
            "cpu_per_run_of_bare": round(statistics.median(ratios), 3),
            "cpu_ms_per_run": round(statistics.median(own_ms), 2),
            "cpu_ms_per_bare_run": round(statistics.median(bare_ms), 2),
            "cpu_with_postgres_per_run_of_bare": round(statistics.median(ratios_with_postgres), 3),
        },
        notes=[
            f"CPU: {count} runs of a tool that does nothing, {rounds} rounds in turn; time of the one process "
            "that submits, queues, carries and records them, against one that enqueues and carries one-step workflows.",
        ],
    )


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
