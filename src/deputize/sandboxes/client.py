"""Run programs in sandboxes, to their end or as long as they are needed: the gateway's side of the supervisor."""

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from deputize.sandboxes.port import (
    MAX_FOLDERS,
    Backend,
    Ending,
    SandboxEnd,
    SandboxFolder,
    SandboxSpec,
    choose_stronger,
)
from deputize.sandboxes.supervisor import SOCKET_NAME, StartRefused, read_peer, wait_readable

if TYPE_CHECKING:
    from deputize.core.settings import Settings

_START_SECONDS: Final = 20.0
_RESTART_SECONDS: Final = 1.0
_LONGEST_LINE: Final = 8_192
SHARED_USER_ADVICE: Final = (
    "install newuidmap (apt-get install uidmap) and give the user subordinate ones with usermod --add-subuids and "
    "--add-subgids, or run deputize sandboxes serve as root with --allow and the user of the gateway"
)


class SandboxUnavailable(Exception):
    """This host cannot run sandboxes as they are required; nothing has run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxResult:
    """How a sandbox ended, and the beginning of what it wrote."""

    end: SandboxEnd
    stdout: bytes
    stderr: bytes


class _Pipe:
    """One end of a pipe for a transport, which closes a descriptor once, whoever else closes it.

    A loop of uvloop closes the descriptor itself and then what it was given: with a usual file, the second time may
    close what another thread has opened meanwhile.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._status = os.fstat(descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._descriptor), self._status):
                os.close(self._descriptor)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Output:
    content: bytes
    is_cut: bool


class RunningSandbox:
    """A program that runs in a sandbox, and its pipes. It is killed when it is closed, or this process ends.

    Once it has ended by itself, `result_folder` is what it left, until it is closed.
    """

    def __init__(
        self,
        connection: socket.socket,
        stdin: asyncio.StreamWriter,
        outputs: Sequence[asyncio.StreamReader],
        listener: socket.socket | None,
        stack: contextlib.AsyncExitStack,
        refusal: str | None = None,
    ) -> None:
        self.stdin = stdin
        # Where the gateway accepts what connects to the port of the proxy.
        self.listener = listener
        self.stdout, self.stderr = outputs
        self.result_folder: Path | None = None
        self._connection = connection
        self._stack = stack
        # Why its request was not sent.
        self._refusal = refusal
        self._end_task = asyncio.get_running_loop().create_task(self._receive_end())

    async def wait(self) -> SandboxEnd:
        """Wait until it has ended and nothing of it is left; say who ended it."""
        return await asyncio.shield(self._end_task)

    async def finish(self, stdin: bytes = b"", *, max_output_bytes: int = 1_048_576) -> SandboxResult:
        """Give it its input, and wait for its end and what it wrote; it is ended if that is more."""
        if stdin:
            self.stdin.write(stdin)
        self.stdin.close()
        outputs = (self.stdout, self.stderr)
        collected = asyncio.gather(*(_collect(each, max_output_bytes, self) for each in outputs))
        try:
            end = await self.wait()
            streams = await collected
        finally:
            collected.cancel()
        if any(each.is_cut for each in streams) and end.ending in (Ending.EXIT, Ending.CRASH):
            # The program ended before the supervisor heard of it; what it wrote is cut all the same.
            end = replace(end, ending=Ending.OUTPUT)
        stdout, stderr = (each.content for each in streams)
        return SandboxResult(end=end, stdout=stdout, stderr=stderr)

    def kill(self, ending: Ending = Ending.CANCEL) -> None:
        """Have it ended because it is no longer needed, or has written too much."""
        with contextlib.suppress(OSError):
            self._connection.send(f"{ending}\n".encode())

    async def aclose(self) -> None:
        """End it, if it runs, and close its pipes."""
        self._end_task.cancel()
        await asyncio.gather(self._end_task, return_exceptions=True)
        await self._stack.aclose()

    async def _receive_end(self) -> SandboxEnd:
        if self._refusal is not None:
            return SandboxEnd(ending=Ending.FAILURE, note=self._refusal, has_started=False)
        descriptors: list[int] = []
        answer = await _receive_line(self._connection, descriptors)
        for each in descriptors:
            self._stack.callback(os.close, each)
            self.result_folder = Path(f"/proc/self/fd/{each}")
        return SandboxEnd(
            ending=Ending(answer.get("ending", Ending.FAILURE)),
            exit_code=answer.get("exit_code"),
            note=answer.get("note", "the supervisor of this host's sandboxes ended"),
            has_started=answer.get("has_started", True),
        )


class SandboxClient:
    """Sandboxes of this host, none of a weaker backend than this.

    A supervisor that does not run, or was killed, is started with the next sandbox.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        accept_weak_limits: bool = False,
        accept_shared_user: bool = False,
        backend: Backend | str = Backend.NAMESPACES,
    ) -> None:
        self.backend = Backend(backend)
        self.folder = folder or find_default_folder()
        self._accept_weak_limits = accept_weak_limits
        self._accept_shared_user = accept_shared_user
        # Held open so that the supervisor stays while this gateway does.
        self._presence: socket.socket | None = None
        self._start_lock = asyncio.Lock()
        self.weak_limits: str | None = None
        self.shared_user: str | None = None

    @classmethod
    def from_settings(cls, settings: "Settings", *, accept_weak_limits: bool = False) -> Self:
        """Build the sandboxes that the settings require; what runs without one where need be accepts weak limits."""
        return cls(
            settings.sandboxes.folder,
            accept_weak_limits=accept_weak_limits or settings.accepts_weakness("weak_limits"),
            accept_shared_user=settings.environment != "production",
            backend=settings.sandboxes.backend,
        )

    async def connect(self, backend: Backend = Backend.NAMESPACES) -> None:
        """Make sure that sandboxes can be started here, at least of this backend, or raise SandboxUnavailable."""
        with await self._connect(choose_stronger(self.backend, backend)):
            pass

    async def run(self, spec: SandboxSpec, stdin: bytes = b"", *, max_output_bytes: int = 1_048_576) -> SandboxResult:
        """Run a program to its end; raise SandboxUnavailable if it could not be started at all.

        If this is cancelled, the sandbox is killed.
        """
        async with contextlib.aclosing(await self.start(spec)) as sandbox:
            return await sandbox.finish(stdin, max_output_bytes=max_output_bytes)

    async def start(self, spec: SandboxSpec, *, longest_line: int = 65_536) -> RunningSandbox:
        """Start a program that runs on; raise SandboxUnavailable if it could not be started at all.

        `longest_line` bounds what readers of its output collect before it is read.
        """
        backend = choose_stronger(self.backend, spec.backend)
        spec = replace(spec, backend=backend, may_share_user=spec.may_share_user and self._accept_shared_user)
        async with contextlib.AsyncExitStack() as stack:
            connection = stack.enter_context(await self._connect(spec.backend))
            loop = asyncio.get_running_loop()
            pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
            # A transport closes what it is given, also where this is canceled; the others are ours to close.
            ours = [_Pipe(pipes[1][0]), _Pipe(pipes[2][0]), _Pipe(pipes[0][1])]
            theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
            refusal = None
            try:
                outputs = [await _open_reader(ours.pop(0), longest_line, stack) for _ in range(2)]
                stdin = await _open_writer(ours.pop(), stack)
                with contextlib.ExitStack() as opened:
                    try:
                        spec, shown = open_shown(spec, opened)
                    except StartRefused as error:
                        refusal, spec = str(error), replace(spec, proxy_port=None)
                    else:
                        line = spec.to_json() + b"\n"
                        # The first part is smaller than the buffer of a new socket, so it never has to wait.
                        sent = socket.send_fds(connection, [line[:65_536]], [*theirs, *shown])
                        if sent < len(line):
                            await loop.sock_sendall(connection, line[sent:])
            except OSError as error:
                # A request that did not arrive whole starts nothing.
                raise SandboxUnavailable("the supervisor of this host's sandboxes ended before it began") from error
            finally:
                for pipe in ours:
                    pipe.close()
                for each in theirs:
                    os.close(each)
            listener = None if spec.proxy_port is None else await _receive_listener(connection, stack)
            return RunningSandbox(connection, stdin, outputs, listener, stack.pop_all(), refusal)

    async def aclose(self) -> None:
        """Let the supervisor end, if no other gateway uses it."""
        if self._presence is not None:
            self._presence.close()
            self._presence = None

    async def _connect(self, backend: Backend) -> socket.socket:
        connection, greeting = await self._open()
        self.weak_limits, self.shared_user = greeting["weak_limits"], greeting.get("shared_user")
        problem = find_problem(greeting, backend)
        if problem is None and self.weak_limits is not None and not self._accept_weak_limits:
            problem = f"this host has only weak limits: {self.weak_limits}"
        if problem is None and self.shared_user is not None and not self._accept_shared_user:
            problem = f"{self.shared_user}; {SHARED_USER_ADVICE}"
        if problem is not None:
            connection.close()
            raise SandboxUnavailable(problem)
        return connection

    async def _open(self) -> tuple[socket.socket, dict[str, Any]]:
        """Connect, and start a supervisor if there is none."""
        async with self._start_lock:
            if self._presence is None or _is_closed(self._presence):
                await self.aclose()
                self._presence, _ = await self._connect_or_start()
        return await self._connect_or_start()

    async def _connect_or_start(self) -> tuple[socket.socket, dict[str, Any]]:
        loop = asyncio.get_running_loop()
        end, next_start = loop.time() + _START_SECONDS, loop.time()
        while True:
            connection = socket.socket(socket.AF_UNIX)
            connection.setblocking(False)
            try:
                await loop.sock_connect(connection, str(self.folder / SOCKET_NAME))
                self._require_own_supervisor(connection)
                greeting = await _receive_line(connection, [])
                if greeting:
                    return connection, greeting
            except OSError:
                pass
            except BaseException:
                connection.close()
                raise
            connection.close()
            if loop.time() > end:
                raise SandboxUnavailable(f"no supervisor of sandboxes answers at {self.folder / SOCKET_NAME}")
            if loop.time() >= next_start:
                # Again after a while: one that is just ending still holds the lock, and the new one gives way to it.
                next_start = loop.time() + _RESTART_SECONDS
                await self._start_supervisor()
            await asyncio.sleep(0.02)

    def _require_own_supervisor(self, connection: socket.socket) -> None:
        """Refuse a socket that another user put there: it would be given the programs' arguments and input."""
        if read_peer(connection)[0] not in (0, os.geteuid()):
            raise SandboxUnavailable(f"another user serves {self.folder / SOCKET_NAME}")

    async def _start_supervisor(self) -> None:
        try:
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            owner = self.folder.stat().st_uid
        except OSError as error:
            raise SandboxUnavailable(f"the folder {self.folder} cannot be made: {error.strerror}") from error
        if owner not in (0, os.geteuid()):
            raise SandboxUnavailable(
                f"the folder {self.folder} belongs to another user: set folder in [sandboxes], or XDG_RUNTIME_DIR, to "
                "one where only this user can make files"
            )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "deputize.sandboxes.supervisor", str(self.folder), "--detach",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            env={
                "PYTHONPATH": os.pathsep.join(each for each in sys.path if each), "PATH": os.defpath,
                # It removes what gateways that were killed left there.
                "TMPDIR": tempfile.gettempdir(),
            },
            start_new_session=True,
        )  # fmt: skip
        await process.wait()


def open_shown(spec: SandboxSpec, stack: contextlib.ExitStack) -> tuple[SandboxSpec, list[int]]:
    """Open what a sandbox is shown, and its pinned program; return the request for these descriptors.

    Raise StartRefused, which names it, if one of them cannot be opened.
    """
    folders = [_normalize(each) for each in spec.folders]
    paths = [(each.path if each.source is None else each.source, os.O_PATH) for each in folders]
    spec = replace(spec, folders=tuple(folders), working_folder=os.path.normpath(spec.working_folder))
    if spec.program_sha256 is not None:
        program = os.path.realpath(spec.command[0])
        spec = replace(spec, command=(program, *spec.command[1:]))
        paths.append((program, os.O_RDONLY | os.O_NONBLOCK))
    if len(folders) > MAX_FOLDERS:
        raise StartRefused(f"a sandbox is shown at most {MAX_FOLDERS} folders and files, and not {len(folders)}")
    descriptors = []
    for path, access in paths:
        try:
            descriptors.append(os.open(path, access | os.O_CLOEXEC))
        except (OSError, ValueError) as error:
            raise StartRefused(f"{path} cannot be shown: {getattr(error, 'strerror', error)}") from error
        stack.callback(os.close, descriptors[-1])
    return spec, descriptors


def _normalize(folder: SandboxFolder) -> SandboxFolder:
    """Write paths as the supervisor takes them, which refuses what leads elsewhere by its parts."""
    source = None if folder.source is None else os.path.normpath(folder.source)
    return replace(folder, path=os.path.normpath(folder.path), source=source)


def find_problem(greeting: dict[str, Any], backend: Backend) -> str | None:
    """Find in the greeting of a supervisor why it starts no sandboxes of a backend."""
    if "shared_user" not in greeting:
        return "the supervisor of this host's sandboxes is of an earlier release: restart it"
    return greeting["problem" if backend is Backend.NAMESPACES else "gvisor"]  # type: ignore[no-any-return]  # our own


def find_default_folder() -> Path:
    """Find the folder of this host's supervisor: one for all gateways of a user."""
    if os.geteuid() == 0:
        return Path("/run/deputize/sandboxes")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime, "deputize") if runtime else Path(f"/tmp/deputize-{os.geteuid()}")  # owner checked


async def _open_reader(pipe: _Pipe, longest_line: int, stack: contextlib.AsyncExitStack) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=longest_line)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    stack.callback(transport.close)
    return reader


async def _open_writer(pipe: _Pipe, stack: contextlib.AsyncExitStack) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    # A protocol of readers is what the standard library has with flow control.
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), pipe
    )
    stack.callback(transport.close)
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def _collect(reader: asyncio.StreamReader, max_bytes: int, sandbox: RunningSandbox) -> _Output:
    """Read a stream to its end. At too many bytes, have the sandbox ended, and keep the beginning."""
    content = bytearray()
    while chunk := await reader.read(65_536):
        content += chunk
        if len(content) > max_bytes:
            sandbox.kill(Ending.OUTPUT)
            del content[max_bytes:]
            while await reader.read(65_536):
                continue
            return _Output(content=bytes(content), is_cut=True)
    return _Output(content=bytes(content), is_cut=False)


async def _receive_listener(connection: socket.socket, stack: contextlib.AsyncExitStack) -> socket.socket | None:
    """Receive the listener in a sandbox's network; None if it was not started, as its end will say."""
    await wait_readable(connection.fileno())
    # An end has no descriptor, and stays for who waits for it.
    try:
        if connection.recv(3, socket.MSG_PEEK) != b"{}\n":
            return None
        _, descriptors, _, _ = socket.recv_fds(connection, 3, 1)
    except OSError:
        return None
    if not descriptors:
        return None
    # Descriptors are received inheritable: a process that is started here would keep the network of the sandbox.
    os.set_inheritable(descriptors[0], False)
    listener = stack.enter_context(socket.socket(fileno=descriptors[0]))
    listener.setblocking(False)
    return listener


async def _receive_line(connection: socket.socket, descriptors: list[int]) -> dict[str, Any]:
    """Receive one line of JSON, and what descriptors come with it; empty if the connection ends before."""
    text = b""
    while not text.endswith(b"\n") and len(text) < _LONGEST_LINE:
        await wait_readable(connection.fileno())
        try:
            chunk, received, _, _ = socket.recv_fds(connection, 4_096, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            return {}
        descriptors += received
        if not chunk:
            return {}
        text += chunk
    value: dict[str, Any] = json.loads(text)
    return value


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
