"""One child process of a proof: its readiness, its log, its end."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2

_POLL_SECONDS = 0.02


class ProcessNotReady(Exception):
    """A process ended, or took too long, before it was ready; its last lines are in the message."""


class ProcessTooSlow(ProcessNotReady, TimeoutError):
    """A process was still running, but not ready in time: on a starved machine this says nothing about the product."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandResult:
    """A command that ran to its end."""

    code: int
    stdout: str
    stderr: str
    seconds: float


class ChildProcess:
    """A running process; stdout and stderr go, merged, to `log` and are read along for `line`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, output: asyncio.StreamReader, log: Path) -> None:
        self.name = name
        self.pid = process.pid
        self.log = log
        self._process = process
        self._output = output
        self._new_output = asyncio.Condition()
        self._lines: list[str] = []
        self._is_eof = False
        self._is_closed = False
        self._reader = asyncio.create_task(self._read_output())

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    @property
    def state(self) -> str:
        return "running" if self.is_alive else f"ended with {self._process.returncode}"

    def kill(self) -> None:
        """SIGKILL, this process alone, at once; `await gone()` to be sure of it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait_for_exit(self, timeout: float = 60.0) -> int:
        """Wait for its end and return its exit code (negative: the signal)."""
        async with asyncio.timeout(timeout):
            return await self._process.wait()

    async def stop(self, timeout: float = 60.0) -> int:
        """SIGTERM, then wait; SIGKILL if it does not heed that in time."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            return await self.wait_for_exit(timeout)
        except TimeoutError:
            self.kill()
            return await self.wait_for_exit()

    async def close(self) -> None:
        """Stop it, with whatever it started in its own session, and close its log; a second time does nothing.

        By then its number may be another process's: one that died long ago must not be signalled again.
        """
        if self._is_closed:
            return
        self._is_closed = True
        await self.stop(timeout=20.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        # A grandchild in another session may still hold the pipe open: do not wait for it.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._reader

    async def wait_for_line(self, text: str, *, timeout: float = 120.0) -> str:
        """The first line of output that contains the text, waiting for it if need be."""
        position = 0
        try:
            async with asyncio.timeout(timeout), self._new_output:
                while True:
                    for line in self._lines[position:]:
                        if text in line:
                            return line
                    position = len(self._lines)
                    if self._is_eof:
                        raise ProcessNotReady(self._describe(f"ended before it said {text!r}"))
                    await self._new_output.wait()
        except TimeoutError:
            raise ProcessTooSlow(self._describe(f"did not say {text!r} within {timeout:g} s")) from None

    async def wait_for_url(self, url: str, *, timeout: float = 120.0) -> None:
        """Wait until a GET of the url is answered with 2xx."""
        last = "no answer"
        try:
            async with asyncio.timeout(timeout), httpx2.AsyncClient(trust_env=False, timeout=20.0) as client:
                while self.is_alive:
                    try:
                        response = await client.get(url)
                        if response.is_success:
                            return
                        last = f"{response.status_code} {response.text[:200]}"
                    except httpx2.TransportError as error:
                        last = type(error).__name__
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise ProcessTooSlow(self._describe(f"was not ready within {timeout:g} s (last: {last})")) from None
        reason = f"ended with {self._process.returncode} before it was ready (last: {last})"
        raise ProcessNotReady(self._describe(reason))

    def read_cpu_seconds(self) -> float:
        """User and system time it has used so far, its threads included, its children not."""
        # The name in parentheses may hold spaces; utime and stime are the 12th and 13th fields behind it.
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def last_lines(self, lines: int = 40) -> str:
        return "\n".join(self._lines[-lines:])

    async def _read_output(self) -> None:
        partial_line = b""
        with self.log.open("ab") as log:
            while data := await self._output.read(65536):
                log.write(data)
                log.flush()
                *lines, partial_line = (partial_line + data).split(b"\n")
                await self._append_lines([line.decode(errors="replace") for line in lines])
        await self._append_lines([partial_line.decode(errors="replace")] if partial_line else [], is_eof=True)

    async def _append_lines(self, lines: list[str], *, is_eof: bool = False) -> None:
        async with self._new_output:
            self._lines += lines
            self._is_eof = self._is_eof or is_eof
            self._new_output.notify_all()

    def _describe(self, reason: str) -> str:
        return f"{self.name} {reason}; its last lines:\n{self.last_lines(20)}"


async def start_child(
    name: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log_folder: Path
) -> ChildProcess:
    """Start a process whose output is read through a pipe of our own.

    With asyncio's pipe, waiting for the process would also wait for every grandchild that inherited the pipe.
    """
    read_fd, write_fd = os.pipe()
    output = asyncio.StreamReader()
    try:
        # A session of its own: Ctrl-C reaches the proof alone, which then ends its children in order.
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(env),
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=write_fd,
            stderr=write_fd,
            start_new_session=True,
        )
    except OSError:
        os.close(read_fd)
        raise
    finally:
        os.close(write_fd)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(output), os.fdopen(read_fd, "rb", 0)
    )
    return ChildProcess(name, process, output, log_folder / f"{name}.{process.pid}.log")
