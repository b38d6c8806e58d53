"""Stands between a gateway and one program it started, so that nothing of the program outlives either of them.

Run as a process of its own, by `program.py`, with the standard library alone. It takes no part in what the two say to
each other. When the program ends, when it is asked to (SIGTERM), and when the gateway is gone, however that came about,
it ends everything the program started, wherever it went: whatever loses its parent becomes the warden's child.

    warden.py GATEWAY MEMORY_BYTES OPEN_FILES FOLDER|- FILE PROGRAM ARGUMENT…
"""

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# How long a program that is asked to end may take.
GRACE_SECONDS = 2.0
NOT_STARTED = 127
_HANDLED = {signal.SIGCHLD, signal.SIGTERM}


def main() -> None:
    gateway, memory, files = (int(text) for text in sys.argv[1:4])
    folder, file, *command = sys.argv[4:]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != gateway:
        os._exit(NOT_STARTED)
    warden = os.getpid()
    program = os.fork()
    if program == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == warden:
            _become(file, command, memory, files)
        os._exit(NOT_STARTED)
    # The line belongs to the program: while the warden held it too, neither side would see it end.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1, 2):
        os.dup2(nowhere, each)
    status = _watch(program)
    if folder != "-":
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(status)


def _become(file: str, command: list[str], memory: int, files: int) -> None:
    """The program itself, in a group of its own and within its limits."""
    os.setpgid(0, 0)
    # What a program may write to, not what it may reserve: many runtimes reserve far more than they ever use.
    for kind, most in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_NOFILE, files), (resource.RLIMIT_CORE, 0)):
        allowed = resource.getrlimit(kind)[1]
        most = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
        resource.setrlimit(kind, (most, most))
    for each in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(each, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
    try:
        os.execv(file, command)
    except OSError as error:
        os.write(2, f"it cannot be started: {error.strerror}\n".encode())


def _watch(program: int) -> int:
    """Until the program has ended, or is to end; then until nothing of it is left."""
    status: int | None = None
    deadline: float | None = None
    while status is None:
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        came = signal.sigwaitinfo(_HANDLED) if left is None else signal.sigtimedwait(_HANDLED, left)
        if came is None:
            break
        if came.si_signo == signal.SIGTERM and deadline is None:
            deadline = time.monotonic() + GRACE_SECONDS
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program, signal.SIGTERM)
        status = _reap(program, status)
    while kin := _kin():
        for each in kin:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        status = _reap(program, status)
        time.sleep(0.002)
    return 128 + signal.SIGKILL if status is None else status


def _reap(program: int, status: int | None) -> int | None:
    """Takes leave of everything that ended; the program's own end, if it was among them."""
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, how = os.waitpid(-1, os.WNOHANG)
            if ended == 0:
                break
            if ended == program:
                code = os.waitstatus_to_exitcode(how)
                status = code if code >= 0 else 128 - code
    return status


def _kin() -> list[int]:
    """Everything that descends from here, what has ended and not been reaped included."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    found, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return sorted(found - {os.getpid()})


if __name__ == "__main__":
    main()
