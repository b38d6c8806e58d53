"""Start the sandboxes of one host, for all of its gateways, and end everything that is in them.

Gateways hold no privilege: they connect to the socket of this process, pass the pipes of a program, and are told how it
ended. A connection is one sandbox; when it closes, because the call was cancelled or the gateway is gone, the sandbox
is killed. If this process is killed, the kernel kills its sandboxes, and the next one sweeps up what is left of them.

    python -m deputize.sandboxes.supervisor FOLDER [--stay | --detach] [--uid-range FIRST:COUNT] [--allow UID …]

It needs the standard library alone. Each sandbox has a user of its own where this host gives it some (`users.py`).
Folders and programs come as descriptors that gateways opened, so this process opens nothing for a gateway that it could
not. Without `--stay` it ends with its last connection.
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
import stat
import struct
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from deputize.sandboxes import gvisor
from deputize.sandboxes.control_groups import ControlGroup, ControlGroups
from deputize.sandboxes.mounts import attach_mounts, can_attach, clone_mount, is_open_to_all, map_owner
from deputize.sandboxes.namespaces import FolderRefused, build_options, find_bubblewrap, find_shareable
from deputize.sandboxes.port import (
    MAX_FOLDERS,
    MAX_REQUEST_BYTES,
    Backend,
    Ending,
    ResultFolder,
    SandboxEnd,
    SandboxSpec,
)
from deputize.sandboxes.scratch import sweep_scratch
from deputize.sandboxes.seccomp import UnknownMachine, assemble_filter
from deputize.sandboxes.users import NoUsers, SandboxUsers, UserRange, claim_users, enter_subordinate_users

SOCKET_NAME: Final = "supervisor.sock"
_PR_SET_PDEATHSIG: Final = 1
_NS_GET_USERNS: Final = 0xB701
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x0002_0000, 0x1000_0000, 0x4000_0000
_NAMESPACE_SECONDS: Final = 10.0
_STREAMS: Final = 3
_MOST_DESCRIPTORS: Final = _STREAMS + MAX_FOLDERS + 1
# A request is sent at once; those of a gateway that are being read have this many descriptors at most.
_REQUEST_SECONDS: Final = 10.0
_STARTS_AT_ONCE: Final = 8
# What a connection may need of the descriptors of this process, and what it keeps for itself.
_DESCRIPTORS_OF_ONE: Final = 8
_OWN_DESCRIPTORS: Final = 64
_ACCEPT_SECONDS: Final = 0.1
# Bubblewrap's own in the namespace.
_INNER_PROCESSES: Final = 1
_SIGNALS: Final = 4_096
# What the kernel counts by user grows with these, and a gateway has it in common with a program of its user.
_SHARED_OPEN_FILES: Final = 256
_LARGEST_HOST_FILE: Final = 1 << 30
_MOST_RESULTS: Final = 100_000
# A supervisor that nobody has connected to yet waits this long.
_FIRST_CONNECTION_SECONDS: Final = 10.0
_MAX_PROGRAM_BYTES: Final = 268_435_456
_PART_BYTES: Final = 1_048_576
_PROBE_SECONDS: Final = 10.0
# What gateways may say about a sandbox that they want ended.
_REQUESTED_ENDINGS: Final = {"output": Ending.OUTPUT, "cancel": Ending.CANCEL}


class StartRefused(Exception):
    """A sandbox cannot be started, and nothing has run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Who a sandbox is, and where its folders are found. Without `uid`, it is the user of this process.

    `mounts` are attached at `attach_at` first.
    """

    uid: int | None
    is_own: bool
    sources: tuple[str, ...]
    mounts: tuple[int, ...] = ()
    attach_at: str = ""


class Supervisor:
    """The sandboxes of one folder. Without `users`, they are the user of this process, for the reason `sharing`."""

    def __init__(
        self, folder: Path, *, users: UserRange | None, allowed_uids: frozenset[int], stay: bool, sharing: str = "",
    ) -> None:  # fmt: skip
        self._folder = folder
        self._socket_path = folder / SOCKET_NAME
        self._mark = mark_processes(folder)
        self._users = None if users is None else SandboxUsers(users)
        self._sharing = None if users is not None else _explain_sharing(sharing)
        self._is_root = os.geteuid() == 0
        self._can_attach = users is not None and can_attach()
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
        self._peers: Counter[int] = Counter()
        self._starts: defaultdict[int, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_STARTS_AT_ONCE))
        soft_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_connections = max((soft_limit - _OWN_DESCRIPTORS) // _DESCRIPTORS_OF_ONE, 4)
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._complained = -1e9
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
            while True:
                try:
                    connection = await self._accept(listener)
                except TimeoutError:
                    break
                except OSError as error:
                    await self._shed_connection(listener, error)
                    continue
                if connection is None:
                    break
                task = asyncio.create_task(self._serve_connection(connection))
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)
                self._was_used = True
            self._socket_path.unlink(missing_ok=True)

    async def _shed_connection(self, listener: socket.socket, error: OSError) -> None:
        """Close the next connection, for which there is no descriptor, and go on: what runs must not end with it."""
        if time.monotonic() - self._complained > 60:
            self._complained = time.monotonic()
            print(f"A connection was refused: {error}. Let this process open more files.", file=sys.stderr, flush=True)
        os.close(self._spare)
        with contextlib.suppress(OSError):
            listener.accept()[0].close()
        await asyncio.sleep(_ACCEPT_SECONDS)
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

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
            peer = read_peer(connection)
            if peer[0] not in self._allowed_uids:
                return
            self._peers[peer[0]] += 1
            try:
                with contextlib.suppress(OSError):
                    await self._serve_peer(connection, peer, descriptors)
            finally:
                self._peers[peer[0]] -= 1
                _close_all(descriptors)

    async def _serve_peer(self, connection: socket.socket, peer: tuple[int, int], descriptors: list[int]) -> None:
        # One gateway leaves some for the others.
        most = self._most_connections if len(self._allowed_uids) == 1 else self._most_connections * 3 // 4
        if self._peers[peer[0]] > most or len(self._connections) > self._most_connections:
            problem = f"its supervisor serves as many sandboxes as it can, {most} for a user: let it open more files"
            await _send_line(connection, {**self._describe(), "problem": problem, "gvisor": problem})
            return
        await _send_line(connection, self._describe())
        await wait_readable(connection.fileno())
        async with contextlib.AsyncExitStack() as starting:
            await starting.enter_async_context(self._starts[peer[0]])
            request = await _receive_request(connection, descriptors)
            if not request:
                return
            end = await self._run(request, descriptors, peer, connection, starting)
        # What is left of the descriptors is the folder of its results.
        line = json.dumps({**asdict(end), "note": end.note[:2_000]}).encode() + b"\n"
        socket.send_fds(connection, [line], descriptors)

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
            "problem": problem, "gvisor": self._gvisor_obstacle, "weak_limits": weakness, "shared_user": self._sharing,
            # Gateways of an earlier release read it, and are then refused, because they send no folders.
            "uid": None,
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
            return line
        if found["weak_limits"] is not None:
            line += f" Their limits are weak: {found['weak_limits']}."
        if self._sharing is not None:
            line += f" They share a user: {self._sharing}."
        return line

    def _find_obstacle(self, bubblewrap: str) -> str | None:
        """Try to make namespaces until it has succeeded once; return why it failed."""
        if not self._can_start:
            uid = None if self._users is None else self._users.owner
            words = ["--unshare-all", "--unshare-user", "--disable-userns", "--ro-bind", "/", "/", "/bin/true"]
            try:
                tried = subprocess.run(
                    [bubblewrap, *words], capture_output=True, text=True, errors="replace", check=False, env={},
                    cwd="/", stdin=subprocess.DEVNULL, timeout=_PROBE_SECONDS,
                    user=uid, group=uid, extra_groups=None if uid is None else (),
                )  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as error:
                return f"bubblewrap cannot be tried: {error}"
            if tried.returncode != 0:
                return f"this host lets bubblewrap make no namespaces: {tried.stderr.strip()[-300:]}"
            self._can_start = True
        return None

    async def _run(
        self, request: bytes, descriptors: list[int], peer: tuple[int, int], connection: socket.socket,
        starting: contextlib.AsyncExitStack,
    ) -> SandboxEnd:  # fmt: skip
        group: ControlGroup | None = None
        place: _Place | None = None
        try:
            with contextlib.ExitStack() as stack:
                spec = SandboxSpec.from_json(json.loads(request))
                count = _STREAMS + len(spec.folders)
                if len(descriptors) != count + (spec.program_sha256 is not None):
                    raise StartRefused("a request has three pipes, its folders and its program: restart the gateway")
                program = None
                if spec.program_sha256 is not None:
                    program = await _copy_program(descriptors[count], spec, stack)
                place = self._find_place(spec, descriptors[_STREAMS:count], peer, stack)
                is_gvisor = spec.backend is Backend.GVISOR
                if isinstance(self._groups, ControlGroups):
                    group = self._groups.make(gvisor.add_own_needs(spec.limits) if is_gvisor else spec.limits)
                start = self._start_gvisor if is_gvisor else self._start
                started = start(spec, place, descriptors[:_STREAMS], group, program)
        except (
            TypeError, ValueError, KeyError, OverflowError, RecursionError, OSError, subprocess.SubprocessError,
            StartRefused, FolderRefused, NoUsers,
        ) as error:  # fmt: skip
            if group is not None:
                await _empty_group(group)
            self._give_back(place, is_gone=True)
            return SandboxEnd(ending=Ending.FAILURE, note=str(error), has_started=False)
        finally:
            _close_all(descriptors)
            await starting.aclose()
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
            self._give_back(place, is_gone=started.is_gone)

    def _find_place(
        self, spec: SandboxSpec, folders: Sequence[int], peer: tuple[int, int], stack: contextlib.ExitStack
    ) -> _Place:
        """Find out who a sandbox is, and open mounts of its folders; raise StartRefused if it would have to share."""
        paths = tuple(
            find_shareable(opened, each.path, str(self._folder))
            for each, opened in zip(spec.folders, folders, strict=True)
        )
        if self._users is None:
            _require_sharing(spec, self._sharing)
            return _Place(uid=None, is_own=False, sources=paths)
        uid, is_own = self._users.take(), True
        give_back = stack.enter_context(contextlib.ExitStack())
        give_back.callback(self._users.give_back, uid, is_gone=True)
        mounts = [self._open_mount(each, stack) for each in folders] if self._can_attach else []
        for number, each in enumerate(spec.folders):
            if not each.is_writable and is_open_to_all(folders[number]):
                continue
            owner = peer if peer[0] != 0 or each.source is not None else (self._users.owner, self._users.owner)
            obstacle = self._map_owner(mounts[number] if mounts else None, owner, uid, paths[number])
            if obstacle is not None and (each.is_writable or not self._is_root):
                # Nobody but its owner can use it.
                _require_sharing(spec, obstacle)
                is_own = False
        if not is_own and not self._is_root:
            return _Place(uid=None, is_own=False, sources=paths)
        if is_own:
            give_back.pop_all()
        else:
            uid = self._users.owner
        if not mounts:
            _require_entrance(paths)
            return _Place(uid=uid, is_own=is_own, sources=paths)
        is_gvisor = spec.backend is Backend.GVISOR
        at = str(self._bundles / str(self._bundle_count + 1) / "shown") if is_gvisor else "/tmp"  # its own
        sources = tuple(f"{at}/{number}" for number in range(len(mounts)))
        return _Place(uid=uid, is_own=is_own, sources=sources, mounts=tuple(mounts), attach_at=at)

    def _open_mount(self, folder: int, stack: contextlib.ExitStack) -> int:
        if not self._is_root:
            # It is cloned where it is attached.
            return folder
        try:
            mount = clone_mount(folder)
        except OSError as error:
            path = os.readlink(f"/proc/self/fd/{folder}")
            raise StartRefused(f"{path} is not among the mounts that the supervisor sees: {error}") from error
        stack.callback(os.close, mount)
        return mount

    def _map_owner(self, mount: int | None, owner: tuple[int, int], uid: int, path: str) -> str | None:
        """Let files of the owner of a folder be those of a sandbox; return why that cannot be."""
        if mount is not None and self._is_root:
            try:
                map_owner(mount, owner, uid)
            except OSError as error:
                return f"{path} cannot be mounted for another user ({error}): move it to a local file system"
            return None
        if self._is_root:
            return f"{path} cannot be mounted for another user: let the supervisor make mounts (CAP_SYS_ADMIN)"
        return (
            f"{path} is written, or can be read by its owner alone, and only a supervisor that root started lets "
            "another user do that: run deputize sandboxes serve as root with --allow and the user of the gateway"
        )

    def _give_back(self, place: _Place | None, *, is_gone: bool) -> None:
        if place is not None and place.is_own and place.uid is not None and self._users is not None:
            self._users.give_back(place.uid, is_gone=is_gone)

    def _start(
        self, spec: SandboxSpec, place: _Place, streams: list[int], group: ControlGroup | None, program: int | None
    ) -> "_Started":
        """Start bubblewrap with the program, which waits if anything of its namespaces is needed here."""
        if self._bubblewrap is None or self._filter is None or self._proxy_filter is None:
            raise StartRefused("bubblewrap is not installed")
        with contextlib.ExitStack() as stack:
            status, status_writer = os.pipe2(os.O_CLOEXEC)
            stack.callback(os.close, status_writer)
            has_proxy = spec.proxy_port is not None
            must_wait = has_proxy or spec.result_folder is not None or group is None
            passed = [status_writer, _reopen(self._proxy_filter if has_proxy else self._filter, stack)]
            if program is not None:
                passed.append(program)
            gate, gate_writer = os.pipe2(os.O_CLOEXEC) if must_wait else (None, None)
            if gate is not None:
                stack.callback(os.close, gate)
                passed.append(gate)
            options = build_options(
                spec, place.sources, seccomp=passed[1], status=status_writer, program=program, gate=gate
            )
            arguments = _write_memory("\0".join((*options, "")).encode(), stack)
            words = ["--args", str(arguments), "--", *spec.command]
            limits = _list_resource_limits(spec, is_weak=group is None, is_shared=place.uid is None)
            process = self._spawn(self._bubblewrap, words, streams, (*passed, arguments), group, limits, place)
        return _Started(process, status, gate_writer, is_waiting=must_wait, uid=place.uid)

    def _start_gvisor(
        self, spec: SandboxSpec, place: _Place, streams: list[int], group: ControlGroup | None, program: int | None
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
            folder.mkdir(mode=0o711)
            (folder / "shown").mkdir(mode=0o711)
            if place.uid is not None:
                os.chown(folder, place.uid, place.uid)
            with self._use_sandbox_user(place.uid):
                bundle = gvisor.Bundle.make(folder, spec, place.sources, program=program, is_weak=group is None)
            stack.callback(bundle.remove)
            process = self._spawn(
                self._runsc, bundle.words, streams, (bundle.log,), group, {resource.RLIMIT_CORE: 1}, place
            )
            stack.pop_all()
        return _Started(process, None, None, is_waiting=False, uid=place.uid, bundle=bundle)

    def _spawn(
        self, program: str, words: list[str], streams: list[int], passed: tuple[int, ...], group: ControlGroup | None,
        limits: dict[int, int], place: _Place,
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        """Start what makes a sandbox, as its user, in its group, and to be killed with this process."""
        entrances, supervisor_pid = [] if group is None else group.open_entrances(), os.getpid()

        def prepare() -> None:
            for each in entrances:
                os.write(each, b"0")
            if place.mounts:
                try:
                    attach_mounts(place.attach_at, place.mounts, are_cloned=self._is_root)
                except OSError as error:
                    os.write(2, f"its folders cannot be shown: {error}\n".encode())
                    raise
            for kind, value in limits.items():
                resource.setrlimit(kind, (value, value))
            _become(place.uid)
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
        pid = started.report["child-pid"]
        if not isinstance(self._groups, ControlGroups):
            # Set here it counts what is in the sandbox; set before, all that its user runs outside.
            _limit_processes(pid, spec.limits.processes + _INNER_PROCESSES, started.uid)
        if spec.result_folder is not None:
            # Its files stay as long as this is open, though no process is left.
            started.mounts = self._open_namespace(started, "mnt")
        if spec.proxy_port is not None:
            await self._open_network(started, spec.proxy_port, connection)
        started.open_gate()

    async def _open_network(self, started: "_Started", port: int, connection: socket.socket) -> None:
        """Open a listener in the network of a program, and pass it to the gateway.

        The gateway accepts outside what the program connects to inside; nothing of ours runs there.
        """

        def listen() -> int:
            listener = socket.socket()
            listener.bind(("127.0.0.1", port))
            listener.listen(64)
            return listener.detach()

        network = self._open_namespace(started, "net")
        try:
            listener = await self._open_inside(network, _CLONE_NEWNET, listen, started.uid)
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
            _open_to_all(opened)
            return opened

        return await self._open_inside(started.mounts, _CLONE_NEWNS, open_folder, started.uid)

    def _open_namespace(self, started: "_Started", name: str) -> int:
        with self._use_sandbox_user(started.uid):
            return os.open(f"/proc/{started.report['child-pid']}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)

    async def _open_inside(self, namespace: int, kind: int, open_it: Callable[[], int], uid: int | None) -> int:
        """Open something in a namespace of a sandbox, from a process that enters it as the user who made it."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            helper = os.fork()
            if helper == 0:
                self._send_opened(namespace, kind, open_it, uid, theirs)
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

    def _send_opened(
        self, namespace: int, kind: int, open_it: Callable[[], int], uid: int | None, peer: socket.socket
    ) -> NoReturn:
        try:
            _become(uid)
            owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
            for each, its_kind in ((owner, _CLONE_NEWUSER), (namespace, kind)):
                if self._libc.setns(each, its_kind) != 0:
                    os._exit(1)
            socket.send_fds(peer, [b"x"], [open_it()])
        finally:
            os._exit(1)

    @contextlib.contextmanager
    def _use_sandbox_user(self, uid: int | None) -> Iterator[None]:
        """Act on files as the user of a sandbox."""
        if uid is None:
            yield
            return
        own_uid, own_gid = os.geteuid(), os.getegid()
        os.setegid(uid)
        os.seteuid(uid)
        try:
            yield
        finally:
            os.seteuid(own_uid)
            os.setegid(own_gid)


@dataclass(kw_only=False, slots=True)
class _Started:
    """Bubblewrap, where it reports, what it has reported, and what lets a program begin that waits; or gVisor.

    `mounts` is the namespace in which the program leaves its results; `is_gone` once nothing of it is left.
    """

    process: subprocess.Popen[bytes]
    status: int | None
    gate: int | None
    is_waiting: bool
    uid: int | None
    is_gone: bool = False
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


def _explain_sharing(reason: str) -> str:
    return (
        f"programs run as the user of the gateway, {os.geteuid()}, and can use up what the kernel counts by user, such "
        f"as watches and descriptors in flight, because {reason or 'their supervisor has no users for them'}"
    )


def _require_sharing(spec: SandboxSpec, reason: str | None) -> None:
    """Raise StartRefused if a sandbox may not share its user."""
    if not spec.may_share_user:
        raise StartRefused(f"it would share its user with the gateway or other sandboxes: {reason}")


def _require_entrance(paths: Sequence[str]) -> None:
    """Raise StartRefused for what is in a folder that only its owner may enter, where none can be mounted elsewhere."""
    for path in paths:
        for parent in Path(path).parents:
            if not parent.stat().st_mode & stat.S_IXOTH:
                raise StartRefused(
                    f"{path} is not seen by a sandbox, because the folder {parent} may be entered by its owner alone: "
                    f"chmod o+x {parent}, or put what is needed elsewhere"
                )


def _become(uid: int | None) -> None:
    """Become the user of a sandbox for good."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def _limit_processes(pid: int, most: int, uid: int | None) -> None:
    """Limit the processes of a program that waits, from one of its user: not every root may do it for others."""
    helper = os.fork()
    if helper == 0:
        code = 1
        with contextlib.suppress(BaseException):
            _become(uid)
            resource.prlimit(pid, resource.RLIMIT_NPROC, (most, most))
            code = 0
        os._exit(code)
    if os.waitpid(helper, 0)[1] != 0:
        raise OSError("the number of its processes cannot be limited")


def _open_to_all(folder: int) -> None:
    """Let every user read what a program left: its gateway is another one than it was. Nothing of it runs any more."""
    pending, count = [os.dup(folder)], 0
    while pending:
        opened = pending.pop()
        os.fchmod(opened, 0o755)
        for name in os.listdir(opened):
            if (count := count + 1) > _MOST_RESULTS:
                # More than any command may leave; it is refused for what cannot be read.
                os._exit(1)
            mode = os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                pending.append(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=opened))
            elif stat.S_ISREG(mode):
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=opened)
                os.fchmod(file, 0o644)
                os.close(file)
        os.close(opened)


async def _copy_program(opened: int, spec: SandboxSpec, stack: contextlib.ExitStack) -> int:
    """Copy a program into memory and compare its digest: what is executed is what was compared.

    It is read in parts, between which this process serves others: with a second thread, it could not start programs
    safely.
    """
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        raise StartRefused(f"the program {spec.command[0]} is not a regular file")
    copy = os.memfd_create("deputize", os.MFD_CLOEXEC)
    stack.callback(os.close, copy)
    digest, size = hashlib.sha256(), 0
    while size <= _MAX_PROGRAM_BYTES and (part := os.pread(opened, _PART_BYTES, size)):
        digest.update(part)
        os.write(copy, part)
        size += len(part)
        await asyncio.sleep(0)
    if digest.hexdigest() != spec.program_sha256:
        raise StartRefused(
            f"the program {spec.command[0]} has the digest {digest.hexdigest()}, and not the pinned "
            f"{spec.program_sha256}"
        )
    os.lseek(copy, 0, os.SEEK_SET)
    return copy


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
        is_gone = await _wait_for_namespace(report)
        started.is_gone = is_gone if group is None else await _empty_group(group)
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


async def _wait_for_namespace(report: dict[str, int]) -> bool:
    """Wait until the first process of the namespace is gone, after all others; False if that is not known."""
    try:
        pidfd = os.pidfd_open(report["child-pid"])
    except (OSError, KeyError) as error:
        return isinstance(error, ProcessLookupError)
    try:
        async with asyncio.timeout(5):
            await wait_readable(pidfd)
        return True
    except TimeoutError:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return False
    finally:
        os.close(pidfd)


async def _empty_group(group: ControlGroup) -> bool:
    """Kill what is in a group until it can be removed; after some seconds, leave it to the next sweep."""
    for attempt in range(500):
        if group.remove():
            return True
        group.kill()
        await asyncio.sleep(0.001 if attempt < 100 else 0.02)
    return False


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
    """Receive one line with descriptors; empty if the peer only held the connection open.

    Raise OSError, TimeoutError included, if it sends too much or too slowly.
    """
    text = b""
    async with asyncio.timeout(_REQUEST_SECONDS):
        while not text.endswith(b"\n"):
            await wait_readable(connection.fileno())
            chunk, received, flags, _ = socket.recv_fds(connection, 65_536, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
            descriptors += received
            text += chunk
            if flags & socket.MSG_CTRUNC or len(descriptors) > _MOST_DESCRIPTORS:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
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


def read_peer(connection: socket.socket) -> tuple[int, int]:
    """Read the user and group of the process at the other end, as the kernel noted them."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, gid = struct.unpack("3i", credentials)
    return uid, gid


def _list_resource_limits(spec: SandboxSpec, *, is_weak: bool, is_shared: bool) -> dict[int, int]:
    """List the limits of each process; without control groups, they and a number of processes are all there is."""
    limits = spec.limits
    sizes = [limits.memory_bytes, limits.storage_bytes]
    if spec.result_folder is not None:
        sizes.append(spec.result_folder.size_bytes)
    if any(each.is_writable for each in spec.folders):
        sizes.append(_LARGEST_HOST_FILE)
    values = {
        # With 0, the kernel would still start what the host has for crashes, as root, and give it the memory.
        resource.RLIMIT_CORE: 1,
        resource.RLIMIT_NOFILE: min(limits.open_files, _SHARED_OPEN_FILES) if is_shared else limits.open_files,
        resource.RLIMIT_SIGPENDING: _SIGNALS,
        resource.RLIMIT_FSIZE: max(sizes),
    }
    if is_weak:
        # The data segment, not the address space: many runtimes reserve far more than they use.
        values[resource.RLIMIT_DATA] = limits.memory_bytes
    for kind, value in values.items():
        hard = resource.getrlimit(kind)[1]
        values[kind] = value if hard == resource.RLIM_INFINITY else min(value, hard)
    return values


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptors.pop())


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
    parser.add_argument("--uid-range", type=UserRange.parse)
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
    allowed_uids = frozenset({0, os.geteuid(), *options.allow})
    users, sharing = None, ""
    try:
        if is_root:
            os.setgroups([])
            users = claim_users(options.uid_range, allowed_uids)
        elif options.allow:
            sharing = "a supervisor of a plain user serves other users as itself: have root start it"
        else:
            users = enter_subordinate_users()
    except NoUsers as error:
        if is_root:
            sys.exit(f"No sandboxes are served: {error}.")
        sharing = str(error)
    supervisor = Supervisor(options.folder, users=users, allowed_uids=allowed_uids, stay=options.stay, sharing=sharing)
    asyncio.run(supervisor.serve())
    supervisor.close()


if __name__ == "__main__":
    main()
