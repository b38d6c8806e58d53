"""A person at a shell: runs the installed `deputize` in a folder, with no environment variables at all."""

import codecs
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

PROGRAM = str(Path(sys.executable).with_name("deputize"))
TIMEOUT_SECONDS = 240.0


@dataclass(frozen=True, kw_only=True)
class CompletedCommand:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def output(self) -> str:
        return self.out + self.err


def run_deputize(
    *words: str,
    folder: Path,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    program: str = PROGRAM,
) -> CompletedCommand:
    done = subprocess.run(
        [program, *words],
        cwd=folder,
        env=dict(env or {}),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return CompletedCommand(code=done.returncode, out=done.stdout, err=done.stderr)


def run_as_operator(*words: str, folder: Path, stdin: str | None = None) -> CompletedCommand:
    """Run a command that gives authority, and again with the code that the terminal of `deputize dev` shows."""
    refused = run_deputize(*words, folder=folder, stdin=stdin)
    assert (refused.code, "E3231" in refused.output) == (1, True), refused.output
    return run_deputize(*words, "--code", read_code(folder), folder=folder, stdin=stdin)


def find_obstacle_to_other_users() -> str:
    """Tell why no command can be run as another user; empty if it can."""
    if os.geteuid() != 0:
        return "only root can run a gateway as another user"
    blocking = [each for each in Path(sys.executable).parents if not each.stat().st_mode & 0o001]
    return f"other users cannot reach the program: {blocking[0]} is private" if blocking else ""


def read_code(folder: Path) -> str:
    """Wait for the next code for an act that the terminal of `deputize dev` shows."""
    return _running[folder.resolve()].wait_for_line("⏸ confirm ").rpartition("code ")[2]


def read_terminal(terminal: int, words: str) -> str:
    """Read what a pseudo-terminal shows until it has shown these words."""
    said, decode = "", make_decoder()
    while words not in said:
        assert select.select([terminal], [], [], TIMEOUT_SECONDS)[0], said
        said += decode(os.read(terminal, 65_536))
    return said


def make_decoder() -> Callable[[bytes], str]:
    """Make a function that decodes what is read piece by piece: a read may end inside a character."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode


def list_files_containing(folder: Path, text: str) -> list[Path]:
    """List the files below a folder that contain a text; a database that runs there makes and deletes files."""
    found = []
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and text.encode() in path.read_bytes():
                    found.append(path)
    return found


_running: dict[Path, "BackgroundCommand"] = {}


class BackgroundCommand:
    """A command that goes on until it is told to stop; its lines are read as they come."""

    def __init__(
        self,
        *words: str,
        folder: Path,
        env: Mapping[str, str] | None = None,
        program: str = PROGRAM,
        with_stderr: bool = True,
        uid: int | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [program, *words],
            cwd=folder,
            env=dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if with_stderr else subprocess.DEVNULL,
            text=True,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else (),
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.lines: list[str] = []
        threading.Thread(target=self._read_lines, daemon=True).start()
        if words[0] == "dev":
            _running[folder.resolve()] = self

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for_line(self, start: str) -> str:
        """The next line that begins like this; a process that ends first fails with all it said."""
        while True:
            line = self._lines.get(timeout=TIMEOUT_SECONDS)
            assert line is not None, "ended with: " + "\n".join(self.lines)
            self.lines.append(line)
            if line.startswith(start):
                return line

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> int:
        self._process.send_signal(number)
        return self.wait_for_exit()

    def wait_for_exit(self) -> int:
        code = self._process.wait(TIMEOUT_SECONDS)
        while (line := self._lines.get(timeout=TIMEOUT_SECONDS)) is not None:
            self.lines.append(line)
        assert not any("Traceback" in line for line in self.lines), "\n".join(self.lines)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                raise


def make_project(folder: Path) -> Path:
    """`deputize init`, with ports that no other test can want."""
    done = run_deputize("init", str(folder), folder=folder.parent)
    assert done.code == 0, done.output
    with (folder / "deputize.toml").open("a") as file:
        file.write("\n[server]\nport = 0\nmetrics_port = 0\n")
    return folder


def find_postgres_pids(folder: Path) -> list[int]:
    """The PostgreSQL processes whose data lies in a folder."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                command = (place / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if b"postgres" in command and str(folder.resolve()).encode() in command:
                found.append(int(place.name))
    return found
