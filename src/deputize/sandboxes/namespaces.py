"""Build the command line of bubblewrap: what surrounds a program in the backend `namespaces`.

Every namespace is new, the root is empty but for a read-only base, the environment has a few fixed variables, and
nothing can be written but `/tmp`, `/dev/shm` and the folder of its results, which have a size, and the folders that are
shared for it. The program runs without capabilities, as nobody, behind the filter of system calls.
"""

import os
import shutil
from typing import Final

from deputize.sandboxes.port import ResultFolder, SandboxFolder, SandboxSpec

# Set-user-id programs elsewhere in PATH must not be taken for it.
PROGRAM_FOLDERS: Final = "/usr/local/bin:/usr/bin:/bin"
_NOBODY: Final = "65534"
SHARED_MEMORY_BYTES: Final = 16_777_216
BASE_LINKS: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
# What programs need of /etc: how libraries are found, alternatives of programs, certificates, zone of time.
ETC_FILES: Final = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs", "/etc/localtime", "/etc/mime.types")
# Folders in which sockets, processes or devices of the host would be reached through a read-only view.
_NEVER_SHARED: Final = ("/", "/proc", "/sys", "/dev", "/run", "/var/run", "/var")
ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}  # its own


class FolderRefused(Exception):
    """A folder must not be shown to a sandbox."""


def find_bubblewrap() -> str | None:
    """Find bubblewrap's program."""
    return shutil.which("bwrap", path=PROGRAM_FOLDERS)


def build_options(
    spec: SandboxSpec, *, own_folder: str, seccomp: int, status: int, program: int | None, gate: int | None
) -> list[str]:
    """Build bubblewrap's options for descriptors of the filter, its status, the pinned program, and what it waits for.

    `own_folder` is the supervisor's: a program that found its socket there could start sandboxes with other folders.
    """
    options = [
        "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
        "--disable-userns", "--uid", _NOBODY, "--gid", _NOBODY, "--cap-drop", "ALL", "--hostname", "sandbox",
        "--die-with-parent", "--new-session", "--seccomp", str(seccomp), "--json-status-fd", str(status),
    ]  # fmt: skip
    if spec.has_base:
        options += _build_base()
    options += ["--size", str(spec.limits.storage_bytes), "--perms", "1777", "--tmpfs", "/tmp"]  # its own
    shown: list[SandboxFolder | ResultFolder] = [*spec.folders]
    if spec.result_folder is not None:
        shown.append(spec.result_folder)
    # What lies in another folder is shown on top of it.
    for each in sorted(shown, key=lambda folder: os.path.normpath(folder.path).count("/")):
        require_shareable(each.path, os.path.normpath(each.path))
        if isinstance(each, ResultFolder):
            options += ["--size", str(each.size_bytes), "--perms", "0755", "--tmpfs", each.path]
            continue
        source = resolve_folder(each.source or each.path, own_folder)
        options += ["--bind" if each.is_writable else "--ro-bind", source, each.path]
    if spec.working_folder != "/tmp":  # its own
        require_shareable(spec.working_folder, os.path.normpath(spec.working_folder))
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
    options += ["--proc", "/proc", "--dev", "/dev"]
    return [*options, "--size", str(SHARED_MEMORY_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm"]  # its own


def resolve_folder(path: str, own_folder: str) -> str:
    """Find what a folder leads to; raise FolderRefused if that must not be shown."""
    real, own = os.path.realpath(path), os.path.realpath(own_folder)
    if os.path.commonpath((real, own)) in (real, own):
        raise FolderRefused(
            f"the folder {path} is never shown to a sandbox: it holds the supervisor's socket, or is beside it"
        )
    require_shareable(path, real)
    return real


def require_shareable(path: str, real: str) -> None:
    """Raise FolderRefused for what leads to processes, devices or sockets of the host."""
    is_host = real in _NEVER_SHARED or real.startswith(("/proc/", "/sys/", "/dev/", "/run/"))
    if not os.path.isabs(path) or (is_host and not real.startswith("/dev/shm/")):  # files like others
        raise FolderRefused(f"the folder {path} is never shown to a sandbox: it leads to processes, devices or sockets")
