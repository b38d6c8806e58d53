"""Search the host for what is left of sandboxes: processes, groups, mounts, namespaces, folders and descriptors."""

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from deputize.sandboxes.supervisor import list_marked_processes, mark_processes
from proofs.kit.process_usage import find_descendants
from proofs.sandbox_endings.judge import Left
from proofs.sandbox_endings.programs import MARK

_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_OWN_FILES = {"lock", "supervisor.sock"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """The host of one supervisor's folder.

    `mark` is in the environment of the programs that are looked for, and `temporary` the folder that gateways use for
    temporary files.
    """

    folder: Path
    mark: str
    temporary: Path

    def find_supervisor(self) -> int | None:
        words = ["-m", "deputize.sandboxes.supervisor", str(self.folder)]
        for pid in _list_pids():
            with contextlib.suppress(OSError):
                content = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                if content.split("\0")[1:4] == words:
                    return pid
        return None

    def list_sandboxes(self) -> list[int]:
        """List bubblewrap's processes."""
        return sorted(list_marked_processes(mark_processes(self.folder)))

    def list_used_sandboxes(self) -> list[int]:
        """List those with a marked program, the outermost process first; an interpreter that waits is not one."""
        programs = set(self._list_programs())
        return [each for each in self.list_sandboxes() if programs & find_descendants(each)]

    async def count_left(self, *, usual_descriptors: int | None = None, seconds: float = 30.0) -> Left:
        """Count what is left; what is just being torn down is waited for."""
        end = time.monotonic() + seconds
        while True:
            left = self._count(usual_descriptors)
            if left == Left() or time.monotonic() > end:
                return left
            await asyncio.sleep(0.1)

    def count_descriptors(self) -> int:
        """Count the descriptors of the supervisor, but those of nothing, which it inherits."""
        pid, count = self.find_supervisor(), 0
        for each in [] if pid is None else os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                count += os.readlink(f"/proc/{pid}/fd/{each}") != os.devnull
        return count

    def _count(self, usual_descriptors: int | None) -> Left:
        processes = {*self.list_sandboxes(), *self._list_programs()}
        groups = Path("/sys/fs/cgroup").rglob(f"{mark_processes(self.folder)}/*")
        own_files = {each.name for each in self.folder.iterdir()} if self.folder.exists() else set()
        more = 0 if usual_descriptors is None else self.count_descriptors() - usual_descriptors
        return Left(
            processes=len(processes),
            control_groups=len({each.name for each in groups if each.is_dir()}),
            mounts=self._count_mounts(),
            namespaces=len(self._list_namespaces()),
            folders=len(list(self.temporary.glob("deputize-*"))) + len(own_files - _OWN_FILES),
            descriptors=max(0, more),
        )

    def _count_mounts(self) -> int:
        """Count the mounts of the host that are of this folder, or have the names that bubblewrap gives its own."""
        words = (str(self.folder), "/newroot", "/oldroot", "/bindfile")
        lines = Path("/proc/self/mounts").read_text().splitlines()
        return sum(any(word in each for word in words) for each in lines)

    def _list_programs(self) -> list[int]:
        """List the processes that were started in a sandbox, whatever they call themselves now."""
        word, found = f"{MARK}={self.mark}".encode(), []
        for pid in _list_pids():
            with contextlib.suppress(OSError):
                if word in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
        return found

    def _list_namespaces(self) -> set[str]:
        """List the namespaces that are not the host's, and that the supervisor or its helpers hold."""
        pid = self.find_supervisor()
        if pid is None:
            return set()
        namespaces = set()
        for each in {pid, *find_descendants(pid)}:
            for name in _NAMESPACES:
                with contextlib.suppress(OSError):
                    namespaces.add(os.readlink(f"/proc/{each}/ns/{name}"))
            with contextlib.suppress(OSError):
                for descriptor in os.listdir(f"/proc/{each}/fd"):
                    with contextlib.suppress(OSError):
                        target = os.readlink(f"/proc/{each}/fd/{descriptor}")
                        if target.partition(":")[0] in _NAMESPACES:
                            namespaces.add(target)
        return namespaces - {os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES}


def _list_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
