"""Try every way out of a sandbox, each first without one, and look from outside at what happened.

An attempt counts only if its control, the same program as the same user without the sandbox, gets what it wants on
this host. What got through is judged by the host: its files, processes, listeners and shared memory, and the words that
only the host knew in what the program printed. A system call that gVisor carries out is one of its own kernel, and says
nothing of the host's.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from deputize.sandboxes.client import SandboxClient, SandboxUnavailable
from deputize.sandboxes.port import Backend, SandboxSpec
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.sandbox_escape import attempts
from proofs.sandbox_escape.attempts import ATTEMPTS

NAME = "sandbox_escape"
PROMISE = "A program in a sandbox reaches nothing of the host, whatever it tries."
_PYTHON = "/usr/bin/python3"
_NOBODY = 65_534
_SECONDS = 15.0
_WITHOUT = "without the sandbox"
_FILES = {"file", "target", "pipe", "socket"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What one attempt achieved on the host: alone, and in the sandbox."""

    name: str
    control: tuple[str, ...]
    sandboxed: tuple[str, ...]
    was_tried: bool = True
    backend: Backend = Backend.NAMESPACES


class Host:
    """Something to reach: files, a process, listeners, shared memory; fresh for each attempt."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.word, self.secret, self.daemon = (secrets.token_hex(12) for _ in range(3))
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        self._stack = stack
        for name in ("file", "target"):
            (self.folder / name).write_text(self.secret)
            (self.folder / name).chmod(0o666)
        os.mkfifo(self.folder / "pipe")
        (self.folder / "pipe").chmod(0o666)
        self._pipe = os.open(self.folder / "pipe", os.O_RDWR | os.O_NONBLOCK)
        stack.callback(os.close, self._pipe)
        self.folder.chmod(0o777)
        self.shared_file = Path("/dev/shm", self.word)
        self.shared_file.write_text(self.secret)
        stack.callback(self.shared_file.unlink, missing_ok=True)
        self.victim = subprocess.Popen(
            ["/bin/sleep", "600"], env={"SECRET": self.secret}, user=_NOBODY if os.geteuid() == 0 else None
        )
        stack.callback(self._end_victim)
        self._listeners = self._listen()
        self._key = secrets.randbelow(2**30) + 1
        self._memory = self._share_memory()

    @classmethod
    @contextlib.contextmanager
    def open(cls) -> Iterator[Self]:
        with contextlib.ExitStack() as stack:
            yield cls(stack)

    def _end_victim(self) -> None:
        self.victim.kill()
        self.victim.wait()

    def _listen(self) -> dict[str, socket.socket]:
        kinds: dict[str, tuple[int, int, Any]] = {
            "port": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "datagrams": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "socket": (socket.AF_UNIX, socket.SOCK_STREAM, str(self.folder / "socket")),
            "name": (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.word}"),
        }
        listeners = {}
        for name, (family, kind, address) in kinds.items():
            listener = self._stack.enter_context(socket.socket(family, kind))
            listener.bind(address)
            listener.setblocking(False)
            if kind == socket.SOCK_STREAM:
                listener.listen(8)
            listeners[name] = listener
        (self.folder / "socket").chmod(0o777)
        return listeners

    def _share_memory(self) -> int:
        libc = attempts.LIBC
        libc.shmat.restype = ctypes.c_void_p
        memory = libc.shmget(self._key, 4_096, 0o1666)
        semaphores, messages = libc.semget(self._key, 1, 0o1666), libc.msgget(self._key, 0o1666)
        address: int = libc.shmat(memory, None, 0)
        self._stack.callback(libc.shmctl, memory, 0, None)
        self._stack.callback(libc.semctl, semaphores, 0, 0)
        self._stack.callback(libc.msgctl, messages, 0, None)
        self._stack.callback(libc.shmdt, ctypes.c_void_p(address))
        return address

    def describe(self) -> dict[str, Any]:
        """Tell an attempt where everything is, and a word to say; never the secret."""
        return {
            "word": self.word, "daemon": self.daemon, "folder": str(self.folder), "file": str(self.folder / "file"),
            "target": str(self.folder / "target"), "pipe": str(self.folder / "pipe"),
            "socket": str(self.folder / "socket"), "name": self.word, "shared_file": str(self.shared_file),
            "victim": self.victim.pid, "key": self._key,
            "port": self._listeners["port"].getsockname()[1],
            "datagrams": self._listeners["datagrams"].getsockname()[1],
        }  # fmt: skip

    def observe(self, output: bytes) -> tuple[str, ...]:
        """Look at what happened here."""
        found = [name for name, text in (("word", self.word), ("secret", self.secret)) if text.encode() in output]
        if b"sleep\x00600" in output or b"'file'" in output:
            found.append("read")
        names = {each.name for each in self.folder.iterdir()}
        if names != _FILES or (self.folder / "target").read_text() != self.secret:
            found.append("files")
        if self.victim.poll() is not None:
            found.append("killed")
        for name, listener in self._listeners.items():
            with contextlib.suppress(BlockingIOError):
                listener.recv(100) if name == "datagrams" else listener.accept()[0].close()
                found.append(f"connected to {name}")
        with contextlib.suppress(BlockingIOError):
            os.read(self._pipe, 100)
            found.append("pipe")
        if ctypes.string_at(self._memory, 7) == b"escaped":
            found.append("shared memory")
        if left := list_processes_named(self.daemon):
            found.append("stayed")
            for pid in left:
                os.kill(pid, 9)
        return tuple(found)


def list_processes_named(name: str) -> list[int]:
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(name.encode()):
                pids.append(int(pid))
    return pids


async def prove(sandbox: Sandbox) -> Verdict:
    source = Path(attempts.__file__).read_text()
    trials = []
    with tempfile.TemporaryDirectory() as folder:
        # The user of sandboxes must be able to get to what gVisor is given.
        Path(folder).chmod(0o755)
        for backend in Backend:
            client = SandboxClient(Path(folder), accept_weak_limits=True, accept_shared_user=True, backend=backend)
            try:
                await client.connect()
                trials += [await try_both(client, source, name, sandbox) for name in ATTEMPTS]
            except SandboxUnavailable as error:
                if backend is Backend.NAMESPACES:
                    raise
                sandbox.log(f"without {backend}: {error}")
            finally:
                await client.aclose()
    return judge(trials)


async def try_both(client: SandboxClient, source: str, name: str, sandbox: Sandbox) -> Trial:
    control = await try_alone(source, name)
    sandboxed, was_tried = await try_in_sandbox(client, source, name)
    if client.backend is Backend.GVISOR:
        sandboxed = tuple(each for each in sandboxed if each != "word")
    if sandboxed or not control:
        sandbox.log(f"{name}: alone {control or 'nothing'}, in {client.backend} {sandboxed or 'nothing'}")
    return Trial(name=name, control=control, sandboxed=sandboxed, was_tried=was_tried, backend=client.backend)


async def try_alone(source: str, name: str) -> tuple[str, ...]:
    """Try it as the same user, without a sandbox, in mounts of its own."""
    with Host.open() as host, open(host.folder / "file", "rb") as inherited:
        user = _NOBODY if os.geteuid() == 0 else None
        ended = await asyncio.to_thread(
            subprocess.run, [_PYTHON, "-c", source, name, json.dumps(host.describe())], check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_SECONDS * 4,
            pass_fds=(inherited.fileno(),), env={"SECRET": host.secret}, cwd="/", user=user, group=user,
        )  # fmt: skip
        return host.observe(ended.stdout)


async def try_in_sandbox(client: SandboxClient, source: str, name: str) -> tuple[tuple[str, ...], bool]:
    """Try it in a sandbox, while this process has the file open for everyone that it starts; say if it began."""
    with Host.open() as host, open(host.folder / "file", "rb") as inherited:
        os.set_inheritable(inherited.fileno(), True)
        words = (_PYTHON, "-c", source, name, json.dumps(host.describe()))
        result = await client.run(SandboxSpec(command=words, seconds=_SECONDS))
        return host.observe(result.stdout), result.stdout.startswith(attempts.BEGUN.encode())


def judge(trials: list[Trial]) -> Verdict:
    """Count what got through; an attempt whose control gets nothing here says nothing."""
    with_control = [each for each in trials if each.control]
    through = [each for each in trials if each.sandboxed]
    figures: dict[str, Figure] = {
        "attempts": len({each.name for each in trials}),
        "attempts_with_control": len({each.name for each in with_control}),
        "backends": len({each.backend for each in trials}),
        "got_through": len(through),
        "not_tried": sum(not each.was_tried for each in trials),
        "kinds": len({each.name.partition(":")[0] for each in with_control}),
    }
    return Verdict(
        figures=figures,
        controls={_WITHOUT: len({each.name for each in with_control}) >= 60},
        notes=[f"got through: {each.name} on {each.backend} ({', '.join(each.sandboxed)})" for each in through]
        + [f"no control on this host: {each.name}" for each in trials if not each.control],
    )
