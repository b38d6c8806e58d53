"""Start a server process with a clean environment, and stop it with everything it started.

`process_supervisor.py` runs between the gateway and the process, or the process runs in a sandbox.
"""

import asyncio
import contextlib
import os
import pwd
import shutil
import sys
import tempfile
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Final

import structlog

from deputize.core.errors import (
    OutOfMemory,
    Problem,
    ProgramCrashed,
    ResourceLimitExceeded,
    SandboxFailed,
    ToolRequiresSetup,
    UpstreamUnavailable,
)
from deputize.core.settings import McpServerSettings
from deputize.core.value_types import frozen
from deputize.execute.egress_proxy import PROXY_ENVIRONMENT, PROXY_PORT, EgressProxy, NoteAttempt
from deputize.execute.guarded_paths import GuardedPaths, UnguardedFolder
from deputize.execute.shared_folders import FolderRefusal, SharedFolders
from deputize.execute.upstreams.jsonrpc import LARGEST_ANSWER
from deputize.execute.upstreams.program_files import list_folders
from deputize.execute.upstreams.program_snapshot import (
    PreparedProgram,
    prepare_program,
    prepare_sandboxed_program,
    require_no_fetching,
)
from deputize.sandboxes.client import RunningSandbox, SandboxClient, SandboxUnavailable
from deputize.sandboxes.port import Ending, SandboxEnd, SandboxLimits, SandboxSpec

_SUPERVISOR_SCRIPT: Final = str(Path(__file__).with_name("process_supervisor.py"))
# How long a process may take to end after its input is closed.
_EXIT_SECONDS: Final = 1.0
# How long the supervisor may take to stop the process; it waits two seconds itself.
_SUPERVISOR_SECONDS: Final = 10.0
# How long the supervisor of sandboxes may take to tell why a process ended, after its output did.
_END_SECONDS: Final = 10.0
_MAX_LINES: Final = 40
_MAX_LINE_LENGTH: Final = 500
_SANDBOX_ADVICE: Final = (
    "The operator must run deputize sandboxes check on the gateway's host, which says what to change, or set "
    "sandbox = false for this server under [[servers]] if its program is trusted."
)
_GUARD_ADVICE: Final = (
    "The operator must change that in the folders of this server under [[servers]]: others run what stands there."
)
_LIMITS_ADVICE: Final = (
    "It runs in a sandbox, and reaches only its own files, and the folders and hosts of this server under [[servers]]. "
    "The operator must read its last lines in the log of the gateway and list what it lacks, or set sandbox = false if "
    "the program is trusted."
)

log = structlog.get_logger(__name__)


class _ProcessFolder:
    """The folder of one process: `work`, where it starts, `home`, and `files`, the copies of its pinned files."""

    def __init__(self, path: str, uid: int | None) -> None:
        self.path = path
        self.work = Path(path, "work")
        self.home = Path(path, "home")
        self.files = Path(path, "files")
        self._uid = uid

    def create(self) -> None:
        """Create the folders; the process may write into `work` and `home` only."""
        self.work.mkdir(mode=0o700)
        self.home.mkdir(mode=0o700)
        self.files.mkdir(mode=0o750)
        if self._uid is not None:
            os.chown(self.path, -1, self._uid)
            os.chmod(self.path, 0o710)
            os.chown(self.work, self._uid, self._uid)
            os.chown(self.home, self._uid, self._uid)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class ServerProcess:
    """A running server process and its pipes."""

    def __init__(
        self,
        server: McpServerSettings,
        process: asyncio.subprocess.Process | RunningSandbox,
        folder: _ProcessFolder,
        *,
        has_credential: bool,
        proxy: EgressProxy | None = None,
        guarded: GuardedPaths | None = None,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._server = server
        self._process = process
        self._folder = folder
        self._proxy = proxy
        self._guarded = guarded
        self._input = process.stdin
        self._output = process.stdout
        self._end: SandboxEnd | None = None
        self._last_lines: deque[str] = deque(maxlen=_MAX_LINES)
        # The stderr of a process with a credential is read, so that it does not block, and discarded.
        self._stderr_task = asyncio.get_running_loop().create_task(
            self._drain_stderr(process.stderr, keep=not has_credential)
        )

    def write(self, message: bytes) -> None:
        """Write one message as a line to the process's input."""
        self._input.write(message + b"\n")

    @property
    def unread_bytes(self) -> int:
        """The number of written bytes that the process has not read yet."""
        return self._input.transport.get_write_buffer_size()

    async def flush_input(self) -> None:
        """Wait until the process has read most of its input."""
        with contextlib.suppress(ConnectionError):
            await self._input.drain()

    async def read_line(self) -> bytes:
        """Read the next line of the process's output; empty when it has ended."""
        try:
            return await self._output.readline()
        except ValueError as error:
            raise UpstreamUnavailable(
                f"the process of the server {self._server.name} sent a message larger than {LARGEST_ANSWER} bytes"
            ) from error

    async def stop(self) -> None:
        """Close the process's input, then send SIGTERM, then SIGKILL, and wait until it has ended."""
        with contextlib.suppress(ConnectionError):
            self._input.close()
        process = self._process
        # A sandbox has nobody who passes on SIGTERM.
        terminate = process.kill if isinstance(process, RunningSandbox) else process.terminate
        for seconds, end in ((_EXIT_SECONDS, terminate), (_SUPERVISOR_SECONDS, process.kill)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await process.wait()
                    break
            with contextlib.suppress(ProcessLookupError):
                end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SUPERVISOR_SECONDS):
                await process.wait()
        self._stderr_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._stderr_task
        if self._proxy is not None:
            await self._proxy.aclose()
        if isinstance(process, RunningSandbox):
            await process.aclose()
        if self._guarded is not None:
            await asyncio.to_thread(self._guarded.report, self._server.name)
        await asyncio.to_thread(self._folder.remove)

    async def explain_end(self) -> Problem:
        """Say why the process no longer answers, as the problem of the requests that it did not answer."""
        name = self._server.name
        if isinstance(self._process, RunningSandbox):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    self._end = await self._process.wait()
        if self._end is not None and not self._end.has_started:
            # Nobody else wrote there.
            words = "; ".join((self._end.note, *list(self._last_lines)[-2:]))
            return ToolRequiresSetup(
                f"the sandbox of the server {name} was not started: {words}",
                advice=_SANDBOX_ADVICE,
                nothing_happened=True,
            )
        match None if self._end is None else self._end.ending:
            case Ending.MEMORY:
                return OutOfMemory(f"the process of the server {name} needed more than {self._server.memory_mb} MB")
            case Ending.PROCESSES:
                return ResourceLimitExceeded(f"the process of the server {name} started more processes than it may")
            case Ending.CRASH:
                return ProgramCrashed(f"the process of the server {name} crashed before it answered")
            case Ending.FAILURE:
                return SandboxFailed(f"the sandbox of the server {name} ended before it answered")
            case _:
                advice = _LIMITS_ADVICE if isinstance(self._process, RunningSandbox) else None
                return UpstreamUnavailable(f"the process of the server {name} ended before it answered", advice=advice)

    def log_exit(self) -> None:
        """Log that the process ended on its own, with its last lines of stderr."""
        if isinstance(self._process, RunningSandbox):
            end = {} if self._end is None else {**asdict(self._end), "status": self._end.exit_code}
        else:
            end = {"status": self._process.returncode}
        log.warning("server_process_exited", server=self._server.name, stderr=list(self._last_lines)[-5:], **end)

    async def _drain_stderr(self, stream: asyncio.StreamReader, *, keep: bool) -> None:
        while data := await stream.read(65_536):
            if keep:
                lines = data[-65_536:].decode(errors="replace").splitlines()[-_MAX_LINES:]
                self._last_lines += [line[:_MAX_LINE_LENGTH] for line in lines if line.strip()]


@frozen
class ServerSandboxes:
    """What starts the sandboxes of servers, and which folders they may show."""

    client: SandboxClient
    folders: SharedFolders


async def start_process(
    server: McpServerSettings,
    secret: str | None,
    sandboxes: ServerSandboxes | None = None,
    note_attempt: NoteAttempt = lambda target, reason: None,
) -> ServerProcess:
    """Start the server's process; errors here mean that no call was sent.

    `note_attempt` is told of each connection that a program in a sandbox wants to make.
    """
    if not server.sandbox:
        sandboxes = None
    elif sandboxes is None:
        raise ToolRequiresSetup(f"the server {server.name} needs a sandbox, and this process starts none")
    if sandboxes is not None:
        require_no_fetching(server)
        await asyncio.to_thread(_require_folders, server, sandboxes.folders)
        await _require_supervisor(server, sandboxes.client)
    try:
        # A sandbox is given its copies as descriptors, and sees nothing else of the folder.
        folder = _ProcessFolder(tempfile.mkdtemp(prefix="deputize-server-"), server.uid)
    except OSError as error:
        raise UpstreamUnavailable(
            f"the process of the server {server.name} cannot be started, because this gateway has no writable folder "
            "for temporary files: mount one at /tmp, or set TMPDIR to one",
            nothing_happened=True,
        ) from error
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": os.environ.get("LANG", "C.UTF-8")}
    if sandboxes is None and (server.uid is not None or not _has_home()):
        # An unused user has no home, and npx and others do not start without one.
        environment["HOME"] = str(folder.home)
    environment |= server.env
    if secret is not None and server.secret_env is not None:
        environment[server.secret_env] = secret
    try:
        await asyncio.to_thread(folder.create)
        if sandboxes is not None:
            hosts, private_hosts = frozenset(server.hosts), frozenset(server.private_hosts)
            has_hosts = bool(hosts | private_hosts)
            proxy = EgressProxy(hosts, note_attempt, private_hosts=private_hosts) if has_hosts else None
            # From here on nothing fails: nobody else would end it.
            sandbox, guarded = await _start_sandbox(server, sandboxes.client, folder, environment)
            if proxy is not None and sandbox.listener is not None:
                proxy.start(sandbox.listener)
            return ServerProcess(
                server, sandbox, folder, has_credential=secret is not None, proxy=proxy, guarded=guarded
            )
        program = await asyncio.to_thread(prepare_program, server, environment["PATH"], folder.files)
        try:
            process = await _start_supervisor(server, program, folder, environment)
        finally:
            os.close(program.descriptor)
    except OSError as error:
        folder.remove()
        raise UpstreamUnavailable(
            f"the process of the server {server.name} cannot be started: {error.strerror}", nothing_happened=True
        ) from error
    except BaseException:
        folder.remove()
        raise
    return ServerProcess(server, process, folder, has_credential=secret is not None)


def _require_folders(server: McpServerSettings, folders: SharedFolders) -> None:
    for each, path in list_folders(server):
        try:
            folders.require_shareable(path, is_written=each.write)
        except FolderRefusal as refusal:
            raise ToolRequiresSetup(
                f"the server {server.name} was not started: its folder {each.path} is not shown to it, because "
                f"{refusal.reason}",
                advice=f"For this server under [[servers]], the operator must {refusal.todo}.",
                nothing_happened=True,
            ) from refusal


async def _require_supervisor(server: McpServerSettings, sandboxes: SandboxClient) -> None:
    """Require that this host starts sandboxes, before anything is copied for one."""
    try:
        await sandboxes.connect()
    except SandboxUnavailable as error:
        raise _build_refusal(server, error) from error


async def _start_sandbox(
    server: McpServerSettings, sandboxes: SandboxClient, folder: _ProcessFolder, environment: dict[str, str]
) -> tuple[RunningSandbox, GuardedPaths]:
    """Start the server's program where it sees nothing but what it runs and what settings list."""
    search_path = environment["PATH"]
    if "PATH" not in server.env:
        # That of the gateway names folders that are not there.
        del environment["PATH"]
    has_hosts = bool(server.hosts or server.private_hosts)
    if has_hosts:
        environment = {**PROXY_ENVIRONMENT, **environment}
    program = await asyncio.to_thread(prepare_sandboxed_program, server, search_path, folder.files)
    try:
        guarded = await asyncio.to_thread(GuardedPaths, program.folders)
    except UnguardedFolder as error:
        raise ToolRequiresSetup(
            f"the server {server.name} was not started: {error}", advice=_GUARD_ADVICE, nothing_happened=True
        ) from error
    spec = SandboxSpec(
        command=program.command,
        seconds=None,
        folders=(*program.folders, *guarded.read_only),
        working_folder=program.working_folder,
        environment=environment,
        proxy_port=PROXY_PORT if has_hosts else None,
        limits=SandboxLimits(
            memory_bytes=server.memory_mb * 1_048_576, processes=server.processes, open_files=server.open_files
        ),
    )
    try:
        return await sandboxes.start(spec, longest_line=LARGEST_ANSWER), guarded
    except SandboxUnavailable as error:
        raise _build_refusal(server, error) from error


def _build_refusal(server: McpServerSettings, error: SandboxUnavailable) -> ToolRequiresSetup:
    return ToolRequiresSetup(
        f"the server {server.name} was not started, because it needs a sandbox: {error}",
        advice=_SANDBOX_ADVICE,
        nothing_happened=True,
    )


def _has_home() -> bool:
    """Tell whether the user of this process has a home, which its programs then find and share."""
    try:
        return os.path.isdir(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return False


async def _start_supervisor(
    server: McpServerSettings, program: PreparedProgram, folder: _ProcessFolder, environment: dict[str, str]
) -> asyncio.subprocess.Process:
    uid = "-" if server.uid is None else str(server.uid)
    limits = (str(os.getpid()), str(server.memory_mb * 1_048_576), str(server.open_files), uid)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", _SUPERVISOR_SCRIPT, *limits, folder.path, str(program.descriptor)),
        *program.arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=program.folder or server.folder or folder.work,
        env=environment,
        pass_fds=(program.descriptor,),
        start_new_session=True,
        limit=LARGEST_ANSWER,
    )
