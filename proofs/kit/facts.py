"""Facts that make a figure worth keeping: which commit, which code, which machine. No hostname, no paths, no names."""

import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def read_commit_facts(root: Path = _ROOT) -> dict[str, object]:
    """The commit, and whether anything that could change a figure differs from it."""
    commit = _run_git(root, "rev-parse", "HEAD")
    changes = _run_git(root, "status", "--porcelain", "--", ".", ":(exclude)proofs/results")
    return {"commit": commit or "unknown", "dirty": commit is None or changes != ""}


def compute_digests(name: str, packages: Sequence[str], root: Path = _ROOT) -> dict[str, str]:
    """Compute a digest of each package of src/deputize that a proof covers, and of the proof's own files."""
    own = root / "proofs" / name
    digests = {package: _compute_digest(root / "src" / "deputize" / package) for package in packages}
    return {**digests, "proof": _compute_digest(own if own.is_dir() else own.with_suffix(".py"))}


def _compute_digest(path: Path) -> str:
    """Compute the digest of a file, or of all files in a folder with their names; empty if there is nothing."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    digest = hashlib.sha256()
    for file in sorted(each for each in files if "__pycache__" not in each.parts):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(path.parent).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:32] if files else ""


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
        # The clone may belong to another account than the one that runs the proof.
        command = ["git", "-c", "safe.directory=*", *arguments]
        result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()
