"""Build the command line of bubblewrap: what surrounds a program in the backend `namespaces`.

Every namespace is new, the root is empty but for a read-only base, the environment has a few fixed variables, and
nothing can be written but `/tmp`, `/dev/shm` and the folder of its results, which have a size, and the folders that are
shared for it. The program runs without capabilities, as nobody, behind the filter of system calls.
"""

import os
import shutil
from collections.abc import Sequence
from typing import Final

from deputize.sandboxes.port import ResultFolder, SandboxFolder, SandboxSpec

# Set-user-id programs elsewhere in PATH must not be taken for it.
PROGRAM_FOLDERS: Final = "/usr/local/bin:/usr/bin:/bin"
_NOBODY: Final = "65534"
SHARED_MEMORY_BYTES: Final = 16_777_216
BASE_LINKS: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
# What programs need of /etc: how libraries are found, alternatives of programs, certificates, zone of time.
ETC_FILES: Final = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs", "/etc/localtime", "/etc/mime.types")
# No terminals: those of a sandbox would be taken from all others of the host.
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS: Final = {
    "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
}  # fmt: skip
_DEVICES_BYTES: Final = 65_536
# Folders in which sockets, processes or devices of the host would be reached through a read-only view.
_NEVER_SHARED: Final = ("/", "/proc", "/sys", "/dev", "/run", "/var/run", "/var")
ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}  # its own


class FolderRefused(Exception):
    """A folder must not be shown to a sandbox."""


def find_bubblewrap() -> str | None:
    """Find bubblewrap's program."""
    return shutil.which("bwrap", path=PROGRAM_FOLDERS)


def build_options(
    spec: SandboxSpec, sources: Sequence[str], *, seccomp: int, status: int, program: int | None, gate: int | None
) -> list[str]:
    """Build bubblewrap's options for descriptors of the filter, its status, the pinned program, and what it waits for.

    `sources` say for each folder where it is found.
    """
    options = [
        "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
        "--disable-userns", "--uid", _NOBODY, "--gid", _NOBODY, "--cap-drop", "ALL", "--hostname", "sandbox",
        "--die-with-parent", "--new-session", "--seccomp", str(seccomp), "--json-status-fd", str(status),
    ]  # fmt: skip
    if spec.has_base:
        options += _build_base()
    options += ["--size", str(spec.limits.storage_bytes), "--perms", "1777", "--tmpfs", "/tmp"]  # its own
    shown: list[tuple[SandboxFolder | ResultFolder, str]] = [*zip(spec.folders, sources, strict=True)]
    if spec.result_folder is not None:
        shown.append((spec.result_folder, ""))
    # What lies in another folder is shown on top of it.
    for each, source in sorted(shown, key=lambda folder: folder[0].path.count("/")):
        require_shareable(each.path, each.path)
        if isinstance(each, ResultFolder):
            options += ["--size", str(each.size_bytes), "--perms", "0755", "--tmpfs", each.path]
        else:
            options += ["--bind" if each.is_writable else "--ro-bind", source, each.path]
    if spec.working_folder != "/tmp":  # its own
        require_shareable(spec.working_folder, spec.working_folder)
        options += ["--dir", spec.working_folder]
    if gate is not None:
        options += ["--block-fd", str(gate)]
    if program is not None:
        options += ["--perms", "0555", "--ro-bind-data", str(program), spec.command[0]]
    if spec.has_base:
        options += ["--remount-ro", "/dev"]
    options += ["--remount-ro", "/", "--chdir", spec.working_folder, "--clearenv"]
    for name, value in {**ENVIRONMENT, **spec.environment}.items():
        options += ["--setenv", name, value]
    return options


def _build_base() -> list[str]:
    """Show what programs need of any host, and processes and devices of the sandbox's own."""
    options = ["--ro-bind", "/usr", "/usr"]
    for path in BASE_LINKS:
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            options += ["--ro-bind", path, path]
    for path in ETC_FILES:
        options += ["--ro-bind-try", path, path]
    options += ["--proc", "/proc", "--size", str(_DEVICES_BYTES), "--perms", "0755", "--tmpfs", "/dev"]
    for name in _DEVICES:
        options += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for name, target in _DEVICE_LINKS.items():
        options += ["--symlink", target, f"/dev/{name}"]
    return [*options, "--size", str(SHARED_MEMORY_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm"]  # its own


def find_shareable(descriptor: int, path: str, own_folder: str) -> str:
    """Find where an opened folder is; raise FolderRefused if it must not be shown.

    `own_folder` is the supervisor's: a program that found its socket there could start sandboxes with other folders.
    """
    real, own = os.readlink(f"/proc/self/fd/{descriptor}"), os.path.realpath(own_folder)
    require_shareable(path, real)
    if os.path.commonpath((real, own)) in (real, own):
        raise FolderRefused(
            f"the folder {path} is never shown to a sandbox: it holds the supervisor's socket, or is beside it"
        )
    return real


def require_shareable(path: str, real: str) -> None:
    """Raise FolderRefused for what leads to processes, devices or sockets of the host."""
    is_host = real in _NEVER_SHARED or real.startswith(("/proc/", "/sys/", "/dev/", "/run/"))
    if not os.path.isabs(path) or (is_host and not real.startswith("/dev/shm/")):  # files like others
        raise FolderRefused(f"the folder {path} is never shown to a sandbox: it leads to processes, devices or sockets")
