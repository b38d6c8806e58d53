"""Keep the newest signed checkpoint of each tenant's log in a file outside the database, for each lineage.

A file is written after the commit of what it says, so it is never ahead of the database. PostgreSQL recovers a prefix
of its commits: a database that lacks a checkpoint of its own lineage went back in time. The files of a lineage that
ended stay, because they show what was signed and lost.
"""

import base64
import binascii
import contextlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deputize.core.config_error import ConfigError

_FOLDER: Final = "checkpoints"
_MAX_FILE_SIZE: Final = 1_000_000
_ROOT_SIZE: Final = 32
_PENDING_SUFFIX: Final = ".new"


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """A checkpoint of a tenant's log: the signed note, and its size and root."""

    tenant: str
    size: int
    root: bytes
    note: bytes


class CheckpointFiles:
    """The checkpoints that were signed while this machine watched, by lineage and tenant."""

    def __init__(self, folder: Path) -> None:
        """Read the checkpoints in the lineage folder; one that cannot be read is an error, not a missing one."""
        self.folder = folder / _FOLDER
        self._checkpoints = {path.name: _read_lineage(path) for path in _list_folder(self.folder) if path.is_dir()}
        self._unwritten: dict[tuple[str, str], SavedCheckpoint] = {}
        self._checked_lineages: set[str] = set()
        # `flush` runs in a thread.
        self._lock = threading.Lock()

    def get(self, lineage: str, tenant: str) -> SavedCheckpoint | None:
        """Return the newest checkpoint of a tenant's log in a lineage."""
        return self._checkpoints.get(lineage, {}).get(tenant)

    def list_expected(self, lineage: str) -> Sequence[SavedCheckpoint]:
        """List what a database of this lineage must contain: the newest of each tenant at first, then the last one."""
        checkpoints = list(self._checkpoints.get(lineage, {}).values())
        return checkpoints[-1:] if lineage in self._checked_lineages else checkpoints

    def confirm(self, lineage: str) -> None:
        """Note that a database of this lineage contained all checkpoints: the last one stands for those before it."""
        self._checked_lineages.add(lineage)

    def put(self, lineage: str, checkpoint: SavedCheckpoint) -> None:
        """Remember a checkpoint whose commit was acknowledged; `flush` writes it."""
        checkpoints = self._checkpoints.setdefault(lineage, {})
        # The last one of the dict is the one that was committed last.
        checkpoints.pop(checkpoint.tenant, None)
        checkpoints[checkpoint.tenant] = checkpoint
        with self._lock:
            self._unwritten[lineage, checkpoint.tenant] = checkpoint

    def flush(self) -> None:
        """Write what is new and wait for the disk, each file as a whole or not at all; what fails is kept for later."""
        with self._lock:
            unwritten, self._unwritten = self._unwritten, {}
        try:
            folders = {self.folder / lineage for lineage, _ in unwritten}
            for folder in folders:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for (lineage, tenant), checkpoint in unwritten.items():
                _replace_file(self.folder / lineage / tenant, checkpoint.note)
            for folder in folders:
                _sync_folder(folder)
        except OSError:
            with self._lock:
                # Not over what came meanwhile.
                self._unwritten = {**unwritten, **self._unwritten}
            raise


def parse_saved_note(tenant: str, note: bytes) -> SavedCheckpoint:
    """Parse size and root of a signed checkpoint; raise `ValueError` if it is not one."""
    _, size, root_text, *_ = note.decode().split("\n")
    root = base64.b64decode(root_text, validate=True)
    if len(root) != _ROOT_SIZE or not (size.isascii() and size.isdigit()):
        raise ValueError("this is not a checkpoint")
    return SavedCheckpoint(tenant=tenant, size=int(size), root=root, note=note)


def _list_folder(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(folder.iterdir())
    return []


def _read_lineage(folder: Path) -> dict[str, SavedCheckpoint]:
    paths = [path for path in _list_folder(folder) if path.suffix != _PENDING_SUFFIX]
    # The one that was written last is the last one of the dict.
    return {path.name: _read_file(path) for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns)}


def _read_file(path: Path) -> SavedCheckpoint:
    try:
        with path.open("rb") as file:
            return parse_saved_note(path.name, file.read(_MAX_FILE_SIZE))
    except (ValueError, binascii.Error) as error:
        raise ConfigError(
            f"The checkpoint in {path} is damaged, so it is not known what the log of this tenant must contain. Check "
            "that the database was not restored to an earlier time, then delete the file."
        ) from error


def _replace_file(path: Path, content: bytes) -> None:
    pending = path.with_name(f"{path.name}{_PENDING_SUFFIX}")
    descriptor = os.open(pending, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    pending.replace(path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
