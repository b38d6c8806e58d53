"""A person at a shell: runs the installed `deputize` in a folder, with no environment variables at all."""

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

PROGRAM = str(Path(sys.executable).with_name("deputize"))
PATIENCE = 240.0


@dataclass(frozen=True, kw_only=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def said(self) -> str:
        return self.out + self.err


def deputize(*words: str, folder: Path, env: Mapping[str, str] | None = None, typed: str | None = None) -> Done:
    done = subprocess.run(
        [PROGRAM, *words],
        cwd=folder,
        env=dict(env or {}),
        input=typed,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return Done(code=done.returncode, out=done.stdout, err=done.stderr)


class Running:
    """A command that goes on until it is told to stop; its lines are read as they come."""

    def __init__(self, *words: str, folder: Path, env: Mapping[str, str] | None = None, program: str = PROGRAM) -> None:
        self._process = subprocess.Popen(
            [program, *words],
            cwd=folder,
            env=dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.said: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def until(self, start: str) -> str:
        """The next line that begins like this; a process that ends first fails with all it said."""
        while True:
            line = self._lines.get(timeout=PATIENCE)
            assert line is not None, "ended with: " + "\n".join(self.said)
            self.said.append(line)
            if line.startswith(start):
                return line

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> int:
        self._process.send_signal(number)
        return self.end()

    def end(self) -> int:
        code = self._process.wait(PATIENCE)
        while (line := self._lines.get(timeout=PATIENCE)) is not None:
            self.said.append(line)
        assert not any("Traceback" in line for line in self.said), "\n".join(self.said)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                raise


def make_project(folder: Path) -> Path:
    """`deputize init`, with ports that no other test can want."""
    done = deputize("init", str(folder), folder=folder.parent)
    assert done.code == 0, done.said
    with (folder / "deputize.toml").open("a") as file:
        file.write("\n[server]\nport = 0\nmetrics_port = 0\n")
    return folder


def postgres_of(folder: Path) -> list[int]:
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
