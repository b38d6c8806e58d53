"""What a measured process says of itself, and how much CPU PostgreSQL took meanwhile."""

import json
import os
from pathlib import Path

STARTS = "starts to measure"
MEASURED = "measured "
AT_ONCE = 20
POLL_SECONDS = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")


def say(**figures: float) -> None:
    print(MEASURED + json.dumps(figures), flush=True)


def told(line: str) -> dict[str, float]:
    figures: dict[str, float] = json.loads(line.partition(MEASURED)[2])
    return figures


def postgres_cpu_seconds(postmaster: int) -> float:
    """Of the postmaster, of those of its children that live, and of those that it has buried."""
    total = 0.0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            own = int(folder.name) == postmaster
            if own or int(fields[1]) == postmaster:
                total += (int(fields[11]) + int(fields[12])) / _TICKS
            if own:
                total += (int(fields[13]) + int(fields[14])) / _TICKS
    return total
