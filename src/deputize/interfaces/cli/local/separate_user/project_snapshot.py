"""Read a project's files as they are at one moment, within bounds, and without following a link anywhere.

The files belong to an account that may try to trick the reader: it can plant links and pipes, swap a folder for a link
while it is read, or write files without end. So folders are opened one inside the other, never by path; what is not a
plain file is refused; and what was read is what is compared and used, not what is there later.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from deputize.core.config_error import ConfigError
from deputize.core.display_text import to_display_text

MAX_FILES = 2_000
MAX_FILE_BYTES = 4 * 2**20
MAX_TOTAL_BYTES = 64 * 2**20
MAX_ENTRIES = 20_000
MAX_DEPTH = 20
# Folders whose content is made by programs. Hidden folders, such as .git and .deputize, are left out too.
_LEFT_OUT = frozenset({"__pycache__", "node_modules"})
_VIRTUAL_ENVIRONMENT_MARK = "pyvenv.cfg"
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe must not block the reader: it is opened without waiting for a writer, and then refused.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectFile:
    """One file of a snapshot."""

    content: bytes = field(repr=False)
    is_executable: bool = False

    @property
    def digest(self) -> str:
        """The digest of the content and of the right to execute it."""
        return hashlib.sha256(self.content).hexdigest() + ("+x" if self.is_executable else "")


Snapshot = Mapping[str, ProjectFile]
"""Files by their path relative to the project."""

Digests = Mapping[str, str]
"""Digests of files by their path relative to the project."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileChange:
    """A file that differs from the confirmed one."""

    path: str
    kind: Literal["added", "changed", "removed"]


def compare_files(digests: Digests, snapshot: Snapshot) -> list[FileChange]:
    """List what differs from the confirmed files, which are given by their digests."""
    changes = [FileChange(path=path, kind="removed") for path in digests if path not in snapshot]
    for path, file in snapshot.items():
        if path not in digests:
            changes.append(FileChange(path=path, kind="added"))
        elif digests[path] != file.digest:
            changes.append(FileChange(path=path, kind="changed"))
    return sorted(changes, key=lambda change: change.path)


def read_snapshot(descriptor: int) -> dict[str, ProjectFile]:
    """Read all files below an open folder; refuse links, special files and more than the bounds allow."""
    reader = _SnapshotReader()
    reader.read_folder(descriptor, "", 0)
    return dict(sorted(reader.files.items()))


class _SnapshotReader:
    def __init__(self) -> None:
        self.files: dict[str, ProjectFile] = {}
        self._entry_count = 0
        self._byte_count = 0

    def read_folder(self, descriptor: int, prefix: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ConfigError(f"{_show(prefix)} is nested deeper than {MAX_DEPTH} folders: move it out of the project.")
        for name in self._list_names(descriptor, prefix):
            path = f"{prefix}{name}"
            if not name.isprintable():
                raise ConfigError(f"{_show(path)} has unreadable characters in its name: rename or delete it.")
            try:
                self._read_entry(descriptor, name, path, depth)
            except OSError as error:
                raise ConfigError(
                    f"{_show(path)} cannot be read, or changed while it was read ({error.strerror}): "
                    "check its permissions, and start again."
                ) from None

    def _list_names(self, descriptor: int, prefix: str) -> list[str]:
        names: list[str] = []
        with os.scandir(descriptor) as entries:
            for entry in entries:
                self._entry_count += 1
                if self._entry_count > MAX_ENTRIES:
                    raise ConfigError(
                        f"{_show(prefix or '.')} and the folders before it have more than {MAX_ENTRIES:,} entries: "
                        "move what is not part of the project out of its folder."
                    )
                names.append(entry.name)
        return sorted(names)

    def _read_entry(self, folder: int, name: str, path: str, depth: int) -> None:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            if name.startswith(".") or name in _LEFT_OUT:
                return
            with _open_at(folder, name, _FOLDER_FLAGS) as descriptor:
                if not _is_virtual_environment(descriptor):
                    self.read_folder(descriptor, f"{path}/", depth + 1)
        elif stat.S_ISREG(mode):
            with _open_at(folder, name, _FILE_FLAGS) as descriptor:
                self._read_file(descriptor, path)
        else:
            raise _build_refusal(path, mode)

    def _read_file(self, descriptor: int, path: str) -> None:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise _build_refusal(path, mode)
        if len(self.files) >= MAX_FILES:
            raise ConfigError(
                f"The project has more than {MAX_FILES:,} files: move what is not part of it out of its folder, or "
                "into a hidden one."
            )
        with os.fdopen(os.dup(descriptor), "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        self._byte_count += len(content)
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError(
                f"{_show(path)} is larger than {MAX_FILE_BYTES // 2**20} MB: move it out of the project's folder, or "
                "into a hidden one."
            )
        if self._byte_count > MAX_TOTAL_BYTES:
            raise ConfigError(
                f"The project's files have more than {MAX_TOTAL_BYTES // 2**20} MB together: move what is not part of "
                "it out of its folder, or into a hidden one."
            )
        self.files[path] = ProjectFile(content=content, is_executable=bool(mode & stat.S_IXUSR))


@contextmanager
def _open_at(folder: int, name: str, flags: int) -> Iterator[int]:
    """Open a name inside an open folder for the duration of a block."""
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_virtual_environment(descriptor: int) -> bool:
    try:
        os.stat(_VIRTUAL_ENVIRONMENT_MARK, dir_fd=descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _build_refusal(path: str, mode: int) -> ConfigError:
    if stat.S_ISLNK(mode):
        return ConfigError(
            f"{_show(path)} is a symbolic link, which is not followed: put the file itself in its place, or delete it."
        )
    return ConfigError(f"{_show(path)} is neither a file nor a folder: delete it, or move it out of the project.")


def _show(path: str) -> str:
    return to_display_text(path, 200)
