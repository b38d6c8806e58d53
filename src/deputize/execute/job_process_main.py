"""Run jobs, one after the other, for the gateway that started this process (`job_processes.py`).

A job is a function of this package, by name, from bytes to bytes. Frames on both pipes begin with their length.
"""

import contextlib
import ctypes
import importlib
import os
import resource
import signal
import struct
import sys
from typing import BinaryIO

HEADER = struct.Struct(">I")
_MAX_MEMORY_BYTES = 1_073_741_824
_PACKAGE = "deputize."
_PR_SET_PDEATHSIG = 1
_PREPARE_SECONDS = 5


def main() -> None:
    """Read jobs until the gateway closes the pipe, or ends.

    The arguments are how much these jobs yield to other processes, and the process of the gateway.
    """
    os.nice(int(sys.argv[1]))
    # In the middle of a job it would not notice that its gateway was killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[2]):
        return
    for limit, value in ((resource.RLIMIT_AS, _MAX_MEMORY_BYTES), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (value, value))
    jobs, replies = sys.stdin.buffer, sys.stdout.buffer
    # What a library prints must not become part of a reply.
    sys.stdout = sys.stderr
    while (name := _read_frame(jobs)) is not None:
        payload, seconds = _read_frame(jobs), _read_frame(jobs)
        if payload is None or seconds is None:
            return
        _limit_time(int(seconds))
        try:
            reply = b"+" + _run_job(name.decode(), payload)
        except MemoryError:
            reply = b"-"
        except Exception as error:  # noqa: BLE001 -- whatever a job raises is its reply, and the next job runs
            reply = b"!" + type(error).__name__.encode()
        replies.write(HEADER.pack(len(reply)) + reply)
        replies.flush()
        _prepare_next(name.decode())


def _run_job(name: str, payload: bytes) -> bytes:
    module, _, function = name.partition(":")
    if not module.startswith(_PACKAGE):
        raise ValueError(name)
    reply: bytes = getattr(importlib.import_module(module), function)(payload)
    return reply


def _prepare_next(name: str) -> None:
    """Let the module of a job get ready for its next one, while nobody waits; what fails there fails then."""
    prepare = getattr(sys.modules.get(name.partition(":")[0]), "prepare_next", None)
    if prepare is not None:
        _limit_time(_PREPARE_SECONDS)
        with contextlib.suppress(Exception):
            prepare()


def _limit_time(seconds: int) -> None:
    """End this process once it has used so much more processor time."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(
        resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + seconds + 1, resource.RLIM_INFINITY)
    )


def _read_frame(stream: BinaryIO) -> bytes | None:
    header = stream.read(HEADER.size)
    return stream.read(HEADER.unpack(header)[0]) if len(header) == HEADER.size else None


if __name__ == "__main__":
    main()
