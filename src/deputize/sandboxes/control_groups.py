"""Limit the memory, processes and processor time of sandboxes by control groups, of version 2 or 1.

The counters of a group tell what the kernel refused or killed. No exit status can tell that.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deputize.sandboxes.port import SandboxLimits

_CONTROLLERS: Final = ("memory", "pids", "cpu")
_CPU_PERIOD_US: Final = 100_000
# bubblewrap's own processes are in the group, too.
_OWN_PROCESSES: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlGroup:
    """The group of one sandbox: one folder, or with version 1 one for each controller."""

    folders: tuple[Path, ...]

    def set_limits(self, limits: SandboxLimits) -> None:
        """Set all limits; raise OSError if one of them is not taken."""
        quota, memory = int(limits.cpus * _CPU_PERIOD_US), str(limits.memory_bytes)
        self._write("pids.max", str(limits.processes + _OWN_PROCESSES))
        if self._is_version_2:
            self._write("memory.max", memory)
            self._write("memory.oom.group", "1")
            self._write("memory.swap.max", "0", is_optional=True)
            self._write("cpu.max", f"{quota} {_CPU_PERIOD_US}")
        else:
            self._write("memory.limit_in_bytes", memory)
            self._write("memory.memsw.limit_in_bytes", memory, is_optional=True)
            self._write("cpu.cfs_period_us", str(_CPU_PERIOD_US))
            self._write("cpu.cfs_quota_us", str(quota))

    def open_entrances(self) -> list[int]:
        """Open the files into which a process writes `0` to join."""
        return [os.open(each / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for each in self.folders]

    def count_memory_kills(self) -> int:
        """Count the processes that the kernel killed because the group's memory was used up."""
        return self._read_counter("memory.events" if self._is_version_2 else "memory.oom_control", "oom_kill")

    def count_refused_processes(self) -> int:
        """Count the processes and threads that were refused because the group had as many as it may."""
        return self._read_counter("pids.events", "max")

    def list_processes(self) -> set[int]:
        """List the processes that are still in the group."""
        pids: set[int] = set()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                pids.update(int(each) for each in (folder / "cgroup.procs").read_text().split())
        return pids

    def kill(self) -> None:
        """Kill all that is in the group."""
        if self._is_version_2:
            with contextlib.suppress(OSError):
                self._write("cgroup.kill", "1")
        for pid in self.list_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> bool:
        """Remove the group; False if something is still in it."""
        for folder in self.folders:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True

    @property
    def _is_version_2(self) -> bool:
        return len(self.folders) == 1

    def _write(self, name: str, value: str, *, is_optional: bool = False) -> None:
        folder = next((each for each in self.folders if (each / name).exists()), None)
        if folder is not None:
            (folder / name).write_text(value)
        elif not is_optional:
            raise FileNotFoundError(f"the control group has no {name}")

    def _read_counter(self, name: str, key: str) -> int:
        for folder in self.folders:
            with contextlib.suppress(OSError):
                lines = (each.split() for each in (folder / name).read_text().splitlines())
                return next((int(value) for word, value in lines if word == key), 0)
        return 0


class ControlGroups:
    """Where this process makes the groups of its sandboxes; find() tells whether it can."""

    def __init__(self, parents: tuple[Path, ...]) -> None:
        self._parents = parents
        self._count = 0

    @classmethod
    def find(cls, name: str) -> "ControlGroups | str":
        """Find where groups can be made, under this name, and try it; else say why not."""
        try:
            homes = _find_homes()
            for home in homes:
                if len(homes) == 1:
                    _enable_controllers(home)
                (home / name).mkdir(exist_ok=True)
            if len(homes) == 1:
                (homes[0] / name / "cgroup.subtree_control").write_text("+memory +pids +cpu")
            groups = cls(tuple(home / name for home in homes))
            group = groups.make(SandboxLimits())
            group.remove()
        except LookupError as error:
            return str(error)
        except OSError as error:
            return f"no control group can be made at {error.filename or 'its place'}: {error.strerror or error}"
        return groups

    def make(self, limits: SandboxLimits) -> ControlGroup:
        """Make a group with these limits; raise OSError if that fails."""
        self._count += 1
        group = ControlGroup(folders=tuple(each / str(self._count) for each in self._parents))
        try:
            for folder in group.folders:
                folder.mkdir()
            group.set_limits(limits)
        except OSError:
            group.remove()
            raise
        return group

    def remove(self) -> None:
        """Remove the folder of the groups, if none is left."""
        for each in self._parents:
            with contextlib.suppress(OSError):
                each.rmdir()

    def iterate_left(self) -> Iterator[ControlGroup]:
        """Iterate over the groups that an earlier supervisor left."""
        names = {folder.name for parent in self._parents for folder in parent.iterdir() if folder.is_dir()}
        for name in names:
            yield ControlGroup(folders=tuple(each / name for each in self._parents))


def _find_homes() -> tuple[Path, ...]:
    """Find this process's own group: one folder of version 2, or one for each controller of version 1."""
    mounts: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, folder, kind, options, *_ = line.split()
        if kind == "cgroup2":
            mounts[""] = Path(folder)
        elif kind == "cgroup":
            mounts.update({each: Path(folder) for each in options.split(",") if each in _CONTROLLERS})
    own_paths: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own_paths.update(dict.fromkeys(controllers.split(","), path))
    if "" in mounts:
        home = _locate(mounts[""], own_paths.get("", "/"))
        if set(_CONTROLLERS) <= set((home / "cgroup.controllers").read_text().split()):
            return (home,)
    if all(each in mounts for each in _CONTROLLERS):
        return tuple(_locate(mounts[each], own_paths.get(each, "/")) for each in _CONTROLLERS)
    raise LookupError("the control group of this process has no controllers for memory, pids and cpu")


def _locate(mount: Path, path: str) -> Path:
    # In a container the path may be the host's, and the mount begins at the container's own group.
    folder = mount / path.lstrip("/")
    return folder if folder.is_dir() else mount


def _enable_controllers(home: Path) -> None:
    """Let groups below this one have limits. A group with processes cannot, so this process moves one down."""
    control = home / "cgroup.subtree_control"
    if set(_CONTROLLERS) <= set(control.read_text().split()):
        return
    try:
        control.write_text("+memory +pids +cpu")
    except OSError:
        own = home / "deputize-supervisor"
        own.mkdir(exist_ok=True)
        (own / "cgroup.procs").write_text(str(os.getpid()))
        control.write_text("+memory +pids +cpu")
