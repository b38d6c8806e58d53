"""Keep scratch folders for sandboxes on the host, and remove those of processes that were killed.

A process locks each folder that it makes, before it has the name of one, for as long as it lives. So the next
supervisor of the same user removes those that nobody locks, and never one that is in use.
"""

import asyncio
import contextlib
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

_PREFIX: Final = "deputize-scratch-"
_UNLOCKED_PREFIX: Final = f".{_PREFIX}"


@contextlib.asynccontextmanager
async def open_scratch() -> AsyncIterator[Path]:
    """Make a folder for a sandbox, and remove it with all that a program left in it.

    Every user could read it, but only this one gets to it; a sandbox is given it as a descriptor.
    """
    folder, lock = make_scratch()
    try:
        files = folder / "files"
        files.mkdir()
        # Whatever the umask is.
        files.chmod(0o755)
        yield files
    finally:
        await asyncio.to_thread(remove_folder, folder)
        os.close(lock)


def make_scratch() -> tuple[Path, int]:
    """Make a folder of this user; return it with the descriptor that holds its lock."""
    unlocked = Path(tempfile.mkdtemp(prefix=_UNLOCKED_PREFIX))
    lock = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return unlocked.rename(unlocked.with_name(unlocked.name.removeprefix("."))), lock


def sweep_scratch() -> None:
    """Remove the folders that processes of this user left when they were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # One that is locked is in use, and a link is none of ours.
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_folder(folder)
            finally:
                os.close(lock)


def remove_folder(outer: Path) -> None:
    """Remove a folder with all that a program left in it. However deep that is, its folders are moved up first."""
    pending, count = [str(outer)], 0
    with contextlib.suppress(OSError):
        while pending:
            folder = pending.pop()
            for entry in list(os.scandir(folder)):
                if entry.is_dir(follow_symlinks=False):
                    count += 1
                    os.chmod(entry.path, 0o700)
                    os.rename(entry.path, f"{outer}/{count}")
                    pending.append(f"{outer}/{count}")
                else:
                    os.unlink(entry.path)
            if folder != str(outer):
                os.rmdir(folder)
        os.rmdir(outer)
