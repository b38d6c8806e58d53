"""Facts that make a figure worth keeping: which commit, which machine. No hostname, no paths, no names."""

import os
import platform
import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def read_commit_facts(root: Path = _ROOT) -> dict[str, object]:
    """The commit, and whether anything that could change a figure differs from it."""
    commit = _run_git(root, "rev-parse", "HEAD")
    changes = _run_git(root, "status", "--porcelain", "--", ".", ":(exclude)proofs/results")
    return {"commit": commit or "unknown", "dirty": commit is None or changes != ""}


def read_machine_facts(postgres_version: str | None) -> dict[str, object]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "postgres": postgres_version,
    }


def _run_git(root: Path, *arguments: str) -> str | None:
    """What git says, or None where there is no git, no repository or no commit."""
    try:
        result = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()
