"""Run a program on gVisor: on a kernel in user space, which itself may make few system calls of the host.

`runsc` takes a bundle, a folder with the root and a description of the process, and keeps its state in files. All of it
lies below the supervisor's folder, one folder for each sandbox, and is removed with it; the next supervisor removes
what one that was killed has left. As a plain user, it makes its namespaces itself: the bundle names no user namespace.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from deputize.sandboxes.namespaces import (
    BASE_LINKS,
    ENVIRONMENT,
    ETC_FILES,
    PROGRAM_FOLDERS,
    SHARED_MEMORY_BYTES,
    require_shareable,
)
from deputize.sandboxes.port import SandboxLimits, SandboxSpec

# The first release of this platform as the default.
_OLDEST_RELEASE: Final = 20_230_801
_VERSION_SECONDS: Final = 10.0
_RELEASE: Final = re.compile(r"\b(20\d{6})\b")
_NOBODY: Final = 65_534
# What it exits with if it could not start the program, or lost it; a program that exits so leaves no message.
_FAILURE_CODE: Final = 128
# The kernel in user space, and its threads on the host.
_OWN_MEMORY: Final = 64 * 1_048_576
_OWN_PROCESSES: Final = 128
_NAMESPACES: Final = ("pid", "network", "ipc", "uts", "mount")
_NOT_STARTED: Final = ("starting container", "creating container", "error loading spec")
_ID: Final = "program"


def find_runsc() -> str | None:
    """Find gVisor's program."""
    return shutil.which("runsc", path=PROGRAM_FOLDERS)


def find_obstacle(runsc: str | None) -> str | None:
    """Find out why gVisor cannot be used here, as far as that is known without starting a sandbox."""
    if runsc is None:
        return "gVisor (runsc) is not installed"
    try:
        told = subprocess.run(
            [runsc, "--version"], capture_output=True, text=True, check=False, env={}, timeout=_VERSION_SECONDS
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"gVisor (runsc) cannot be tried: {error}"
    release = _RELEASE.search(told)
    if release is not None and int(release[1]) < _OLDEST_RELEASE:
        return f"gVisor (runsc) is release {release[1]}, and {_OLDEST_RELEASE} or newer is needed"
    return None


def add_own_needs(limits: SandboxLimits) -> SandboxLimits:
    """Add to the limits of a program what its kernel needs on the host. Each of its threads has one there."""
    return replace(
        limits, memory_bytes=limits.memory_bytes + _OWN_MEMORY, processes=2 * limits.processes + _OWN_PROCESSES
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """The files of one sandbox, and where gVisor writes why it failed."""

    folder: Path
    log: int

    @classmethod
    def make(
        cls, folder: Path, spec: SandboxSpec, sources: Sequence[str], *, program: int | None, is_weak: bool
    ) -> "Bundle":
        """Write the bundle of a sandbox, as the user that gVisor runs as, with the program that was pinned, if any.

        `sources` say for each folder where it is found.
        """
        mounts = list(_list_mounts(spec, sources))
        for each in (folder / "rootfs", folder / "state"):
            each.mkdir(mode=0o711)
        if program is not None:
            copy = folder / "pinned"
            with open(program, "rb", closefd=False) as file:
                copy.write_bytes(file.read())
            copy.chmod(0o555)
            mounts.append(_bind(str(copy), spec.command[0]))
        if spec.has_base:
            for path in (each for each in BASE_LINKS if os.path.islink(each)):
                (folder / "rootfs" / path[1:]).symlink_to(os.readlink(path))
        (folder / "rootfs" / spec.working_folder[1:]).mkdir(mode=0o755, parents=True, exist_ok=True)
        description = folder / "config.json"
        description.touch(mode=0o600)
        description.write_text(json.dumps(_describe(spec, mounts, is_weak=is_weak)))
        return cls(folder=folder, log=os.memfd_create("deputize", os.MFD_CLOEXEC))

    @property
    def words(self) -> list[str]:
        """The command line, after its name."""
        return [
            "--root", str(self.folder / "state"), "--rootless", "--platform=systrap", "--network=none",
            "--ignore-cgroups", "--overlay2=none", f"--log=/proc/self/fd/{self.log}", "--log-format=json",
            "run", "--bundle", str(self.folder), _ID,
        ]  # fmt: skip

    def read_failure(self, code: int) -> str:
        """Read why gVisor itself failed, which exited with this code; empty if the program ended."""
        if code != _FAILURE_CODE:
            return ""
        words = os.pread(self.log, 4_096, 0).decode(errors="replace").splitlines()[:1]
        with contextlib.suppress(ValueError, KeyError, IndexError, TypeError):
            return str(json.loads(words[0])["msg"])
        return words[0] if words else ""

    def remove(self) -> None:
        """End what is left of the sandbox, and remove its files."""
        kill_left(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self.log)


def has_begun(failure: str) -> bool:
    """Tell whether anything of the program may have run before gVisor failed."""
    return not any(each in failure for each in _NOT_STARTED)


def kill_left(folder: Path) -> None:
    """Kill the processes of gVisor whose state is in or below a folder."""
    state = str(folder).encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path("/proc", name, "cmdline").read_bytes()
            if b"--network=none" in words and state + b"/" in words:
                os.kill(int(name), signal.SIGKILL)


def sweep(home: Path) -> None:
    """End the sandboxes of a supervisor that was killed, and remove their files."""
    if home.is_dir():
        kill_left(home)
        shutil.rmtree(home, ignore_errors=True)


def _list_mounts(spec: SandboxSpec, sources: Sequence[str]) -> Iterator[dict[str, Any]]:
    if spec.has_base:
        yield _bind("/usr", "/usr")
        for path in (*BASE_LINKS, *ETC_FILES):
            if os.path.exists(path) and not (path in BASE_LINKS and os.path.islink(path)):
                yield _bind(path, path)
        yield {"destination": "/proc", "type": "proc", "source": "proc"}
        yield _hold_in_memory("/dev/shm", SHARED_MEMORY_BYTES)  # its own
    yield _hold_in_memory("/tmp", spec.limits.storage_bytes)  # its own
    for each, source in sorted(zip(spec.folders, sources, strict=True), key=lambda folder: folder[0].path.count("/")):
        require_shareable(each.path, each.path)
        yield _bind(source, each.path, is_writable=each.is_writable)
    if spec.working_folder != "/tmp":  # its own
        require_shareable(spec.working_folder, spec.working_folder)


def _bind(source: str, path: str, *, is_writable: bool = False) -> dict[str, Any]:
    access = "rw" if is_writable else "ro"
    return {"destination": path, "type": "bind", "source": source, "options": ["rbind", access]}


def _hold_in_memory(path: str, size: int) -> dict[str, Any]:
    return {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": [f"size={size}", "mode=1777"]}


def _describe(spec: SandboxSpec, mounts: list[dict[str, Any]], *, is_weak: bool) -> dict[str, Any]:
    limits = {"RLIMIT_NPROC": spec.limits.processes, "RLIMIT_NOFILE": spec.limits.open_files, "RLIMIT_CORE": 1}
    if is_weak:
        limits["RLIMIT_AS"] = spec.limits.memory_bytes
    # What it writes into a folder must belong to the user that gVisor runs as, which is 0 inside, without capabilities.
    user = 0 if any(each.is_writable for each in spec.folders) else _NOBODY
    environment = {**ENVIRONMENT, "PWD": spec.working_folder, **spec.environment}
    return {
        "ociVersion": "1.0.2",
        "hostname": "sandbox",
        "root": {"path": "rootfs", "readonly": True},
        "mounts": mounts,
        "linux": {"namespaces": [{"type": each} for each in _NAMESPACES]},
        "process": {
            "args": list(spec.command),
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": spec.working_folder,
            "user": {"uid": user, "gid": user},
            "capabilities": {},
            "noNewPrivileges": True,
            "rlimits": [{"type": name, "soft": value, "hard": value} for name, value in limits.items()],
        },
    }
