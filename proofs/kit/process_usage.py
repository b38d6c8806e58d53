"""What a process holds: memory, open files, and other processes. Read from /proc, from outside."""

import os
from dataclasses import dataclass
from pathlib import Path

# Where a process's start stands behind its name in /proc/PID/stat.
_START_TIME_FIELD = 19
_USER_TIME_FIELD = 11


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessUsage:
    rss_mib: float
    open_files: int
    processes: int


def read_usage(pid: int) -> ProcessUsage:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return ProcessUsage(
        rss_mib=int(status["VmRSS"].split()[0]) / 1024,
        open_files=len(os.listdir(f"/proc/{pid}/fd")),
        processes=len(find_descendants(pid)),
    )


def find_descendants(pid: int) -> set[int]:
    """Everything it started that still runs, and what that started."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _read_stat(int(name))
            if fields is not None and fields[0] != "Z":
                parents[int(name)] = int(fields[1])
    pids, new_pids = set[int](), {pid}
    while new_pids:
        new_pids = {child for child, parent in parents.items() if parent in new_pids}
        pids |= new_pids
    return pids


def read_cpu_seconds(pid: int) -> float:
    """How much processor time a process has had; none if it is gone."""
    fields = _read_stat(pid)
    return 0.0 if fields is None else int(fields[_USER_TIME_FIELD]) / os.sysconf("SC_CLK_TCK")


ProcessIdentity = tuple[int, str]
"""A process told apart from a later one with the same number: by when it was started."""


def identify_process(pid: int) -> ProcessIdentity:
    fields = _read_stat(pid)
    return pid, "" if fields is None else fields[_START_TIME_FIELD]


def is_running(identity: ProcessIdentity) -> bool:
    fields = _read_stat(identity[0])
    return fields is not None and fields[0] != "Z" and fields[_START_TIME_FIELD] == identity[1]


def _read_stat(pid: int) -> list[str] | None:
    """State, parent and the rest; None for what is gone by now."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
