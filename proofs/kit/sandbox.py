"""The world of one proof: a folder, ports, real processes, a real PostgreSQL, all gone when it ends."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from deputize.store.local_postgres import LocalPostgres
from proofs.kit.child_process import ChildProcess, CommandResult, start_child
from proofs.kit.reserved_port import reserve_port

# No load balancer has to notice the end of a gateway.
_NO_DRAIN = {"DEPUTIZE_SERVER__DRAIN_SECONDS": "0"}


class Sandbox:
    """`async with World(full=False) as world:` and everything started through it ends with the block."""

    def __init__(self, *, full: bool = False, progress: TextIO | None = None) -> None:
        self.full = full
        """Whether the published sizes were asked for; the quick form stays within 60 s."""
        self.postgres_version: str | None = None
        self._progress = progress or sys.stderr
        self._stack = AsyncExitStack()
        self._children: list[ChildProcess] = []
        self._started_at = time.monotonic()

    async def __aenter__(self) -> Self:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="proof-", ignore_cleanup_errors=True))
        self.folder = Path(folder)
        # The local PostgreSQL may run under another account, which has to pass through to its data.
        self.folder.chmod(0o711)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self.print_logs()
        await self._stack.aclose()

    def pick_size(self, *, quick: int, full: int) -> int:
        """How many of something this form of the proof does."""
        return full if self.full else quick

    def log(self, text: str) -> None:
        """Print one line of progress."""
        print(f"[{time.monotonic() - self._started_at:6.1f}s] {text}", file=self._progress, flush=True)

    def pick_free_port(self) -> int:
        """Pick a loopback port that no other process is given, never the same one twice."""
        return reserve_port()

    async def start_process(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        ready_url: str | None = None,
        ready_line: str | None = None,
        timeout: float = 120.0,
    ) -> ChildProcess:
        """Start a process and return when it is ready.

        Ready is when a GET of `ready_url` answers 2xx, or a line of its output contains `ready_line`; at once
        if neither is given. `env` is added to this process's own.
        """
        child = await start_child(
            name, argv, env={**_NO_DRAIN, **os.environ, **(env or {})}, cwd=cwd or self.folder, log_folder=self.folder
        )
        self._children.append(child)
        self._stack.push_async_callback(child.close)
        if ready_line is not None:
            await child.wait_for_line(ready_line, timeout=timeout)
        if ready_url is not None:
            await child.wait_for_url(ready_url, timeout=timeout)
        return child

    async def run_command(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: bytes | None = None,
        timeout: float = 300.0,
    ) -> CommandResult:
        """Run a command to its end, its output kept apart; a non-zero exit is the caller's to judge."""
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *argv,
            env={**os.environ, **(env or {})},
            cwd=cwd or self.folder,
            # A pipe only for something to say: writing to one whose reader has already ended is an error.
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(timeout):
                stdout, stderr = await process.communicate(stdin)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return CommandResult(
            code=process.returncode or 0,
            stdout=stdout.decode(errors="replace"),
            stderr=stderr.decode(errors="replace"),
            seconds=time.monotonic() - began,
        )

    async def start_postgres(
        self, name: str = "postgres", *, settings: Mapping[str, str] | None = None
    ) -> LocalPostgres:
        """A new PostgreSQL of its own; `.dsn`, `.kill()`, `.start()` as of `deputize.store.local_postgres`."""
        server = LocalPostgres(self.folder / name, settings=settings)
        self._stack.push_async_callback(asyncio.to_thread, server.erase)
        await asyncio.to_thread(server.start)
        self.postgres_version = (await asyncio.to_thread(server.run_sql, "show server_version")).split()[0]
        return server

    def add_cleanup(self, step: Callable[[], Awaitable[None]]) -> None:
        """Await this when the world ends, before what was started earlier is ended."""
        self._stack.push_async_callback(step)

    def print_logs(self, lines: int = 40) -> None:
        """Print the last lines of every process, to find out why a proof failed."""
        for child in self._children:
            print(f"--- {child.name} ({child.state}), last lines:", file=self._progress)
            print(child.last_lines(lines), file=self._progress, flush=True)
