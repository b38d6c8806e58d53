"""CPU per run, beside the bare engine doing the same one step: two processes in turn, each carrying its own."""

import os
import statistics
import sys
from pathlib import Path

from deputize.store.migrate import upgrade_async
from proofs.fleet.measured import MEASURED, STARTS, postgres_cpu_seconds, told
from proofs.fleet.site import Part, Site

_ROOT = Path(__file__).resolve().parents[2]


async def cost(site: Site) -> Part:
    world = site.world
    count, rounds = world.size(quick=200, full=1500), world.size(quick=1, full=5)
    # A database of its own: the two would be one application's to each other.
    site.postgres.sql("create database bare", database="postgres")
    elsewhere = site.postgres.dsn_for("bare")
    await upgrade_async(elsewhere)
    ratios, own_ms, bare_ms, together = [], [], [], []
    for number in range(rounds):
        bare = await _measured(site, f"bare-{number}", ["proofs.fleet.bare_engine", elsewhere, str(count)])
        own = await _measured(site, f"own-{number}", ["proofs.fleet.own_engine", str(count)])
        bare_ms.append(bare[0])
        own_ms.append(own[0])
        ratios.append(own[0] / bare[0])
        together.append(sum(own) / sum(bare))
        world.say(
            f"CPU per run: {own[0]:.2f} ms, bare {bare[0]:.2f} ms; PostgreSQL's {own[1]:.2f} and {bare[1]:.2f} ms"
        )
    return Part(
        figures={
            "cpu_per_run_of_bare": round(statistics.median(ratios), 3),
            "cpu_ms_per_run": round(statistics.median(own_ms), 2),
            "cpu_ms_per_bare_run": round(statistics.median(bare_ms), 2),
            "cpu_with_postgres_per_run_of_bare": round(statistics.median(together), 3),
        },
        # Time that a host takes from its guests is counted as theirs: where there is much of it, a ratio says little.
        bars=dict.fromkeys(
            ("cpu_per_run_of_bare", "cpu_with_postgres_per_run_of_bare"), ("<=", 1.3 if world.full else 5.0)
        ),
        notes=[
            f"CPU: {count} runs of a tool that does nothing, {rounds} rounds in turn; time of the one process "
            "that submits, queues, carries and records them, against one that enqueues and carries one-step workflows.",
        ],
    )


async def _measured(site: Site, name: str, command: list[str]) -> tuple[float, float]:
    """Milliseconds per run: the process's own, and PostgreSQL's."""
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    child = await site.world.start(
        name, [sys.executable, "-m", *command], env={**site.env, "PYTHONPATH": path}, cwd=site.gateway.folder
    )
    await child.line(STARTS, timeout=60)
    before = postgres_cpu_seconds(site.postgres.pid)
    figures = told(await child.line(MEASURED, timeout=180))
    after = postgres_cpu_seconds(site.postgres.pid)
    await child.end()
    return 1000 * figures["cpu_seconds"] / figures["count"], 1000 * (after - before) / figures["count"]
