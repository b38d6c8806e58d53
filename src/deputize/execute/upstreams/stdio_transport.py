"""Run MCP servers as local processes and talk to them over stdio: one process per credential.

A process that ends on its own is started again when it is next needed, at once the first time and then with growing
pauses. If a caller stops waiting for a process to start, the start continues for the next caller.
"""

import asyncio
import hmac
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from deputize.core.clock import Clock
from deputize.core.errors import Problem, ToolRequiresSetup, UpstreamTimeout, UpstreamUnavailable
from deputize.core.settings import McpServerSettings
from deputize.execute.upstreams.faults import UpstreamNotAtFault
from deputize.execute.upstreams.jsonrpc import ServerInfo, UpstreamRequest, UpstreamRpcError
from deputize.execute.upstreams.program_files import DOWNLOAD_SECONDS, downloads_program
from deputize.execute.upstreams.stdio_session import StdioSession
from deputize.execute.upstreams.subprocess_server import ServerProcess, ServerSandboxes, start_process

# The number of concurrent processes of one server, one per credential.
MOST_PROGRAMS: Final = 32
# A process that was idle for so long is stopped when another one is started.
_IDLE_SECONDS: Final = 300.0
_FIRST_PAUSE: Final = 0.5
_MAX_PAUSE: Final = 30.0
# A process that ran for so long started successfully, so its end counts as the first failure.
_STABLE_SECONDS: Final = 60.0


# So many different connections are logged.
_MOST_ATTEMPTS: Final = 200

log = structlog.get_logger(__name__)


@dataclass(kw_only=True, slots=True)
class _ProcessSlot:
    """The process for one credential, running, starting or stopped."""

    session: StdioSession | None = None
    start_task: "asyncio.Task[StdioSession] | None" = None
    started_at: float = 0.0
    used_at: float = 0.0
    failures: int = 0
    not_before: float = 0.0
    # Why it cannot be started at all until the operator changes something.
    setup_problem: ToolRequiresSetup | None = None


class StdioTransport:
    """The stdio transport to one server."""

    def __init__(
        self,
        server: McpServerSettings,
        clock: Clock,
        *,
        key: bytes,
        on_change: Callable[[], None],
        sandboxes: ServerSandboxes | None = None,
    ) -> None:
        self._server = server
        self._sandboxes = sandboxes
        # What programs connected to, or why not.
        self._attempts: set[tuple[str, str | None]] = set()
        self._clock = clock
        self._key = key
        self._on_change = on_change
        self._slots: OrderedDict[bytes, _ProcessSlot] = OrderedDict()
        self._stop_tasks: set[asyncio.Task[None]] = set()
        # A server that exits at `server/discover` is not probed again.
        self._should_probe = True
        # What a launcher downloads at the first start is kept for the others.
        self._is_downloaded = not downloads_program(server)
        self._is_closed = False

    async def fetch_server_info(self, secret: str | None) -> ServerInfo:
        """Fetch the server's current info."""
        return await (await self._get_session(secret)).fetch_server_info()

    async def send_request(self, request: UpstreamRequest) -> dict[str, Any]:
        """Send a request to the process for its credential, and return the result."""
        session = await self._get_session(request.secret)
        return await session.send_request(request)

    def listen_for_changes(self, secret: str | None) -> None:
        """Listen for list-changed notifications of the process for a credential, if it runs."""
        slot = self._slots.get(self._hash_secret(secret))
        if slot is not None and slot.session is not None:
            slot.session.listen_for_changes()

    def list_refused_hosts(self) -> list[str]:
        """List the hosts that programs wanted to connect to, and may not."""
        return sorted({target for target, reason in self._attempts if reason is not None and target})

    async def aclose(self) -> None:
        """Stop all processes."""
        self._is_closed = True
        start_tasks = [slot.start_task for slot in self._slots.values() if slot.start_task is not None]
        for task in start_tasks:
            task.cancel()
        await asyncio.gather(*start_tasks, return_exceptions=True)
        for slot in self._slots.values():
            self._stop_slot(slot)
        self._slots.clear()
        await asyncio.gather(*self._stop_tasks, return_exceptions=True)

    async def _get_session(self, secret: str | None) -> StdioSession:
        """Return the session with the process for a credential; start the process if it does not run."""
        key, now = self._hash_secret(secret), self._clock.monotonic()
        slot = self._slots.get(key)
        if slot is None:
            self._evict_slots(now)
            slot = self._slots[key] = _ProcessSlot()
        self._slots.move_to_end(key)
        slot.used_at = now
        if slot.session is not None and slot.session.is_open:
            return slot.session
        if slot.start_task is None:
            self._require_startable(slot, now)
            slot.start_task = asyncio.get_running_loop().create_task(self._start_session(slot, secret))
            slot.start_task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(slot.start_task)

    def _require_startable(self, slot: _ProcessSlot, now: float) -> None:
        if self._is_closed:
            raise UpstreamNotAtFault("this gateway is stopping", nothing_happened=True)
        if now < slot.not_before and slot.setup_problem is not None:
            raise slot.setup_problem.replace()
        if now < slot.not_before:
            raise UpstreamUnavailable(
                f"the process of the server {self._server.name} ended {slot.failures} times in a row; "
                "it will be started again later",
                retry_after_ms=int((slot.not_before - now) * 1000) + 1,
                nothing_happened=True,
            )

    async def _start_session(self, slot: _ProcessSlot, secret: str | None) -> StdioSession:
        seconds = self._server.start_seconds
        if not self._is_downloaded:
            seconds += DOWNLOAD_SECONDS
            log.info("server_may_download", server=self._server.name, program=self._server.command[0], seconds=seconds)
        try:
            async with asyncio.timeout(seconds):
                slot.session = await self._open_session(slot, secret)
            self._is_downloaded = True
            return slot.session
        except TimeoutError as error:
            self._record_failure(slot)
            raise UpstreamTimeout(
                f"the process of the server {self._server.name} did not complete its handshake within {seconds:.3g} s",
                nothing_happened=True,
            ) from error
        except UpstreamRpcError as rpc_error:
            self._record_failure(slot)
            raise UpstreamUnavailable(
                rpc_error.to_problem(self._server.name).message, nothing_happened=True
            ) from rpc_error
        except Problem as problem:
            self._record_failure(slot)
            slot.setup_problem = problem if isinstance(problem, ToolRequiresSetup) else None
            raise problem.replace(nothing_happened=True) from problem.__cause__
        finally:
            slot.start_task = None

    async def _open_session(self, slot: _ProcessSlot, secret: str | None) -> StdioSession:
        """Start a process and negotiate; if it exits at the probe, start it again without one."""
        try:
            process = await start_process(self._server, secret, self._sandboxes, self._note_attempt)
            return await self._negotiate_session(slot, process, probe=self._should_probe)
        except UpstreamUnavailable as error:
            if not self._should_probe or error.nothing_happened:
                raise
        self._should_probe = False
        process = await start_process(self._server, secret, self._sandboxes, self._note_attempt)
        return await self._negotiate_session(slot, process, probe=False)

    async def _negotiate_session(self, slot: _ProcessSlot, program: ServerProcess, *, probe: bool) -> StdioSession:
        slot.started_at = self._clock.monotonic()

        def handle_exit() -> None:
            session.log_exit()
            self._stop_in_background(session)
            if slot.session is session:
                slot.session = None
                self._record_failure(slot)
                self._on_change()

        session = StdioSession(program, self._server.name, on_change=self._on_change, on_exit=handle_exit)
        try:
            await session.negotiate(probe=probe)
        except BaseException:
            self._stop_in_background(session)
            raise
        return session

    def _note_attempt(self, target: str, reason: str | None) -> None:
        """Log a connection that a program made or was refused, each once; a program may try as often as it likes."""
        if (target, reason) in self._attempts or len(self._attempts) >= _MOST_ATTEMPTS:
            return
        self._attempts.add((target, reason))
        if reason is None:
            log.info("server_connected_to_host", server=self._server.name, target=target)
        else:
            log.warning("server_was_refused_host", server=self._server.name, target=target, reason=reason)

    def _record_failure(self, slot: _ProcessSlot) -> None:
        """Count an unexpected end, and set when the process may be started again."""
        now = self._clock.monotonic()
        slot.failures = 1 if now - slot.started_at >= _STABLE_SECONDS else slot.failures + 1
        if slot.failures > 1:
            longest_pause = min(_FIRST_PAUSE * 2 ** min(slot.failures - 2, 16), _MAX_PAUSE)
            jitter = int.from_bytes(self._clock.random_bytes(4)) / 2**32
            slot.not_before = now + longest_pause * (1 + jitter) / 2

    def _evict_slots(self, now: float) -> None:
        """Stop idle processes, and if the limit is reached, the least recently used one."""
        for key, slot in list(self._slots.items()):
            if key and slot.start_task is None and now - slot.used_at > _IDLE_SECONDS and not _is_busy(slot):
                self._stop_slot(self._slots.pop(key))
        if len(self._slots) < MOST_PROGRAMS:
            return
        idle_keys = (key for key, slot in self._slots.items() if slot.start_task is None and not _is_busy(slot))
        oldest = next(idle_keys, None)
        if oldest is None:
            raise UpstreamNotAtFault(
                f"all {MOST_PROGRAMS} processes of the server {self._server.name} are busy", nothing_happened=True
            )
        self._stop_slot(self._slots.pop(oldest))

    def _stop_slot(self, slot: _ProcessSlot) -> None:
        session, slot.session = slot.session, None
        if session is not None:
            self._stop_in_background(session)

    def _stop_in_background(self, session: StdioSession) -> None:
        task = asyncio.get_running_loop().create_task(session.stop())
        self._stop_tasks.add(task)
        task.add_done_callback(self._stop_tasks.discard)

    def _hash_secret(self, secret: str | None) -> bytes:
        """Derive a key for a credential without storing it."""
        return b"" if secret is None else hmac.digest(self._key, secret.encode(), "sha256")


def _is_busy(slot: _ProcessSlot) -> bool:
    return slot.session is not None and slot.session.is_open and slot.session.is_busy
