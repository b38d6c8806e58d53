"""Supervise one server process of the gateway, so that none of its processes outlives it or the gateway.

`subprocess_server.py` runs this as a separate process, with the standard library alone. It does not touch the pipes
between the two. When the program ends, on SIGTERM, or when the gateway is gone for any reason, it kills everything the
program started: as a subreaper it inherits all orphaned descendants.

    process_supervisor.py GATEWAY_PID MEMORY_BYTES OPEN_FILES UID|- FOLDER DESCRIPTOR PROGRAM ARGUMENT…

The program is executed from the descriptor, which the gateway verified; PROGRAM is only the name it is told.
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
PR_SET_NO_NEW_PRIVS = 38
# How long a program may take to end after SIGTERM.
GRACE_SECONDS = 2.0
NOT_STARTED = 127
_BLOCKED_SIGNALS = {signal.SIGCHLD, signal.SIGTERM}


def main() -> None:
    """Start the program and supervise it until everything it started has ended."""
    gateway, memory, files = (int(text) for text in sys.argv[1:4])
    uid, folder, descriptor, *command = sys.argv[4:]
    binary = int(descriptor)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != gateway:
        os._exit(NOT_STARTED)
    supervisor_pid = os.getpid()
    program = os.fork()
    if program == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == supervisor_pid:
            _drop_privileges(libc, None if uid == "-" else int(uid), binary)
            _exec_program(binary, command, memory, files)
        os._exit(NOT_STARTED)
    os.close(binary)
    # The pipes belong to the program; if the supervisor kept them open, neither side would see them close.
    null_device = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1, 2):
        os.dup2(null_device, each)
    status = _supervise_program(program)
    os.chdir("/")
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(status)


def _drop_privileges(libc: ctypes.CDLL, uid: int | None, binary: int) -> None:
    """Keep no group, user or descriptor of the gateway, and gain none from set-user-id programs.

    The binary's own descriptor closes when it is executed.
    """
    os.set_inheritable(binary, False)
    for number in [int(name) for name in os.listdir("/proc/self/fd")]:
        if number > 2 and number != binary:
            with contextlib.suppress(OSError):
                os.close(number)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        # A change of user clears the signal that ends this process with its supervisor.
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        os._exit(NOT_STARTED)


def _exec_program(binary: int, command: list[str], memory: int, files: int) -> None:
    """Replace this process with the program, in its own process group and with its resource limits."""
    os.setpgid(0, 0)
    # The data segment is limited, not the address space, because many runtimes reserve far more than they use.
    for kind, limit in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_NOFILE, files), (resource.RLIMIT_CORE, 0)):
        hard_limit = resource.getrlimit(kind)[1]
        limit = limit if hard_limit == resource.RLIM_INFINITY else min(limit, hard_limit)
        resource.setrlimit(kind, (limit, limit))
    for each in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(each, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED_SIGNALS)
    try:
        os.execve(binary, command, os.environ)
    except OSError as error:
        os.write(2, f"the program cannot be started: {error.strerror}\n".encode())


def _supervise_program(program: int) -> int:
    """Wait until the program ends or must end, then kill all its descendants; return its exit status."""
    status: int | None = None
    deadline: float | None = None
    while status is None:
        seconds_left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        signal_info = (
            signal.sigwaitinfo(_BLOCKED_SIGNALS)
            if seconds_left is None
            else signal.sigtimedwait(_BLOCKED_SIGNALS, seconds_left)
        )
        if signal_info is None:
            break
        if signal_info.si_signo == signal.SIGTERM and deadline is None:
            deadline = time.monotonic() + GRACE_SECONDS
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program, signal.SIGTERM)
        status = _reap_children(program, status)
    while descendants := _list_descendants():
        for each in descendants:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        status = _reap_children(program, status)
        time.sleep(0.002)
    return 128 + signal.SIGKILL if status is None else status


def _reap_children(program: int, status: int | None) -> int | None:
    """Reap all ended children; return the program's exit status if it is among them."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == program:
                code = os.waitstatus_to_exitcode(wait_status)
                status = code if code >= 0 else 128 - code
    return status


def _list_descendants() -> list[int]:
    """List the pids of all descendants, including ended ones that were not reaped."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    family, is_growing = {os.getpid()}, True
    while is_growing:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        family |= more
        is_growing = bool(more)
    return sorted(family - {os.getpid()})


if __name__ == "__main__":
    main()
