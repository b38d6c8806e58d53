"""Watch the folders of a project. An event only wakes the loop up: what changed is found by reading the files."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

_IGNORED_NAMES = frozenset(
    {
        "__pycache__",
        ".git",
        ".hg",
        ".svn",
        ".tox",
        ".nox",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        "node_modules",
    }
)
_MAX_FOLDERS = 2_000
_STEP_MS, _DEBOUNCE_MS = 50, 200
# Also without an event: one may be lost while the folders that are watched change.
_RESCAN_MS = 500


def list_folders(base: Path, state_folder: Path) -> list[Path]:
    """List the folders of a project that may hold its files: no virtual environments, caches or state."""
    folders: list[Path] = []
    state_folder = state_folder.resolve()
    for place, names, files in os.walk(base):
        folder = Path(place)
        if "pyvenv.cfg" in files or folder.resolve() == state_folder:
            names.clear()
            continue
        folders.append(folder)
        if len(folders) == _MAX_FOLDERS:
            return folders
        names[:] = sorted(name for name in names if name not in _IGNORED_NAMES)
    return folders


async def watch_project(base: Path, state_folder: Path, stop: asyncio.Event) -> AsyncIterator[None]:
    """Yield at the start, and whenever something in the project's folders may have changed, until `stop` is set.

    Raises `ImportError` if the library that watches files is not installed.
    """
    from watchfiles import awatch

    while not stop.is_set():
        folders = await asyncio.to_thread(list_folders, base, state_folder)
        yield
        changes_seen = awatch(
            *folders,
            watch_filter=None,
            recursive=False,
            step=_STEP_MS,
            debounce=_DEBOUNCE_MS,
            rust_timeout=_RESCAN_MS,
            yield_on_timeout=True,
            ignore_permission_denied=True,
            stop_event=stop,
        )
        async for changes in changes_seen:
            yield
            if _has_folder(changes) and folders != await asyncio.to_thread(list_folders, base, state_folder):
                break


def _has_folder(changes: Iterable[tuple[object, str]]) -> bool:
    return any(Path(path).is_dir() for _, path in changes)


class FileDigests:
    """Digests of files, read again only when the file is another one or was written."""

    def __init__(self) -> None:
        self._entries: dict[Path, tuple[tuple[int, ...], str]] = {}

    def read_all(self, paths: Iterable[Path]) -> dict[Path, str]:
        """Read the digests of those files that exist."""
        digests = {path: digest for path in paths if (digest := self._read(path)) is not None}
        self._entries = {path: entry for path, entry in self._entries.items() if path in digests}
        return digests

    def _read(self, path: Path) -> str | None:
        try:
            status = path.stat()
            # The time of the last change of the inode cannot be set by a program.
            stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            entry = self._entries.get(path)
            if entry is None or entry[0] != stamp:
                entry = self._entries[path] = (stamp, hashlib.sha256(path.read_bytes()).hexdigest())
            return entry[1]
        except OSError:
            return None
