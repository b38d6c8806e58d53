"""Prepare a program so that what runs is what was verified, whatever happens to its files meanwhile.

A binary is executed through the descriptor it was verified with. Pinned scripts and other files are copied while their
digests are computed, under their full paths, so that a script finds the listed files beside it and no others. In a
sandbox, the copies are seen at the paths of the files themselves.
"""

import contextlib
import os
import stat
import threading
import time
from pathlib import Path
from typing import BinaryIO, Final

from deputize.core.bounded_dict import BoundedDict
from deputize.core.errors import ToolRequiresSetup, UpstreamUnavailable
from deputize.core.settings import McpServerSettings
from deputize.core.value_types import frozen
from deputize.execute.upstreams.program_files import (
    FETCHERS,
    ProgramCommand,
    ProgramFileError,
    digest_path,
    digest_stream,
    find_pin,
    list_folders,
    list_pins,
    list_unpinned_files,
    resolve_command,
    resolve_path,
)
from deputize.sandboxes.port import SandboxFolder

# What every sandbox sees of the host.
_BASE: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
_RUNTIME_NAMES: Final = ("pyvenv.cfg", "bin", "lib", "lib64")
_SETTLED_NANOSECONDS: Final = 2_000_000_000
_binary_digests: BoundedDict[tuple[int, ...], str] = BoundedDict(64)
_binary_digests_lock = threading.Lock()


@frozen
class PreparedProgram:
    """A verified program: the descriptor to execute, which the caller closes, and its arguments."""

    descriptor: int
    arguments: tuple[str, ...]
    # Where it must start, if that is where it finds its code.
    folder: Path | None = None


def prepare_program(server: McpServerSettings, search_path: str, snapshot_folder: Path) -> PreparedProgram:
    """Verify a server's program and files, and copy the pinned files; raise why it must not be started."""
    try:
        command = resolve_command(server, search_path)
        pins = list_pins(server, command.program)
        if pins and "unpinned" not in server.accept_risk:
            _require_all_pinned(server, command, pins)
        descriptor = _open_binary(command.binary, pins, snapshot_folder)
    except ProgramFileError as error:
        raise _build_refusal(server, error) from error
    try:
        for path, digest in pins.items():
            if path != command.binary:
                _copy_pinned(path, digest, snapshot_folder)
        _set_group(snapshot_folder, server.uid)
    except (ProgramFileError, OSError) as error:
        os.close(descriptor)
        if isinstance(error, ProgramFileError):
            raise _build_refusal(server, error) from error
        raise
    arguments = [_replace_argument(server, each, pins, snapshot_folder) for each in command.arguments]
    # The program knows itself by its own path: virtual environments and multi-call programs depend on it.
    is_module_copied = command.module is not None and find_pin(command.module, pins) is not None
    return PreparedProgram(
        descriptor=descriptor,
        arguments=(command.binary, *arguments),
        folder=snapshot_folder / resolve_path(server, "").lstrip("/") if is_module_copied else None,
    )


@frozen
class SandboxedProgram:
    """A verified program: its command in a sandbox, what it must see there, and where it starts."""

    command: tuple[str, ...]
    folders: tuple[SandboxFolder, ...]
    working_folder: str


def prepare_sandboxed_program(server: McpServerSettings, search_path: str, snapshot_folder: Path) -> SandboxedProgram:
    """Verify a server's program and files, and list what it sees: `folders`, its interpreter, and what it runs.

    Pinned files are seen as copies, which every user can read who is given them.
    """
    try:
        command = resolve_command(server, search_path)
        pins = list_pins(server, command.program)
        if pins and "unpinned" not in server.accept_risk:
            _require_all_pinned(server, command, pins)
        binary = os.path.realpath(command.binary)
        os.close(_open_binary(command.binary, pins, snapshot_folder))
        for path, digest in pins.items():
            if path != command.binary:
                _copy_pinned(path, digest, snapshot_folder)
        _open_to_all(snapshot_folder)
    except ProgramFileError as error:
        raise _build_refusal(server, error) from error
    shared = [SandboxFolder(path=path, is_writable=each.write) for each, path in list_folders(server)]
    shared += [SandboxFolder(path=each) for each in _list_runtime_folders(command.binary, binary)]
    visible = dict.fromkeys([*(each.path for each in shared), *_BASE], "")
    has_own_name = find_pin(command.binary, visible) is not None
    # A link to the interpreter leads nowhere there, unless its folder is shown.
    for each in (binary, *(each for each in command.required_files if each != command.binary)):
        if find_pin(each, visible) is None:
            shared.append(SandboxFolder(path=each))
    for path in pins:
        # A binary has a copy only if others than root and the gateway could write to it.
        copy = snapshot_folder / path.lstrip("/")
        if copy.exists():
            shared.append(SandboxFolder(path=binary if path == command.binary else path, source=str(copy)))
    arguments = (_replace_argument(server, each, pins, Path("/")) for each in command.arguments)
    return SandboxedProgram(
        command=(command.binary if has_own_name else binary, *arguments),
        folders=tuple({each.path: each for each in shared}.values()),
        working_folder="/tmp" if server.folder is None else resolve_path(server, ""),  # its own
    )


def require_no_fetching(server: McpServerSettings) -> None:
    """Refuse a launcher that fetches what it runs at each start, in a sandbox without a network."""
    launcher = os.path.basename(server.command[0])
    if launcher not in FETCHERS or server.hosts or server.private_hosts:
        return
    package = next((each for each in server.command[1:] if not each.startswith("-")), "PACKAGE").removesuffix("@latest")
    raise ToolRequiresSetup(
        f"the server {server.name} was not started: {launcher} fetches its package at each start, and a sandbox has no "
        "network for that",
        advice=f"The operator must remove its table under [[servers]], and install the package once, pinned: deputize "
        f"servers install {FETCHERS[launcher]}:{package} --name {server.name}",
        nothing_happened=True,
    )


def _list_runtime_folders(*binaries: str) -> list[str]:
    """List where Python finds its library, and packages in a virtual environment, if that is not in the base.

    Nothing beside them: some make the environment in the folder of their project, where its keys are.
    """
    folders = [
        each
        for each in dict.fromkeys(os.path.dirname(os.path.dirname(each)) for each in binaries)
        if find_pin(each, dict.fromkeys(_BASE, "")) is None
        and (os.path.exists(f"{each}/pyvenv.cfg") or list(Path(each).glob("lib/python3*/os.py")))
    ]
    paths = (f"{each.rstrip('/')}/{name}" for each in folders for name in _RUNTIME_NAMES)
    return [each for each in paths if os.path.exists(each)]


def _build_refusal(server: McpServerSettings, error: ProgramFileError) -> UpstreamUnavailable:
    if error.reason == "was not found":
        advice = "The operator must install it, or correct command for this server under [[servers]]."
    else:
        advice = (
            f"The operator must review the file, then run deputize servers pin {server.name} and put the digests that "
            "it prints into deputize.toml."
        )
    return UpstreamUnavailable(
        f"the server {server.name} was not started: {error.path} {error.reason}", advice=advice, nothing_happened=True
    )


def _require_all_pinned(server: McpServerSettings, command: ProgramCommand, pins: dict[str, str]) -> None:
    for each in list_unpinned_files(server, command, pins):
        raise ProgramFileError(each, "has no digest in sha256 or files")


def _open_binary(path: str, pins: dict[str, str], snapshot_folder: Path) -> int:
    """Open the binary and verify it through the descriptor that is executed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ProgramFileError(path, f"cannot be read ({error.strerror})") from error
    with open(descriptor, "rb") as stream:
        facts = os.fstat(stream.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise ProgramFileError(path, "is not a regular file")
        digest = pins.get(path)
        if digest is None:
            return os.dup(stream.fileno())
        if facts.st_uid in (0, os.geteuid()) and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            _require_digest(path, _digest_binary(stream, facts), digest)
            return os.dup(stream.fileno())
        # Its owner could write to it after the check, so a private copy is executed.
        return _open_binary_copy(path, digest, stream, snapshot_folder)


def _digest_binary(stream: BinaryIO, facts: os.stat_result) -> str:
    """Compute the digest of a binary that only root and the gateway can write, once: some have 100 MB.

    A change sets the file's time of change, which only root can set back. A time that is only just past could be
    that of a later change as well.
    """
    key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    digest = _binary_digests.get(key)
    if digest is None:
        is_settled = time.time_ns() - facts.st_ctime_ns > _SETTLED_NANOSECONDS
        digest = digest_stream(stream)
        if is_settled:
            with _binary_digests_lock:
                _binary_digests.put(key, digest)
    return digest


def _open_binary_copy(path: str, digest: str, stream: BinaryIO, snapshot_folder: Path) -> int:
    copy = snapshot_folder / path.lstrip("/")
    copy.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o550), "wb") as target:
        actual_digest = digest_stream(stream, target.write)
    _require_digest(path, actual_digest, digest)
    return os.open(copy, os.O_RDONLY | os.O_CLOEXEC)


def _copy_pinned(path: str, digest: str, snapshot_folder: Path) -> None:
    """Copy a pinned file or folder into the snapshot, and refuse it if what was copied has another digest."""
    with contextlib.ExitStack() as stack:
        targets: dict[str, BinaryIO] = {}

        def keep(source: str, content: bytes | None, is_link: bool) -> None:
            copy = snapshot_folder / source.lstrip("/")
            if is_link:
                copy.parent.mkdir(parents=True, exist_ok=True)
                if not copy.is_symlink():
                    copy.symlink_to((content or b"").decode())
            elif content is None:
                for last_target in targets.values():
                    last_target.close()
                targets.clear()
                copy.parent.mkdir(parents=True, exist_ok=True)
                # A file that is pinned alone and within its folder is written again: both digests must hold.
                copy.unlink(missing_ok=True)
                descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o440)
                targets[source] = stack.enter_context(open(descriptor, "wb"))
            else:
                targets[source].write(content)

        _require_digest(path, digest_path(path, keep), digest)


def _require_digest(path: str, actual_digest: str, digest: str) -> None:
    if actual_digest != digest:
        raise ProgramFileError(
            path, f"changed since it was pinned (SHA-256 {digest[:12]}… then, {actual_digest[:12]}… now)"
        )


def _set_group(snapshot_folder: Path, uid: int | None) -> None:
    """Let the program's own user read its files, and write none."""
    if uid is None:
        return
    for folder, _, names in os.walk(snapshot_folder):
        os.chown(folder, -1, uid)
        os.chmod(folder, 0o750)
        for name in names:
            path = os.path.join(folder, name)
            os.chown(path, -1, uid, follow_symlinks=False)
            if not os.path.islink(path):
                # Whatever the gateway's umask is.
                os.chmod(path, 0o550 if os.access(path, os.X_OK) else 0o440)


def _open_to_all(snapshot_folder: Path) -> None:
    """Let the user of a sandbox read the copies, whoever that is. Nobody else gets to their folder."""
    for folder, _, names in os.walk(snapshot_folder):
        os.chmod(folder, 0o755)
        for path in (os.path.join(folder, each) for each in names):
            if not os.path.islink(path):
                os.chmod(path, 0o555 if os.access(path, os.X_OK) else 0o444)


def _replace_argument(server: McpServerSettings, argument: str, pins: dict[str, str], snapshot_folder: Path) -> str:
    """Replace the path of a pinned file, alone or after `=`, by that of its copy."""
    option, separator, value = argument.partition("=") if argument.startswith("-") else ("", "", argument)
    if not value or value.startswith("-"):
        return argument
    path = resolve_path(server, value)
    if find_pin(path, pins) is None or not (copy := snapshot_folder / path.lstrip("/")).exists():
        return argument
    return f"{option}{separator}{copy}"
