"""One program that is a server: started with an environment made from nothing, and ended with all it started.

Above: `stdio.py`, which speaks with it. Below: `warden.py`, which stands over it.
"""

import asyncio
import contextlib
import hashlib
import os
import shutil
import signal
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Final

import structlog

from deputize.core.errors import UpstreamUnavailable
from deputize.core.settings import McpServer
from deputize.execute.upstreams.messages import LARGEST_ANSWER

_WARDEN: Final = str(Path(__file__).with_name("warden.py"))
# How long a program may take to end by itself once nobody speaks to it any more.
_QUIET_SECONDS: Final = 1.0
# How long its warden may take, which gives it a grace of two seconds.
_WARDEN_SECONDS: Final = 10.0
_KEPT_LINES: Final = 40
_LONGEST_LINE: Final = 500

log = structlog.get_logger(__name__)


class Program:
    def __init__(self, server: McpServer, process: asyncio.subprocess.Process, folder: str | None, *, known: bool):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._server = server
        self._process = process
        self._folder = folder
        self._input = process.stdin
        self._output = process.stdout
        self._words: deque[str] = deque(maxlen=_KEPT_LINES)
        # What a program that knows a credential writes beside its answers is read, so that it can go on, and dropped.
        self._errors = asyncio.get_running_loop().create_task(self._drain(process.stderr, keep=not known))

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, message: bytes) -> None:
        self._input.write(message + b"\n")

    @property
    def unread(self) -> int:
        """How many bytes it was sent that wait here for it to read."""
        return self._input.transport.get_write_buffer_size()

    async def drained(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._input.drain()

    async def read(self) -> bytes:
        """The next line of its output; empty when it has ended."""
        try:
            return await self._output.readline()
        except ValueError as error:
            raise UpstreamUnavailable(
                f"the program of {self._server.name} writes messages that are too large"
            ) from error

    async def end(self) -> None:
        """Closes its input, then asks it to end, then makes it, and waits until nothing is left of it."""
        with contextlib.suppress(ConnectionError):
            self._input.close()
        for seconds, how in (
            (_QUIET_SECONDS, signal.SIGTERM),
            (_WARDEN_SECONDS, signal.SIGKILL),
            (_WARDEN_SECONDS, None),
        ):
            try:
                async with asyncio.timeout(seconds):
                    await self._process.wait()
                    break
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    if how is not None:
                        self._process.send_signal(how)
        self._errors.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._errors
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _has_ended(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    def tell_of_end(self) -> None:
        """For the operator: that it ended by itself, and what it said last."""
        log.warning(
            "the program of a server ended by itself",
            server=self._server.name,
            status=self._process.returncode,
            said=list(self._words)[-5:],
        )

    async def _drain(self, stream: asyncio.StreamReader, *, keep: bool) -> None:
        while data := await stream.read(65_536):
            if keep:
                lines = data[-65_536:].decode(errors="replace").splitlines()[-_KEPT_LINES:]
                self._words += [line[:_LONGEST_LINE] for line in lines if line.strip()]


async def start(server: McpServer, secret: str | None) -> Program:
    """The server's program, running. Whatever goes wrong here happened to nobody's call."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": os.environ.get("LANG", "C.UTF-8"), **server.env}
    if secret is not None and server.secret_env is not None:
        environment[server.secret_env] = secret
    file = await asyncio.to_thread(_checked, server, environment["PATH"])
    folder = None if server.folder is not None else tempfile.mkdtemp(prefix="deputize-server-")
    limits = (str(os.getpid()), str(server.memory_mb * 1_048_576), str(server.open_files))
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", _WARDEN, *limits, folder or "-", file, *server.command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder or server.folder,
            env=environment,
            start_new_session=True,
            limit=LARGEST_ANSWER,
        )
    except OSError as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise UpstreamUnavailable(
            f"the program of {server.name} cannot be started: {error.strerror}", nothing_happened=True
        ) from error
    return Program(server, process, folder, known=secret is not None)


def _checked(server: McpServer, path: str) -> str:
    """The program's file, if it is there and the one that was meant."""
    found = shutil.which(server.command[0], path=path)
    if found is None:
        raise UpstreamUnavailable(
            f"the program of {server.name} is not there",
            advice="Whoever runs this gateway must install it, or correct its command in the settings.",
            nothing_happened=True,
        )
    # A name with a folder in it means that of the gateway, not the one the program will run in.
    file = os.path.abspath(found)
    if server.sha256 is None:
        return file
    with open(file, "rb") as opened:
        if hashlib.file_digest(opened, "sha256").hexdigest() == server.sha256:
            return file
    raise UpstreamUnavailable(
        f"the program of {server.name} is not the one that was agreed to",
        advice="Whoever runs this gateway must compare the program with sha256 in the settings of this server.",
        nothing_happened=True,
    )
