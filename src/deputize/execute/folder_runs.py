"""Run programs of the operator on a copy of a folder, in sandboxes that see and reach nothing else.

Nothing that a program does is kept, so every end of it is an answer: it failed, or needed too long or too much. The
tools that come with the gateway get `FolderRuns.run` from the command line's `builtin_tools.py`.
"""

import asyncio
import os
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from deputize.core.contract.tools import FolderRun, OpenFolder
from deputize.core.errors import SandboxFailed, ToolPrecondition, ToolRequiresSetup
from deputize.sandboxes.client import SandboxClient, SandboxUnavailable
from deputize.sandboxes.port import SandboxFolder, SandboxLimits, SandboxSpec
from deputize.sandboxes.scratch import open_scratch

# Python walks over folders and removes them by calling itself.
MAX_DEPTH: Final = 100
MAX_FILES: Final = 20_000
MAX_BYTES: Final = 268_435_456
MAX_OUTPUT_BYTES: Final = 1_048_576
_PART_BYTES: Final = 1_048_576
_SKIPPED: Final = (".git", ".deputize")
_SOURCE: Final = "/source"
# The copy that it works on is in its own /tmp, which is bounded, and gone with it.
_BEGIN: Final = f'/usr/bin/cp -R {_SOURCE} /tmp/work && cd /tmp/work && exec "$@"'
_ENVIRONMENT: Final = {"HOME": "/tmp", "NO_COLOR": "1", "TERM": "dumb"}  # its own


class Deadline:
    """When a call has to end, on the clock of `time.monotonic`; one that is canceled has ended."""

    def __init__(self, at: float) -> None:
        self._at = at

    @property
    def seconds_left(self) -> float:
        return self._at - time.monotonic()

    @property
    def is_over(self) -> bool:
        return self.seconds_left <= 0

    def cancel(self) -> None:
        self._at = 0.0


class FolderRuns:
    """Runs of programs. `folders` are what they see beside the copy, such as a toolchain, and cannot change."""

    def __init__(
        self,
        sandboxes: SandboxClient,
        *,
        limits: SandboxLimits,
        folders: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._sandboxes = sandboxes
        self._limits = limits
        self._folders = tuple(SandboxFolder(path=str(each)) for each in folders)
        self._environment = {**_ENVIRONMENT, **(environment or {})}

    async def run(self, command: Sequence[str], open_folder: OpenFolder, seconds: float) -> FolderRun:
        """Run a program in a copy of a folder, and return how it ended and what it wrote."""
        end = Deadline(time.monotonic() + seconds)
        try:
            # A host that starts none copies nothing.
            await self._sandboxes.connect()
            async with open_scratch() as scratch:
                await _copy_off_loop(open_folder, scratch, end)
                spec = SandboxSpec(
                    command=("/usr/bin/sh", "-c", _BEGIN, "sh", *command),
                    seconds=max(end.seconds_left, 0.1),
                    folders=(*self._folders, SandboxFolder(path=_SOURCE, source=str(scratch))),
                    environment=self._environment,
                    limits=self._limits,
                )
                result = await self._sandboxes.run(spec, max_output_bytes=MAX_OUTPUT_BYTES)
        except SandboxUnavailable as error:
            raise ToolRequiresSetup(
                f"this needs a sandbox, and this host has none: {error}",
                advice="The operator must run deputize sandboxes check on the host of the gateway.",
                nothing_happened=True,
            ) from error
        if not result.end.has_started:
            raise SandboxFailed(f"the sandbox was not started: {result.end.note}", nothing_happened=True)
        return FolderRun(
            ended_by=result.end.ending.value,
            exit_code=result.end.exit_code,
            stdout=result.stdout.decode(errors="replace"),
            stderr=result.stderr.decode(errors="replace"),
        )


async def _copy_off_loop(open_folder: OpenFolder, target: Path, end: Deadline) -> None:
    """Copy in a thread, and wait for its end: what it copies into is removed after it."""
    copying = asyncio.ensure_future(asyncio.to_thread(_copy_opened, open_folder, target, end))
    try:
        await asyncio.shield(copying)
    except asyncio.CancelledError:
        end.cancel()
        await asyncio.wait({copying})
        raise


def _copy_opened(open_folder: OpenFolder, target: Path, end: Deadline) -> None:
    with open_folder() as folder:
        try:
            copy_folder(folder, target, end)
        except OSError as error:
            raise ToolPrecondition(f"the files cannot be copied: {error.strerror}", nothing_happened=True) from error


def copy_folder(source: Path, target: Path, end: Deadline) -> None:
    """Copy files, folders and links, or raise `ToolPrecondition` at too many. No link is followed.

    Every user can read the copies, because a sandbox is another one; only this user gets to their folder.
    """
    count = size = 0
    for root, folders, files, descriptor in os.fwalk(source, follow_symlinks=False):
        place = target / os.path.relpath(root, source)
        if len(place.parts) - len(target.parts) > MAX_DEPTH:
            raise ToolPrecondition(f"its folders are more than {MAX_DEPTH} deep", nothing_happened=True)
        if root == str(source):
            folders[:] = [each for each in folders if each not in _SKIPPED]
            files = [each for each in files if each not in _SKIPPED]
        for name in (*folders, *files):
            size += _copy_entry(name, descriptor, place / name, MAX_BYTES - size)
            count += 1
            if count > MAX_FILES or size > MAX_BYTES:
                raise ToolPrecondition(
                    f"the folder has more than {MAX_FILES:,} files or {MAX_BYTES // 1_048_576} MiB, too much to copy",
                    nothing_happened=True,
                )
            if end.is_over:
                raise ToolPrecondition("copying the files took all of the time", nothing_happened=True)


def _copy_entry(name: str, descriptor: int, target: Path, most: int) -> int:
    """Copy a file, make a folder or a link; return how many bytes were read, at most one more than `most`."""
    facts = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    if stat.S_ISDIR(facts.st_mode):
        target.mkdir()
        target.chmod(0o755)
        return 0
    if stat.S_ISLNK(facts.st_mode):
        os.symlink(os.readlink(name, dir_fd=descriptor), target)
        return 0
    if not stat.S_ISREG(facts.st_mode):
        return 0
    opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
    size = 0
    with open(opened, "rb") as file, target.open("xb") as copy:
        os.fchmod(copy.fileno(), 0o755 if facts.st_mode & 0o100 else 0o644)
        while size <= most and (part := file.read(min(_PART_BYTES, most + 1 - size))):
            copy.write(part)
            size += len(part)
    return size
