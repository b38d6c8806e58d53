"""`deputize dev`, or its demo, at a terminal of its own: what it shows can be awaited, and its keys be pressed."""

import asyncio
import codecs
import contextlib
import fcntl
import os
import pty
import re
import signal
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STOP_SECONDS = 60.0


class DevTerminal:
    """A pseudo-terminal with `deputize dev` in its foreground."""

    def __init__(self) -> None:
        self.text = ""
        self._position = 0
        self._changed = asyncio.Event()
        self._descriptor = -1
        self._process: subprocess.Popen[bytes] | None = None
        # A read may end inside a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    async def start(
        self,
        program: Path,
        folder: Path,
        env: Mapping[str, str],
        *,
        arguments: Sequence[str] = ("dev", "--quiet"),
        ready: str = "Press Ctrl-C to stop everything.",
    ) -> None:
        """Start it in a folder and wait until it is ready."""
        self._descriptor, child_descriptor = pty.openpty()
        # Not through the event loop: its children get their descriptors only after this function has run in them.
        self._process = subprocess.Popen(
            [program, *arguments],
            cwd=folder,
            env={"NO_COLOR": "1", **env},
            stdin=child_descriptor,
            stdout=child_descriptor,
            stderr=child_descriptor,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(child_descriptor)
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        await self.wait_for(ready)

    async def wait_for(self, text: str, *, timeout: float = 240.0) -> str:
        """Wait until the text is shown; return what came before it and was not returned yet."""
        async with asyncio.timeout(timeout):
            while (found := self.text.find(text, self._position)) < 0:
                self._changed.clear()
                await self._changed.wait()
        before, self._position = self.text[self._position : found], found + len(text)
        return before

    def press_key(self, key: str) -> None:
        os.write(self._descriptor, key.encode())

    async def stop(self) -> None:
        """Stop it in order; kill it if that takes too long. A second time does nothing."""
        if self._process is None or self._descriptor < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await asyncio.to_thread(self._process.wait)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await asyncio.to_thread(self._process.wait)
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, 65_536)
        except OSError:  # the other side is closed
            asyncio.get_running_loop().remove_reader(self._descriptor)
            return
        self.text += _COLOURS.sub("", self._decoder.decode(data)).replace("\r", "")
        self._changed.set()


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
