"""Sandboxes for what git reads: one for a call, in which a shell runs its commands one after the other.

The tools `git.*` work in threads, so the sandboxes have an event loop of their own, in a thread that begins with the
first of them. Nothing in them can be written but their own `/tmp`. What such a sandbox answers is data of the
repository's: a git that was taken over can give wrong answers to the call that it was started for, and no more.
"""

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from deputize.core.errors import SandboxFailed, ToolRequiresSetup
from deputize.sandboxes.client import RunningSandbox, SandboxClient, SandboxUnavailable
from deputize.sandboxes.port import Ending, SandboxFolder, SandboxLimits, SandboxSpec
from deputize.tools.git.process import GIT_ENVIRONMENT, GIT_LIMITS, MAX_ERROR_BYTES, GitEnd

log = structlog.get_logger(__name__)
_Result = TypeVar("_Result")
# Packs that git maps are the kernel's to drop. A process of git has a limit of its own below that.
_LIMITS: Final = SandboxLimits(memory_bytes=1_342_177_280, storage_bytes=1_048_576)
# A call has less time; it is what a sandbox has that nobody closes.
_SECONDS: Final = 900.0
_CHUNK_BYTES: Final = 65_536
_KILLED: Final = 137
# How one command ends: what it printed, its status, and if that is not 0, the beginning of its errors.
_COMMAND: Final = """\
{{ {script}; }} </dev/null 2>/tmp/error; s=$?
printf '%s%s\\n' {mark} $s; [ $s = 0 ] || head -c {most} /tmp/error; printf '%s\\n' {mark}
"""


class GitSandboxes:
    """Starts the sandboxes of git. With `may_be_bare`, it may do without on a host that can start none."""

    def __init__(self, client: SandboxClient, *, may_be_bare: bool = False) -> None:
        self._client = client
        self._may_be_bare = may_be_bare
        self._was_reported = False
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def open(self, folders: Sequence[Path]) -> Iterator["CallSandbox"]:
        """Open a sandbox for the commands of one call; it starts with the first, and ends with this."""
        sandbox = CallSandbox(self, folders)
        try:
            yield sandbox
        finally:
            sandbox.close()

    def wait_for(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do something in the event loop of the sandboxes, and wait for it in this thread."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="git sandboxes", daemon=True).start()
            waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        return waiting.result()

    async def start(self, folders: Sequence[Path]) -> RunningSandbox:
        """Start a sandbox that sees these folders; raise SandboxUnavailable."""
        spec = SandboxSpec(
            command=("/bin/sh", "-s"),
            seconds=_SECONDS,
            folders=tuple(SandboxFolder(path=str(each)) for each in folders),
            environment=GIT_ENVIRONMENT,
            limits=_LIMITS,
        )
        sandbox = await self._client.start(spec)
        sandbox.stdin.write(f"{GIT_LIMITS}\n".encode())
        return sandbox

    def explain_absence(self, error: SandboxUnavailable) -> None:
        """Raise `ToolRequiresSetup`, unless git may do without a sandbox."""
        if not self._may_be_bare:
            raise ToolRequiresSetup(
                f"git reads a repository in a sandbox, and this host has none: {error}",
                advice="The operator must run deputize sandboxes check on the host of the gateway.",
                nothing_happened=True,
            ) from error
        if not self._was_reported:
            self._was_reported = True
            log.warning("git_runs_unsandboxed", reason=str(error))

    async def aclose(self) -> None:
        """Let the supervisor end, if no other gateway uses it. The thread stays: a call may wait for it."""
        if self._loop is not None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._client.aclose(), self._loop))


class CallSandbox:
    """The sandbox of one call, which one thread uses. It starts anew after a command that had to be ended."""

    def __init__(self, sandboxes: GitSandboxes, folders: Sequence[Path]) -> None:
        self._sandboxes = sandboxes
        self._folders = folders
        self._running: RunningSandbox | None = None
        self._is_bare = False

    def run(self, script: str, seconds: float, max_bytes: int) -> GitEnd | None:
        """Run a command as a shell takes it; None if this host has no sandbox, and git may do without.

        Raise TimeoutError when the time is over.
        """
        if self._is_bare:
            return None
        try:
            return self._sandboxes.wait_for(self._run(script, seconds, max_bytes))
        except SandboxUnavailable as error:
            self._sandboxes.explain_absence(error)
            self._is_bare = True
            return None

    def close(self) -> None:
        """End it, if it runs."""
        if self._running is not None:
            self._sandboxes.wait_for(self._end())

    async def _run(self, script: str, seconds: float, max_bytes: int) -> GitEnd:
        goes_on = False
        try:
            async with asyncio.timeout(seconds):
                if self._running is None:
                    self._running = await self._sandboxes.start(self._folders)
                end = await _exchange(self._running, script, max_bytes)
            goes_on = not end.is_cut and end.status != _KILLED
            return end
        finally:
            if not goes_on:
                await self._end()

    async def _end(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()


async def _exchange(sandbox: RunningSandbox, script: str, max_bytes: int) -> GitEnd:
    """Have the shell run a command, and read what it prints to the mark that git cannot know."""
    mark = secrets.token_hex(16)
    sandbox.stdin.write(
        _COMMAND.format(script=script, mark=mark, most=MAX_ERROR_BYTES).encode(errors="surrogateescape")
    )
    content, last = bytearray(), f"{mark}\n".encode()
    while chunk := await sandbox.stdout.read(_CHUNK_BYTES):
        content += chunk
        if content.endswith(last) and content.count(mark.encode()) > 1:
            data, _, end = bytes(content[: -len(last)]).partition(mark.encode())
            status, _, error = end.partition(b"\n")
            return GitEnd(status=int(status), data=data, error=error, is_cut=len(data) > max_bytes)
        if len(content) > max_bytes + 2 * MAX_ERROR_BYTES:
            return GitEnd(status=0, data=bytes(content[:max_bytes]), error=b"", is_cut=True)
    return await _explain_end(sandbox)


async def _explain_end(sandbox: RunningSandbox) -> GitEnd:
    end = await sandbox.wait()
    if not end.has_started:
        raise SandboxUnavailable(end.note)
    if end.ending is Ending.MEMORY:
        return GitEnd(status=_KILLED, data=b"", error=b"", is_cut=False)
    if end.ending is Ending.DEADLINE:
        raise TimeoutError
    raise SandboxFailed(f"the sandbox of git ended by {end.ending}: {end.note or 'call again'}", nothing_happened=True)
