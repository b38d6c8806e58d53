"""Start the sandboxes of one host, for all of its gateways, and end everything that is in them.

Gateways hold no privilege: they connect to the socket of this process, pass the pipes of a program, and are told how it
ended. A connection is one sandbox; when it closes, because the call was cancelled or the gateway is gone, the sandbox
is killed. If this process is killed, the kernel kills its sandboxes, and the next one sweeps up what is left of them.

    python -m deputize.sandboxes.supervisor FOLDER [--stay | --detach] [--uid UID] [--allow UID …]

It needs the standard library alone. As root, it starts sandboxes as the user of `--uid` and reads no file as root for
a gateway. Without `--stay` it ends with its last connection.
"""

import argparse
import asyncio
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NoReturn

from deputize.sandboxes import gvisor
from deputize.sandboxes.control_groups import ControlGroup, ControlGroups
from deputize.sandboxes.namespaces import FolderRefused, build_options, find_bubblewrap
from deputize.sandboxes.port import (
    MAX_REQUEST_BYTES,
    Backend,
    Ending,
    ResultFolder,
    SandboxEnd,
    SandboxLimits,
    SandboxSpec,
)
from deputize.sandboxes.scratch import sweep_scratch
from deputize.sandboxes.seccomp import UnknownMachine, assemble_filter

SOCKET_NAME: Final = "supervisor.sock"
_PR_SET_PDEATHSIG: Final = 1
_NS_GET_USERNS: Final = 0xB701
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x0002_0000, 0x1000_0000, 0x4000_0000
_NAMESPACE_SECONDS: Final = 10.0
_NOBODY: Final = 65_534
_STREAMS: Final = 3
# A supervisor that nobody has connected to yet waits this long.
_FIRST_CONNECTION_SECONDS: Final = 10.0
_MAX_PROGRAM_BYTES: Final = 268_435_456
_PART_BYTES: Final = 1_048_576
_PROBE_SECONDS: Final = 10.0
# What gateways may say about a sandbox that they want ended.
_REQUESTED_ENDINGS: Final = {"output": Ending.OUTPUT, "cancel": Ending.CANCEL}


class StartRefused(Exception):
    """A sandbox cannot be started, and nothing has run."""


class Supervisor:
    """The sandboxes of one folder. `uid` is their user, if this process is root."""

    def __init__(self, folder: Path, *, uid: int | None, allowed_uids: frozenset[int], stay: bool) -> None:
        self._folder = folder
        self._socket_path = folder / SOCKET_NAME
        self._mark = mark_processes(folder)
        self._uid = uid
        self._allowed_uids = allowed_uids
        self._stay = stay
        self._was_used = False
        self._bubblewrap = find_bubblewrap()
        self._can_start = False
        self._runsc = gvisor.find_runsc()
        self._gvisor_obstacle = gvisor.find_obstacle(self._runsc)
        self._bundles = folder / "gvisor"
        self._bundle_count = 0
        self._filter = _open_filter(has_proxy=False)
        self._proxy_filter = _open_filter(has_proxy=True)
        self._groups = ControlGroups.find(self._mark)
        self._connections: set[asyncio.Task[None]] = set()
        self._libc = ctypes.CDLL(None, use_errno=True)

    async def serve(self) -> None:
        """Sweep up after an earlier supervisor, then serve connections."""
        await self._sweep()
        self._socket_path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._socket_path))
            # Who may use it is decided by the user of each connection.
            self._socket_path.chmod(0o666)
            listener.listen(512)
            listener.setblocking(False)
            if self._stay:
                print(self._announce(), file=sys.stderr, flush=True)
            with contextlib.suppress(TimeoutError):
                while (connection := await self._accept(listener)) is not None:
                    task = asyncio.create_task(self._serve_connection(connection))
                    self._connections.add(task)
                    task.add_done_callback(self._connections.discard)
                    self._was_used = True
            self._socket_path.unlink(missing_ok=True)

    async def _accept(self, listener: socket.socket) -> socket.socket | None:
        """Wait for a connection; None if the last one has ended, TimeoutError if there never was one."""
        accepting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(listener))
        try:
            async with asyncio.timeout(None if self._was_used or self._stay else _FIRST_CONNECTION_SECONDS):
                while not accepting.done():
                    if self._was_used and not self._stay and not self._connections:
                        return None
                    await asyncio.wait([accepting, *self._connections], return_when=asyncio.FIRST_COMPLETED)
            return accepting.result()[0]
        finally:
            accepting.cancel()

    def close(self) -> None:
        """Leave no control group behind."""
        if isinstance(self._groups, ControlGroups):
            self._groups.remove()

    async def _sweep(self) -> None:
        """End the sandboxes of a supervisor that was killed, and remove what gateways left that were."""
        for pid in list_marked_processes(self._mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        gvisor.sweep(self._bundles)
        sweep_scratch()
        if isinstance(self._groups, ControlGroups):
            for group in self._groups.iterate_left():
                await _empty_group(group)

    async def _serve_connection(self, connection: socket.socket) -> None:
        descriptors: list[int] = []
        with connection:
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                if read_peer_uid(connection) not in self._allowed_uids:
                    return
                await _send_line(connection, self._describe())
                request = await _receive_request(connection, descriptors)
                if request:
                    end = await self._run(request, descriptors, connection)
                    # What is left of the descriptors is the folder of its results.
                    line = json.dumps({**asdict(end), "note": end.note[:2_000]}).encode() + b"\n"
                    socket.send_fds(connection, [line], descriptors)
            for each in descriptors:
                with contextlib.suppress(OSError):
                    os.close(each)

    def _describe(self) -> dict[str, Any]:
        problem = None
        if self._bubblewrap is None:
            problem = "bubblewrap is not installed"
        elif self._filter is None:
            problem = "there is no list of system calls for this processor"
        else:
            problem = self._find_obstacle(self._bubblewrap)
        weakness = None if isinstance(self._groups, ControlGroups) else self._groups
        return {
            "problem": problem, "gvisor": self._gvisor_obstacle, "weak_limits": weakness, "uid": self._uid,
        }  # fmt: skip

    def _announce(self) -> str:
        """Say in one line what is served, to whom and where, or what is missing."""
        found = self._describe()
        obstacles = {Backend.NAMESPACES: found["problem"], Backend.GVISOR: found["gvisor"]}
        ready = [each.value for each, obstacle in obstacles.items() if obstacle is None]
        users = ", ".join(map(str, sorted(self._allowed_uids)))
        line = f"Serving at {self._socket_path} for gateways of the users {users}: "
        line += f"sandboxes of {' and '.join(ready)}." if ready else "no sandboxes can be started."
        if found["problem"] is not None:
            line += (
                f" Missing: {found['problem']}; deputize sandboxes check says what to change, then start this again."
            )
        elif found["weak_limits"] is not None:
            line += f" Their limits are weak: {found['weak_limits']}."
        return line

    def _find_obstacle(self, bubblewrap: str) -> str | None:
        """Try to make namespaces until it has succeeded once; return why it failed."""
        if not self._can_start:
            groups = None if self._uid is None else ()
            words = ["--unshare-all", "--unshare-user", "--disable-userns", "--ro-bind", "/", "/", "/bin/true"]
            try:
                tried = subprocess.run(
                    [bubblewrap, *words], capture_output=True, text=True, errors="replace", check=False, env={},
                    cwd="/", stdin=subprocess.DEVNULL, timeout=_PROBE_SECONDS,
                    user=self._uid, group=self._uid, extra_groups=groups,
                )  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as error:
                return f"bubblewrap cannot be tried: {error}"
            if tried.returncode != 0:
                return f"this host lets bubblewrap make no namespaces: {tried.stderr.strip()[-300:]}"
            self._can_start = True
        return None

    async def _run(self, request: bytes, descriptors: list[int], connection: socket.socket) -> SandboxEnd:
        group: ControlGroup | None = None
        try:
            with contextlib.ExitStack() as stack:
                spec = SandboxSpec.from_json(json.loads(request))
                if len(descriptors) != _STREAMS:
                    raise StartRefused("a sandbox needs three pipes")
                program = None
                if spec.program_sha256 is not None:
                    spec = _resolve_program(spec)
                    program = await self._copy_program(spec.command[0], spec.program_sha256, stack)
                is_gvisor = spec.backend is Backend.GVISOR
                if isinstance(self._groups, ControlGroups):
                    group = self._groups.make(gvisor.add_own_needs(spec.limits) if is_gvisor else spec.limits)
                start = self._start_gvisor if is_gvisor else self._start
                started = start(spec, descriptors, group, program)
        except (TypeError, ValueError, KeyError, OSError, StartRefused, FolderRefused) as error:
            if group is not None:
                await _empty_group(group)
            return SandboxEnd(ending=Ending.FAILURE, note=str(error), has_started=False)
        finally:
            while descriptors:
                os.close(descriptors.pop())
        try:
            if started.gate is not None:
                await self._open_gate(started, spec, connection)
            end = await _supervise(started, group, connection, spec.seconds)
            if spec.result_folder is not None and end.ending in (Ending.EXIT, Ending.CRASH):
                descriptors.append(await self._open_result_folder(started, spec.result_folder))
            return end
        except (OSError, TimeoutError) as error:
            started.process.kill()
            started.process.wait()
            if group is not None:
                await _empty_group(group)
            return SandboxEnd(
                ending=Ending.FAILURE,
                note=f"the supervisor could not watch it: {error}",
                has_started=not started.is_waiting,
            )
        finally:
            # Not before it has ended: one that waits would begin.
            started.close()

    def _start(
        self, spec: SandboxSpec, streams: list[int], group: ControlGroup | None, program: int | None
    ) -> "_Started":
        """Start bubblewrap with the program, which waits if anything of its namespaces is needed here."""
        if self._bubblewrap is None or self._filter is None or self._proxy_filter is None:
            raise StartRefused("bubblewrap is not installed")
        with contextlib.ExitStack() as stack:
            status, status_writer = os.pipe2(os.O_CLOEXEC)
            stack.callback(os.close, status_writer)
            has_proxy = spec.proxy_port is not None
            must_wait = has_proxy or spec.result_folder is not None
            passed = [status_writer, _reopen(self._proxy_filter if has_proxy else self._filter, stack)]
            if program is not None:
                passed.append(program)
            gate, gate_writer = os.pipe2(os.O_CLOEXEC) if must_wait else (None, None)
            if gate is not None:
                stack.callback(os.close, gate)
                passed.append(gate)
            options = build_options(
                spec, own_folder=str(self._folder), seccomp=passed[1], status=status_writer, program=program, gate=gate
            )
            arguments = _write_memory("\0".join((*options, "")).encode(), stack)
            words = ["--args", str(arguments), "--", *spec.command]
            limits = _list_resource_limits(spec.limits, is_weak=group is None)
            process = self._spawn(self._bubblewrap, words, streams, (*passed, arguments), group, limits)
        return _Started(process, status, gate_writer, is_waiting=must_wait)

    def _start_gvisor(
        self, spec: SandboxSpec, streams: list[int], group: ControlGroup | None, program: int | None
    ) -> "_Started":
        """Start gVisor with the program."""
        if self._runsc is None or self._gvisor_obstacle is not None:
            raise StartRefused(str(self._gvisor_obstacle))
        if spec.proxy_port is not None:
            raise StartRefused("programs on gVisor reach no hosts: remove the hosts, or run it in namespaces")
        if spec.result_folder is not None:
            raise StartRefused("programs on gVisor leave files in a folder of the host alone")
        self._bundle_count += 1
        self._bundles.mkdir(mode=0o711, exist_ok=True)
        folder = self._bundles / str(self._bundle_count)
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            bundle = gvisor.Bundle.make(
                folder, spec, own_folder=str(self._folder), uid=self._uid, program=program, is_weak=group is None
            )
            stack.callback(bundle.remove)
            limits = {resource.RLIMIT_CORE: 0}
            process = self._spawn(self._runsc, bundle.words, streams, (bundle.log,), group, limits)
            stack.pop_all()
        return _Started(process, None, None, is_waiting=False, bundle=bundle)

    def _spawn(
        self, program: str, words: list[str], streams: list[int], passed: tuple[int, ...], group: ControlGroup | None,
        limits: dict[int, int],
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        """Start what makes a sandbox, as its user, in its group, and to be killed with this process."""
        entrances, supervisor_pid = [] if group is None else group.open_entrances(), os.getpid()

        def prepare() -> None:
            for each in entrances:
                os.write(each, b"0")
            for kind, value in limits.items():
                resource.setrlimit(kind, (value, value))
            if self._uid is not None:
                os.setresgid(self._uid, self._uid, self._uid)
                os.setresuid(self._uid, self._uid, self._uid)
            # After the change of user, which clears it.
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != supervisor_pid:
                os._exit(1)

        try:
            return subprocess.Popen(  # no shell; this process has one thread
                [self._mark, *words],
                executable=program, stdin=streams[0], stdout=streams[1], stderr=streams[2], env={}, cwd="/",
                pass_fds=passed, preexec_fn=prepare,
            )  # fmt: skip
        finally:
            for each in entrances:
                os.close(each)

    async def _open_gate(self, started: "_Started", spec: SandboxSpec, connection: socket.socket) -> None:
        """Take from the namespaces of a program that waits what is needed of them, and let the program begin."""
        async with asyncio.timeout(_NAMESPACE_SECONDS):
            while "child-pid" not in started.report:
                assert started.status is not None
                await wait_readable(started.status)
                if not started.read_report():
                    # It could not be started; its end says so.
                    return
        if spec.result_folder is not None:
            # Its files stay as long as this is open, though no process is left.
            started.mounts = self._open_namespace(started.report["child-pid"], "mnt")
        if spec.proxy_port is not None:
            await self._open_network(started.report["child-pid"], spec.proxy_port, connection)
        started.open_gate()

    async def _open_network(self, pid: int, port: int, connection: socket.socket) -> None:
        """Open a listener in the network of a program, and pass it to the gateway.

        The gateway accepts outside what the program connects to inside; nothing of ours runs there.
        """

        def listen() -> int:
            listener = socket.socket()
            listener.bind(("127.0.0.1", port))
            listener.listen(64)
            return listener.detach()

        network = self._open_namespace(pid, "net")
        try:
            listener = await self._open_inside(network, _CLONE_NEWNET, listen)
        finally:
            os.close(network)
        try:
            socket.send_fds(connection, [b"{}\n"], [listener])
        finally:
            os.close(listener)

    async def _open_result_folder(self, started: "_Started", folder: ResultFolder) -> int:
        """Open the folder of results of a program that has ended. What it put in its place is never opened."""
        assert started.mounts is not None, "a program that has ended has begun, and waited before"

        def open_folder() -> int:
            opened = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            facts = os.fstatvfs(opened)
            if facts.f_blocks != -(-folder.size_bytes // facts.f_frsize):
                os._exit(1)
            return opened

        return await self._open_inside(started.mounts, _CLONE_NEWNS, open_folder)

    def _open_namespace(self, pid: int, name: str) -> int:
        with self._use_sandbox_user():
            return os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)

    async def _open_inside(self, namespace: int, kind: int, open_it: Callable[[], int]) -> int:
        """Open something in a namespace of a sandbox, from a process that enters it as the user who made it."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            helper = os.fork()
            if helper == 0:
                self._send_opened(namespace, kind, open_it, theirs)
            theirs.close()
            try:
                async with asyncio.timeout(_NAMESPACE_SECONDS):
                    await wait_readable(ours.fileno())
                _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
            finally:
                os.kill(helper, signal.SIGKILL)
                os.waitpid(helper, 0)  # noqa: ASYNC222  # it was killed
        if not descriptors:
            raise OSError(errno.EPERM, "the namespaces of the sandbox cannot be entered")
        return descriptors[0]

    def _send_opened(self, namespace: int, kind: int, open_it: Callable[[], int], peer: socket.socket) -> NoReturn:
        try:
            if self._uid is not None:
                os.setresgid(self._uid, self._uid, self._uid)
                os.setresuid(self._uid, self._uid, self._uid)
            owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
            for each, its_kind in ((owner, _CLONE_NEWUSER), (namespace, kind)):
                if self._libc.setns(each, its_kind) != 0:
                    os._exit(1)
            socket.send_fds(peer, [b"x"], [open_it()])
        finally:
            os._exit(1)

    async def _copy_program(self, path: str, sha256: str | None, stack: contextlib.ExitStack) -> int:
        """Copy a program into memory and compare its digest: what is executed is what was compared.

        It is read in parts, between which this process serves others: with a second thread, it could not start programs
        safely.
        """
        copy = os.memfd_create("deputize", os.MFD_CLOEXEC)
        stack.callback(os.close, copy)
        with self._use_sandbox_user():
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        stack.callback(os.close, file)
        digest, left = hashlib.sha256(), _MAX_PROGRAM_BYTES + 1
        while left > 0 and (part := os.read(file, min(left, _PART_BYTES))):
            digest.update(part)
            os.write(copy, part)
            left -= len(part)
            await asyncio.sleep(0)
        if digest.hexdigest() != sha256:
            raise StartRefused(f"the program {path} has the digest {digest.hexdigest()}, and not the pinned {sha256}")
        os.lseek(copy, 0, os.SEEK_SET)
        return copy

    @contextlib.contextmanager
    def _use_sandbox_user(self) -> Iterator[None]:
        """Read files as the user of sandboxes, so that no gateway reads through this process what it could not."""
        if self._uid is None:
            yield
            return
        os.setegid(self._uid)
        os.seteuid(self._uid)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(0)


@dataclass(kw_only=False, slots=True)
class _Started:
    """Bubblewrap, where it reports, what it has reported, and what lets a program begin that waits; or gVisor.

    `mounts` is the namespace in which the program leaves its results.
    """

    process: subprocess.Popen[bytes]
    status: int | None
    gate: int | None
    is_waiting: bool
    bundle: gvisor.Bundle | None = None
    report: dict[str, int] = field(default_factory=dict)
    mounts: int | None = None
    _text: bytes = b""

    def read_report(self) -> bool:
        """Read the report so far: the pid of the first process, the program's exit code. False if there is no more."""
        if self.status is None:
            return False
        os.set_blocking(self.status, False)
        has_more = True
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.status, 4_096):
                self._text += chunk
            has_more = False
        for line in self._text.splitlines():
            with contextlib.suppress(ValueError):
                self.report.update(json.loads(line))
        return has_more

    @property
    def exit_code(self) -> int | None:
        """The exit code of the program, once it has ended; None if it is not known."""
        return self.report.get("exit-code") if self.bundle is None else self.process.returncode

    def explain_failure(self) -> SandboxEnd | None:
        """Explain why what made the sandbox has ended and its program has not; None if the program has."""
        code, name = self.process.returncode, "bubblewrap" if self.bundle is None else "gVisor"
        # It exits by itself if it could not start the program; otherwise somebody killed it.
        note, has_started = f"{name} ended with {code}", code < 0
        if self.bundle is None:
            is_failure = "exit-code" not in self.report
        else:
            words = self.bundle.read_failure(code)
            is_failure = code < 0 or bool(words)
            if words:
                note, has_started = f"gVisor failed: {words}", gvisor.has_begun(words)
        return SandboxEnd(ending=Ending.FAILURE, note=note, has_started=has_started) if is_failure else None

    def open_gate(self) -> None:
        """Let a program begin that waits."""
        if self.gate is not None:
            os.write(self.gate, b"x")
            self.is_waiting = False

    def close(self) -> None:
        """Close the descriptors, and remove the files."""
        if self.bundle is not None:
            self.bundle.remove()
        for each in (self.status, self.gate, self.mounts):
            if each is not None:
                os.close(each)


def _resolve_program(spec: SandboxSpec) -> SandboxSpec:
    return replace(spec, command=(os.path.realpath(spec.command[0]), *spec.command[1:]))


async def _supervise(
    started: _Started,
    group: ControlGroup | None,
    connection: socket.socket,
    seconds: float | None,
) -> SandboxEnd:
    """Wait until the program ends or must end, and until nothing of it is left; say who ended it."""
    ended_by: Ending | None = None
    process, report = started.process, started.report
    with contextlib.ExitStack() as stack:
        # Whatever goes wrong here, nothing runs on.
        stack.callback(process.kill)
        pidfd = os.pidfd_open(process.pid)
        stack.callback(os.close, pidfd)
        ending = asyncio.ensure_future(wait_readable(pidfd))
        order = asyncio.ensure_future(_receive_order(connection))
        await asyncio.wait([ending, order], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            ended_by = order.result() if order.done() else Ending.DEADLINE
            # All processes end at once with the first one of their namespace, which ends with bubblewrap. If they were
            # killed one after another, a program could act on the end of its child, as a shell does.
            process.kill()
            await ending
        order.cancel()
        process.wait()
        memory_kills = refused_processes = 0
        if group is not None:
            memory_kills, refused_processes = group.count_memory_kills(), group.count_refused_processes()
        started.read_report()
        await _wait_for_namespace(report)
        if group is not None:
            await _empty_group(group)
    if ended_by is not None:
        return SandboxEnd(ending=ended_by)
    failure = started.explain_failure()
    return _judge_end(None if failure is not None else started.exit_code, failure, memory_kills, refused_processes)


def _judge_end(code: int | None, failure: SandboxEnd | None, memory_kills: int, refused_processes: int) -> SandboxEnd:
    """Judge how a program ended that nobody ended from here."""
    if code == 0:
        kills = f"the kernel killed {memory_kills} of its processes, because its memory was used up"
        refusals = f"the kernel refused it {refused_processes} processes"
        note = kills if memory_kills else refusals if refused_processes else ""
        return SandboxEnd(ending=Ending.EXIT, exit_code=0, note=note)
    if memory_kills:
        return SandboxEnd(ending=Ending.MEMORY, exit_code=code)
    if refused_processes:
        return SandboxEnd(ending=Ending.PROCESSES, exit_code=code)
    if failure is not None or code is None:
        return failure or SandboxEnd(ending=Ending.FAILURE)
    is_crash = 128 < code <= 128 + signal.SIGRTMAX
    return SandboxEnd(ending=Ending.CRASH if is_crash else Ending.EXIT, exit_code=code)


async def _wait_for_namespace(report: dict[str, int]) -> None:
    """Wait until the first process of the namespace is gone: the kernel lets it end after all others."""
    with contextlib.suppress(OSError, KeyError):
        pidfd = os.pidfd_open(report["child-pid"])
        try:
            async with asyncio.timeout(5):
                await wait_readable(pidfd)
        except TimeoutError:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


async def _empty_group(group: ControlGroup) -> None:
    """Kill what is in a group until it can be removed; give up after some seconds, for the next sweep."""
    for attempt in range(500):
        if group.remove():
            return
        group.kill()
        await asyncio.sleep(0.001 if attempt < 100 else 0.02)


async def wait_readable(descriptor: int) -> None:
    """Wait until there is something to read, or no more will be."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def _receive_request(connection: socket.socket, descriptors: list[int]) -> bytes:
    """Receive one line with descriptors; empty if the peer only held the connection open."""
    text = b""
    while not text.endswith(b"\n"):
        await wait_readable(connection.fileno())
        chunk, received, _, _ = socket.recv_fds(connection, 65_536, _STREAMS)
        descriptors += received
        text += chunk
        if not chunk or len(text) > MAX_REQUEST_BYTES:
            return b""
    return text


async def _receive_order(connection: socket.socket) -> Ending:
    """Wait until the gateway wants the sandbox ended, or is gone."""
    word = b""
    with contextlib.suppress(OSError):
        word = await asyncio.get_running_loop().sock_recv(connection, 64)
    return _REQUESTED_ENDINGS.get(word.decode(errors="replace").strip(), Ending.CANCEL)


async def _send_line(connection: socket.socket, value: dict[str, Any]) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, json.dumps(value).encode() + b"\n")


def read_peer_uid(connection: socket.socket) -> int:
    """Read the user of the process at the other end, as the kernel noted it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", credentials)[1]
    return uid


def _list_resource_limits(limits: SandboxLimits, *, is_weak: bool) -> dict[int, int]:
    """List the limits of each process; without control groups, that is all there is."""
    values = {resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: limits.open_files}
    if is_weak:
        # The data segment, not the address space: many runtimes reserve far more than they use. Processes have no
        # such limit: the kernel would count all of the user, those outside of the sandbox included.
        values[resource.RLIMIT_DATA] = limits.memory_bytes
    for kind, value in values.items():
        hard = resource.getrlimit(kind)[1]
        values[kind] = value if hard == resource.RLIM_INFINITY else min(value, hard)
    return values


def _write_memory(content: bytes, stack: contextlib.ExitStack) -> int:
    descriptor = os.memfd_create("deputize", os.MFD_CLOEXEC)
    stack.callback(os.close, descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _reopen(descriptor: int, stack: contextlib.ExitStack) -> int:
    """Open a file once more, at its beginning: bubblewrap reads to the end."""
    copy = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, copy)
    return copy


def _open_filter(*, has_proxy: bool) -> int | None:
    try:
        content = assemble_filter(has_proxy=has_proxy)
    except UnknownMachine:
        return None
    return _write_memory(content, contextlib.ExitStack())


def mark_processes(folder: Path) -> str:
    """Name the processes and control groups of a folder's supervisor, so that the next one recognizes them."""
    return f"deputize-sandbox-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}"


def list_marked_processes(mark: str) -> list[int]:
    """List bubblewrap's processes of a supervisor."""
    pids = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if Path("/proc", name, "cmdline").read_bytes().partition(b"\0")[0] == mark.encode():
                    pids.append(int(name))
    return pids


def main() -> None:
    """Serve a folder, unless another supervisor does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stay", action="store_true")
    parser.add_argument("--detach", action="store_true")
    parser.add_argument("--uid", type=int, default=_NOBODY)
    parser.add_argument("--allow", type=int, nargs="*", default=[])
    options = parser.parse_args()
    if options.detach and os.fork():
        # The gateway that started this waits for nothing, and another gateway may need the supervisor longer.
        os._exit(0)
    is_root = os.geteuid() == 0
    options.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    lock = os.open(options.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # A gateway that starts one beside another uses that one.
        sys.exit(f"{options.folder} is served already: stop the supervisor there first." if options.stay else 0)
    # A sandbox that runs has three descriptors here, and a host has hundreds.
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    if is_root:
        os.setgroups([])
    supervisor = Supervisor(
        options.folder,
        uid=options.uid if is_root else None,
        allowed_uids=frozenset({0, os.geteuid(), *options.allow}),
        stay=options.stay,
    )
    asyncio.run(supervisor.serve())
    supervisor.close()


if __name__ == "__main__":
    main()
