"""Run git so that nothing but git runs: environment from nothing, in git directories whose configuration is ours.

git runs programs for whoever writes its configuration: hooks, filters, drivers for diffs and merges, aliases, helpers,
transports. Lists of such keys are never complete. So git never works with a configuration, attributes or hooks of
others here, and what is not ours is data: objects and refs. Above this, `repository.py` and `branches.py` decide in
which git directory a command runs, and whether in a sandbox: a command that only reads has one, where that is possible.
"""

import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from deputize import ToolFailed

# The whole configuration of each git directory of ours.
CONFIG: Final = """\
[core]
	repositoryFormatVersion = 0
	bare = true
	hooksPath = /dev/null
	attributesFile = /dev/null
	excludesFile = /dev/null
	fsmonitor = false
	fsync = committed
	fsyncMethod = batch
	untrackedCache = false
	commitGraph = false
	multiPackIndex = false
	logAllRefUpdates = false
	protectHFS = true
	protectNTFS = true
	quotePath = false
	bigFileThreshold = 16m
	sshCommand = false
	gitProxy = false
[gc]
	auto = 0
[maintenance]
	auto = false
[fetch]
	recurseSubmodules = false
	writeCommitGraph = false
[submodule]
	recurse = false
[diff]
	ignoreSubmodules = all
[log]
	showSignature = false
	mailmap = false
[commit]
	gpgSign = false
[pack]
	useBitmaps = false
[protocol]
	allow = never
[i18n]
	logOutputEncoding = UTF-8
"""
# Above attributes in trees: bytes are neither filtered nor converted, and no driver compares or merges them.
ATTRIBUTES: Final = "* -text -ident -working-tree-encoding !eol !filter !diff !merge\n"
_GLOBAL: Final = (
    "--no-pager", "--no-replace-objects", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false",
    "-c", "protocol.allow=never",
)  # fmt: skip
GIT_ENVIRONMENT: Final = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "HOME": "/nonexistent",
    "XDG_CONFIG_HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "false",
    "SSH_ASKPASS": "false",
    "GIT_SSH_COMMAND": "false",
    "GIT_EDITOR": "false",
    "GIT_PAGER": "cat",
    # No transport, unless a call names one.
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_PROTOCOL_FROM_USER": "0",
}
# What one process of git may use, set by a shell before git begins: what is read may be made to take all there is.
# Memory of its own, as mapped packs are not; a file that it writes; processor time.
_DATA_BYTES: Final = 1_073_741_824
_FILE_BYTES: Final = 4_294_967_296
_CPU_SECONDS: Final = 300
GIT_LIMITS: Final = f"ulimit -d {_DATA_BYTES // 1_024}; ulimit -f {_FILE_BYTES // 512}; ulimit -t {_CPU_SECONDS}"
_LIMITED: Final = ("/bin/sh", "-c", f'{GIT_LIMITS}; exec "$@"', "git")
_OUT_OF_MEMORY: Final = re.compile(rb"out of memory|malloc failed|mmap failed: Cannot allocate")
MAX_ERROR_BYTES: Final = 8_192
_CHUNK_BYTES: Final = 65_536
_FOLDERS: Final = re.compile(r"(?<![\w.])/(?:[^\s/':]+/)+")
# Of the time of a call, for what comes after git.
_RESERVE_SECONDS: Final = 0.3


class GitFailed(ToolFailed):
    """Git ended with an error; `status` is its exit status, None if its time or memory was over, or it crashed.

    Nothing happened, as far as others see: a branch moves by the last command of a call, which says so itself.
    """

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message, nothing_happened=True)
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class GitOutput:
    """What git printed. `is_cut` says that it printed more than was asked for."""

    data: bytes
    is_cut: bool

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")

    @property
    def line(self) -> str:
        return self.text.strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadline:
    """The time at which a call has to end, on the clock of `time.monotonic`."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(at=time.monotonic() + max(seconds - _RESERVE_SECONDS, 0.1))

    @property
    def seconds_left(self) -> float:
        return max(self.at - time.monotonic(), 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class GitEnd:
    """How a process of git ended, above 128 by a signal, and the beginnings of what it wrote."""

    status: int
    data: bytes
    error: bytes
    is_cut: bool


class GitSandbox(Protocol):
    """A sandbox that runs commands of git for one call, and writes nothing outside of it."""

    def run(self, script: str, seconds: float, max_bytes: int) -> GitEnd | None:
        """Run a command as a shell takes it; None if this host has no sandbox, and git may do without.

        Raise TimeoutError when the time is over.
        """


# Opens a sandbox that sees these folders and files; it is started with its first command.
OpenGitSandbox = Callable[[Sequence[Path]], AbstractContextManager[GitSandbox]]


def find_program() -> str:
    """Find git; raise ValueError if there is none."""
    program = shutil.which("git", path=GIT_ENVIRONMENT["PATH"])
    if program is None:
        raise ValueError("git is not installed: install it, as with apt install git")
    return program


def run_git(
    program: str,
    git_dir: Path,
    *arguments: str,
    deadline: Deadline,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: bytes = b"",
    max_bytes: int = 8 * 1024 * 1024,
    sandbox: GitSandbox | None = None,
) -> GitOutput:
    """Run one command of git, and end it with all that it started when its time or output is over.

    Raise `GitFailed` if it fails or takes too long. `stdin` must fit into a pipe. In a sandbox it has none.
    """
    command = (program, *_GLOBAL, *arguments)
    own = {"GIT_DIR": str(git_dir), **(environment or {})}
    end = None
    try:
        if sandbox is not None:
            script = _write_script(command, own, cwd or git_dir)
            end = sandbox.run(script, deadline.seconds_left, max_bytes)
        if end is None:
            end = _run_here(command, {**GIT_ENVIRONMENT, **own}, cwd or git_dir, stdin, deadline, max_bytes)
    except (TimeoutError, subprocess.TimeoutExpired) as timeout:
        raise GitFailed(f"git {arguments[0]} took too long and was ended: ask for less", None) from timeout
    if end.status != 0 and not end.is_cut:
        raise _describe_failure(arguments[0], end)
    return GitOutput(data=end.data[:max_bytes], is_cut=end.is_cut)


def _write_script(command: Sequence[str], environment: Mapping[str, str], cwd: Path) -> str:
    variables = (f"{name}={shlex.quote(value)}" for name, value in environment.items())
    return f"cd {shlex.quote(str(cwd))} && {' '.join(variables)} {shlex.join(command)}"


def _run_here(
    command: Sequence[str], environment: Mapping[str, str], cwd: Path, stdin: bytes, deadline: Deadline, max_bytes: int
) -> GitEnd:
    """Run git as the gateway. Raise TimeoutError or `subprocess.TimeoutExpired` when the time is over."""
    process = subprocess.Popen(
        [*_LIMITED, *command],
        env=environment, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(stdin)
            process.stdin.close()
        data, error, is_cut = _read_streams(process.stdout, process.stderr, deadline, max_bytes)
        if not is_cut:
            process.wait(deadline.seconds_left)
    finally:
        _end_group(process)
        for stream in (process.stdin, process.stdout, process.stderr):
            with suppress(BrokenPipeError):
                stream.close()
    status = process.returncode
    return GitEnd(status=status if status >= 0 else 128 - status, data=data, error=error, is_cut=is_cut)


def _describe_failure(name: str, end: GitEnd) -> GitFailed:
    if end.status == 128 + signal.SIGKILL or _OUT_OF_MEMORY.search(end.error):
        return GitFailed(f"git {name} needs more memory than it may use: a file or commit is too large for it", None)
    if end.status == 128 + signal.SIGXCPU:
        return GitFailed(f"git {name} took too much processor time and was ended: ask for less", None)
    if end.status - 128 in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS):
        return GitFailed(
            f"git {name} crashed (signal {end.status - 128}): the repository is damaged, or made to crash it; ask the "
            "operator to look at it with git fsck",
            None,
        )
    # Places on this machine are none of a caller's business.
    reason = _FOLDERS.sub("…/", end.error.decode(errors="replace").strip())[-500:] or f"exit status {end.status}"
    return GitFailed(f"git {name} failed: {reason}", end.status)


def _read_streams(output: IO[bytes], error: IO[bytes], deadline: Deadline, max_bytes: int) -> tuple[bytes, bytes, bool]:
    """Read both streams to their ends; stop early once there is more output than asked for."""
    data, errors = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ, data)
        selector.register(error, selectors.EVENT_READ, errors)
        while selector.get_map():
            ready = selector.select(deadline.seconds_left)
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK_BYTES)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif key.data is data or len(errors) < MAX_ERROR_BYTES:
                    key.data.extend(chunk)
            if len(data) > max_bytes:
                return bytes(data), bytes(errors), True
    return bytes(data), bytes(errors), False


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill what is left of the session that git began; git itself may have ended and left others behind."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
