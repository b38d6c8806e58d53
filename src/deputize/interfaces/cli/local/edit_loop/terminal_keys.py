"""Read a key from the controlling terminal of `deputize dev`, and from nowhere else.

An agent with a shell can write into pipes and files, and start programs; the keys of this terminal it does not have.
Keys that were typed before the question are discarded. A process in the background does not read what the person types
to another one.
"""

import asyncio
import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable
from typing import Any, Final, Literal

Answer = Literal["yes", "no", "unavailable"]
_YES: Final = b"y"
_NEXT_PAGE: Final = b" "


class TerminalKeys:
    """The keys of the terminal that shows the questions, for as long as there is one."""

    def __init__(self) -> None:
        self._descriptor = _open_terminal()
        self._saved_mode: list[Any] | None = None

    def begin(self) -> bool:
        """Take the keys from now on, before a question is shown; False if there is no person to ask.

        What was typed before is discarded. Ctrl-C still interrupts.
        """
        if self._descriptor is None or not _is_foreground(self._descriptor):
            return False
        try:
            self._saved_mode = self._saved_mode or termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor, termios.TCSAFLUSH)
        except (OSError, termios.error):
            self.close()
            return False
        return True

    async def ask(self, show_page: Callable[[], bool] | None = None) -> Answer:
        """Wait for the answer after `begin`. Cancelling this withdraws the question.

        `show_page` shows the next of the pages that are left, and tells whether there is another one. Until the last
        one was shown, a space goes on, and no key means yes.
        """
        try:
            key = await self._read()
            while show_page is not None and key == _NEXT_PAGE and self._discard_keys():
                show_page = show_page if show_page() else None
                key = await self._read()
        finally:
            self._restore_mode()
        if key == b"":
            self.close()
        return "unavailable" if not key else "yes" if key == _YES and show_page is None else "no"

    def _discard_keys(self) -> bool:
        """Discard what was typed before a page is shown; False if the terminal is gone."""
        if self._descriptor is None:
            return False
        try:
            termios.tcflush(self._descriptor, termios.TCIFLUSH)
        except (OSError, termios.error):
            return False
        return True

    async def _read(self) -> bytes | None:
        if self._descriptor is None:
            return None
        wake_reader, wake_writer = os.pipe()
        read_task = asyncio.ensure_future(asyncio.to_thread(_read_key, self._descriptor, wake_reader))
        try:
            return await asyncio.shield(read_task)
        except asyncio.CancelledError:
            os.write(wake_writer, b"x")
            await asyncio.wait({read_task})
            raise
        finally:
            os.close(wake_writer)
            os.close(wake_reader)

    def close(self) -> None:
        """Ask nothing any more: the terminal is gone, or the gateway stops."""
        if self._descriptor is not None:
            self._restore_mode()
            os.close(self._descriptor)
            self._descriptor = None

    def _restore_mode(self) -> None:
        saved_mode, self._saved_mode = self._saved_mode, None
        if self._descriptor is None or saved_mode is None or not _is_foreground(self._descriptor):
            return
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(self._descriptor, termios.TCSAFLUSH, saved_mode)


def _open_terminal() -> int | None:
    """Open the controlling terminal, if it is what stdin and stdout are: a question must be seen where it is asked."""
    try:
        for stream in (sys.stdin, sys.stdout):
            # Fails for every terminal but the controlling one.
            os.tcgetpgrp(stream.fileno())
        descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError, AttributeError):
        return None
    # Reading in the background then fails instead of stopping the whole gateway.
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)
    return descriptor


def _is_foreground(descriptor: int) -> bool:
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False


def _read_key(descriptor: int, wake_reader: int) -> bytes | None:
    """Read one key; None if the question was withdrawn or this process is in the background, empty at the end."""
    try:
        ready, _, _ = select.select([descriptor, wake_reader], [], [])
        if wake_reader in ready or not _is_foreground(descriptor):
            return None
        return os.read(descriptor, 1)
    except OSError:
        return b""
