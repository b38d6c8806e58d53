"""Take what the kernel counts by user, until there is no more, and say so; and find out what is left.

It is read as a text and run in a sandbox, or beside it.
"""

import array
import asyncio
import contextlib
import ctypes
import fcntl
import os
import select
import socket
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
F_SETPIPE_SZ, F_GETPIPE_SZ, SIGEV_SIGNAL_TIMER_CREATE = 1031, 1032, {"x86_64": 222, "aarch64": 107}
PIPE_BYTES = 65_536
held = []


def take_descriptors_in_flight() -> None:
    sent = array.array("i", [os.open("/dev/null", os.O_RDONLY)] * 253)
    while True:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        held.append((ours, theirs))
        ours.setblocking(False)
        try:
            while True:
                ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)])
        except BlockingIOError:
            continue


def take_inotify_instances() -> None:
    while LIBC.inotify_init1(0) >= 0:
        continue
    raise OSError


def take_timers() -> None:
    timer = ctypes.c_int()
    while LIBC.syscall(SIGEV_SIGNAL_TIMER_CREATE[os.uname().machine], 1, None, ctypes.byref(timer)) >= 0:
        continue
    raise OSError


def take_pipe_pages() -> None:
    while True:
        reader, writer = os.pipe()
        held.append((reader, writer))
        with contextlib.suppress(PermissionError):
            fcntl.fcntl(writer, F_SETPIPE_SZ, 1 << 20)
        if fcntl.fcntl(writer, F_GETPIPE_SZ) < PIPE_BYTES:
            raise OSError


def take_watches() -> None:
    events = [os.eventfd(0) for _ in range(480)]
    polls = [select.epoll() for _ in range(500)]
    held.append((events, polls))
    for poll in polls:
        for event in events:
            poll.register(event, 1)
    raise OSError


TAKERS = {
    "descriptors in flight": (take_descriptors_in_flight, 6), "inotify instances": (take_inotify_instances, 1),
    "timers": (take_timers, 24), "pipe pages": (take_pipe_pages, 1), "watches": (take_watches, 32),
}  # fmt: skip


def take(name: str) -> None:
    """Take all of it in several processes, say when that is done, and hold it."""
    taker, count = TAKERS[name]
    done, end = os.pipe()
    for _ in range(count):
        if os.fork() == 0:
            with contextlib.suppress(OSError):
                taker()
            os.write(end, b"x")
            time.sleep(600)
    for _ in range(count):
        os.read(done, 1)
    print("taken", flush=True)
    time.sleep(600)


def find_missing() -> list[str]:
    """Find out what this process does not get."""
    missing = []
    ours, _ = socket.socketpair()
    try:
        socket.send_fds(ours, [b"x"], [0])
    except OSError:
        missing.append("descriptors in flight")
    if LIBC.inotify_init1(0) < 0:
        missing.append("inotify instances")
    timer = ctypes.c_int()
    if LIBC.syscall(SIGEV_SIGNAL_TIMER_CREATE[os.uname().machine], 1, None, ctypes.byref(timer)) < 0:
        missing.append("timers")
    if fcntl.fcntl(os.pipe()[1], F_GETPIPE_SZ) < PIPE_BYTES:
        missing.append("pipe pages")
    try:
        asyncio.run(asyncio.sleep(0))
    except OSError:
        missing.append("watches")
    return missing


def leave(folder: str) -> None:
    """Leave files that run as their owner."""
    for name, act in {
        "changed": lambda path: os.chmod(path, 0o6755),
        "made": lambda path: os.open(f"{path}-new", os.O_CREAT | os.O_WRONLY, 0o6755),
    }.items():
        path = f"{folder}/{name}"
        with open(path, "w"):
            os.chmod(path, 0o755)
        with contextlib.suppress(OSError):
            act(path)


if __name__ == "__main__":
    if sys.argv[1] == "take":
        take(sys.argv[2])
    elif sys.argv[1] == "leave":
        leave(sys.argv[2])
    else:
        print(",".join(find_missing()), flush=True)
