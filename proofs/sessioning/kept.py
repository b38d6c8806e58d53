"""What a process holds: memory, open files, and other processes. Read from /proc, from outside.

Above: `sessions.py`. Below: Linux.
"""

import os
from dataclasses import dataclass
from pathlib import Path

# Where a process's start stands behind its name in /proc/PID/stat.
_BORN = 19


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    rss_mib: float
    open_files: int
    processes: int


def kept_by(pid: int) -> Kept:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return Kept(
        rss_mib=int(status["VmRSS"].split()[0]) / 1024,
        open_files=len(os.listdir(f"/proc/{pid}/fd")),
        processes=len(descendants(pid)),
    )


def descendants(pid: int) -> set[int]:
    """Everything it started that still runs, and what that started."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _stat(int(name))
            if fields is not None and fields[0] != "Z":
                parents[int(name)] = int(fields[1])
    found, fresh = set[int](), {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh}
        found |= fresh
    return found


Name = tuple[int, str]
"""A process told apart from a later one with the same number: by when it was started."""


def name_of(pid: int) -> Name:
    fields = _stat(pid)
    return pid, "" if fields is None else fields[_BORN]


def runs(name: Name) -> bool:
    fields = _stat(name[0])
    return fields is not None and fields[0] != "Z" and fields[_BORN] == name[1]


def _stat(pid: int) -> list[str] | None:
    """State, parent and the rest; None for what is gone by now."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
