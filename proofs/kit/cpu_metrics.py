"""What a measured process says of itself, and how much CPU PostgreSQL took meanwhile."""

import json
import os
from pathlib import Path

START_LINE = "starts to measure"
FIGURES_PREFIX = "measured "
CONCURRENCY = 20
POLL_SECONDS = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")


def print_figures(**figures: float) -> None:
    print(FIGURES_PREFIX + json.dumps(figures), flush=True)


def parse_figures(line: str) -> dict[str, float]:
    figures: dict[str, float] = json.loads(line.partition(FIGURES_PREFIX)[2])
    return figures


def read_postgres_cpu_seconds(postmaster: int) -> float:
    """Of the postmaster, of those of its children that live, and of those that it has buried."""
    total = 0.0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            is_postmaster = int(folder.name) == postmaster
            if is_postmaster or int(fields[1]) == postmaster:
                total += (int(fields[11]) + int(fields[12])) / _TICKS
            if is_postmaster:
                total += (int(fields[13]) + int(fields[14])) / _TICKS
    return total
