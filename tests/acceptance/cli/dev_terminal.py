"""`deputize dev` in a real pseudo-terminal, whose keys a test presses."""

import os
import pty
import select
import signal
import time
from pathlib import Path

from tests.acceptance.cli.cli_process import PROGRAM, TIMEOUT_SECONDS, make_decoder


class DevTerminal:
    """`deputize dev` with a controlling terminal of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shown = ""
        self._unread = ""
        self._decode = make_decoder()
        self.pid, self._descriptor = pty.fork()
        if self.pid == 0:
            # A terminal starts its programs so, even if what started the tests ignores the end of its own terminal.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            os.chdir(folder)
            os.execve(PROGRAM, ["deputize", "dev"], {"PATH": os.environ["PATH"], "NO_COLOR": "1"})

    def wait_for(self, text: str) -> str:
        """Read until the text is shown, and return everything up to it that was not returned before."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while text not in self._unread:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._descriptor], [], [], 1.0)[0]:
                self._read()
        before, _, self._unread = self._unread.partition(text)
        return before + text

    def _read(self) -> None:
        # Nothing is shown with a carriage return of its own: the terminal adds it, and a read may end between the two.
        text = self._decode(os.read(self._descriptor, 65_536)).replace("\r", "")
        self.shown += text
        self._unread += text

    def press(self, key: str) -> None:
        os.write(self._descriptor, key.encode())

    def hang_up(self) -> None:
        """Close the terminal, as closing its window does, and wait for the end."""
        os.close(self._descriptor)
        self._descriptor = -1
        os.waitpid(self.pid, 0)

    def kill_hard(self) -> None:
        """Kill the process in a way that it cannot notice."""
        os.kill(self.pid, signal.SIGKILL)
        self.hang_up()

    def stop(self) -> None:
        if self._descriptor >= 0:
            os.kill(self.pid, signal.SIGTERM)
            self.wait_for("Stopped")
            self.hang_up()


def edit_file(folder: Path, file: str, old: str, new: str) -> None:
    """Write a file as many editors do: another one, renamed over it."""
    path = folder / file
    text = path.read_text()
    assert old in text
    other = path.with_name(path.name + ".new")
    other.write_text(text.replace(old, new, 1))
    other.replace(path)
