"""Probe each server while the process runs: at once, when the server reports a change, and periodically.

One task per server, so that none delays another or the startup. An unreachable server is probed again with growing
pauses; its tools stay registered, as unavailable.

`app.py` starts and stops the monitor, and interfaces can request a probe. `import_tools.py` processes the result, and
the runtime's server states record it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

import asyncpg
import orjson
import structlog

from deputize.catalog.drift.verdicts import INSTRUCTIONS
from deputize.core.caller import Caller, Epochs, operator_caller
from deputize.core.errors import Problem, ToolRequiresSetup
from deputize.core.event_loop.task_cancellation import cancel_task
from deputize.core.event_loop.timed_wait import wait_for_event
from deputize.core.mcp.resources import PinnedResources
from deputize.core.settings import McpServerSettings
from deputize.lifecycle.runtime import Runtime
from deputize.operations.servers.import_tools import ProbeResult, ToolImporter
from deputize.operations.servers.pins import SQL, load_pins
from deputize.operations.servers.probe_credential import open_probe_credential
from deputize.operations.servers.settings_sync import sync_tool_settings
from deputize.store.pool import CONNECTION_ERRORS

log = structlog.get_logger(__name__)
_MIN_BACKOFF_SECONDS = 1.0
_MAX_BACKOFF_SECONDS = 60.0
# Limits for a server that reports changes all the time: probing takes at most a quarter of the time, and a server that
# changes at every probe is probed less and less often, down to once per `probe_seconds`.
_MIN_PAUSE_SECONDS = 0.5
_REST_RATIO = 3.0
_MAX_CHANGE_STREAK = 3


class ServerMonitor:
    def __init__(
        self, runtime: Runtime, complete_caller: Callable[[Caller], Awaitable[Caller]], *, registers_tools: bool = True
    ) -> None:
        self._runtime = runtime
        self._complete_caller = complete_caller
        # A worker only watches: what its settings say of a server becomes no tool, and changes none.
        self._registers_tools = registers_tools
        self._importer = ToolImporter(runtime, complete_caller)
        self.servers = [(each.tenant or runtime.settings.tools.tenant, each) for each in runtime.settings.servers]
        keys = [(tenant, each.name) for tenant, each in self.servers]
        self._wake_events = {key: asyncio.Event() for key in keys}
        self._first_probe_events = {key: asyncio.Event() for key in keys}
        self._probe_locks = {key: asyncio.Lock() for key in keys}
        # Servers whose registered tools were not compared with the settings yet.
        self._pending_sync = set(keys)
        self._synced_epochs: dict[str, Epochs] = {}
        self._sync_locks = {tenant: asyncio.Lock() for tenant, _ in self.servers}
        # The resource pins that were last passed to the upstreams.
        self._pin_digests: dict[tuple[str, str], dict[str, str]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        if self.servers:
            # Before any call: no server may be used without its pins.
            for tenant in sorted({tenant for tenant, _ in self.servers}):
                await self.sync_pins(tenant)
            self._runtime.upstreams.add_change_listener(self.request_probe)
        self._tasks = [
            asyncio.create_task(self._run_probe_loop(tenant, each), name=f"server {each.name}")
            for tenant, each in self.servers
        ]

    @property
    def is_alive(self) -> bool:
        return not any(task.done() for task in self._tasks)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            await cancel_task(task)

    async def wait_for_first_probes(self, seconds: float) -> None:
        """Wait until every server was probed, successfully or not, or until the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for probe_event in self._first_probe_events.values():
                    await probe_event.wait()

    def request_probe(self, tenant: str, server: str) -> None:
        """Request a probe because something may have changed; many requests at once lead to one probe."""
        wake_event = self._wake_events.get((tenant, server))
        if wake_event is not None:
            wake_event.set()

    async def probe_server(self, tenant: str, server: str) -> ProbeResult:
        """Probe a server now and record the result; raise why it failed. Concurrent probes run one after the other."""
        settings = self._runtime.upstreams.get_settings(tenant, server)
        async with self._probe_locks[tenant, server]:
            try:
                return await self._probe(tenant, settings)
            except Problem as problem:
                needs_setup = isinstance(problem, ToolRequiresSetup)
                reason = f"{problem.message}. {problem.advice.rstrip('.')}" if needs_setup else problem.message
                self._record_failure(tenant, server, reason, needs_setup=needs_setup)
                raise
            finally:
                self._first_probe_events[tenant, server].set()

    async def _probe(self, tenant: str, server: McpServerSettings) -> ProbeResult:
        runtime = self._runtime
        async with open_probe_credential(runtime, tenant, server) as credential:
            seconds = runtime.upstreams.get_start_seconds(tenant, server)
            discovery = await runtime.upstreams.discover_server(tenant, server.name, credential, seconds)
        if not self._registers_tools:
            await self.sync_pins(tenant)
            runtime.server_states.record_probe(tenant, server.name, discovery, now=runtime.stamps.now())
            async with runtime.store.read_transaction(tenant) as connection:
                server_pins = await load_pins(connection, tenant, server.name)
            return ProbeResult(registered_tools=(), change_count=0, server_pins=server_pins)
        if (tenant, server.name) in self._pending_sync:
            await sync_tool_settings(runtime, await self._complete_caller(operator_caller(tenant)), server)
            self._pending_sync.discard((tenant, server.name))
        probe_result = await self._importer.import_tools(tenant, server, discovery)
        await self.sync_pins(tenant)
        runtime.server_states.record_probe(tenant, server.name, discovery, now=runtime.stamps.now())
        return probe_result

    async def sync_pins(self, tenant: str) -> None:
        """Load the pins again after the tenant's authority changed, here or on another gateway."""
        names = [server.name for owner, server in self.servers if owner == tenant]
        if not names:
            return
        # One at a time, so that a slow reader cannot overwrite newer pins with older ones.
        async with self._sync_locks[tenant]:
            async with self._runtime.store.read_transaction(tenant) as connection:
                rows = await connection.fetch(SQL["list_resource_pins"], tenant)
                pin_digests = {
                    name: {row["item"]: row["digest"] for row in rows if row["server"] == name} for name in names
                }
                stale_names = [name for name in names if self._pin_digests.get((tenant, name)) != pin_digests[name]]
                rows_by_server = {
                    name: await connection.fetch(SQL["list_resource_definitions"], tenant, name) for name in stale_names
                }
            for name in names:
                self._accept_instructions(tenant, name, pin_digests[name].get(INSTRUCTIONS))
            for name, server_rows in rows_by_server.items():
                # In a thread: there may be megabytes of it.
                pinned_resources = await asyncio.to_thread(_build_pinned_resources, server_rows)
                self._runtime.upstreams.pin_resources(tenant, name, pinned_resources)
                self._pin_digests[tenant, name] = {row["item"]: row["digest"] for row in server_rows}

    async def refresh(self, tenant: str, at_least: Epochs) -> object:
        """Refresh the tenant's authority and its pins; the epoch watcher calls this."""
        fresh = await self._runtime.authority.refresh(tenant, at_least)
        await self.sync_pins(tenant)
        self._synced_epochs[tenant] = at_least
        return fresh

    def list_epochs(self) -> dict[str, Epochs]:
        """List the epochs for the watcher: those at which the pins were read, if the authority is already newer."""
        epochs = self._runtime.authority.list_epochs()
        for tenant in {tenant for tenant, _ in self.servers} & epochs.keys():
            synced_epochs = self._synced_epochs.get(tenant, Epochs())
            if not synced_epochs.is_at_least(epochs[tenant]):
                epochs[tenant] = synced_epochs
        return epochs

    def _accept_instructions(self, tenant: str, server: str, instructions: str | None) -> None:
        # Without a pin no instructions are accepted.
        self._runtime.server_states.pin_instructions(tenant, server, instructions or "")
        self._runtime.upstreams.pin_instructions(tenant, server, instructions or "")

    def _record_failure(self, tenant: str, server: str, reason: str, *, needs_setup: bool = False) -> None:
        previous = self._runtime.server_states.get_state(tenant, server)
        if previous is None or previous.is_connected:
            log.warning("server_unavailable", tenant=tenant, server=server, reason=reason)
        self._runtime.server_states.record_failure(
            tenant, server, reason, now=self._runtime.stamps.now(), needs_setup=needs_setup
        )

    async def _run_probe_loop(self, tenant: str, server: McpServerSettings) -> None:
        wake_event, failures, change_streak = self._wake_events[tenant, server.name], 0, 0
        while True:
            wake_event.clear()
            started_at = self._runtime.clock.monotonic()
            try:
                probe_result = await self.probe_server(tenant, server.name)
                failures, change_streak = 0, change_streak + 1 if probe_result.change_count else 0
            except Problem:
                failures += 1
            except CONNECTION_ERRORS as error:
                # The gateway's own database failed, not the server: its recorded state stays.
                failures += 1
                log.warning("server_not_looked_at", server=server.name, reason=repr(error))
            except Exception as error:
                # Nothing that one server sends may end its monitoring.
                failures += 1
                self._record_failure(tenant, server.name, "the gateway could not process its answer; see the log")
                log.error("server_not_understood", server=server.name, reason=type(error).__name__, exc_info=True)
            pause = self._compute_pause(failures) if failures else self._add_jitter(server.probe_seconds)
            min_pause = max(_MIN_PAUSE_SECONDS, _REST_RATIO * (self._runtime.clock.monotonic() - started_at))
            if change_streak > _MAX_CHANGE_STREAK:
                min_pause = max(min_pause, self._compute_pause(change_streak - _MAX_CHANGE_STREAK))
            await asyncio.sleep(min(min_pause, pause))
            await wait_for_event(wake_event, pause)

    def _compute_pause(self, failures: int) -> float:
        return self._add_jitter(min(_MAX_BACKOFF_SECONDS, _MIN_BACKOFF_SECONDS * 2.0 ** min(failures - 1, 10)))

    def _add_jitter(self, seconds: float) -> float:
        """Vary a pause between 75 % and 125 %, so that many gateways do not probe at the same moment."""
        return seconds * (0.75 + self._runtime.clock.random_bytes(1)[0] / 510)


def _build_pinned_resources(rows: Sequence[asyncpg.Record]) -> PinnedResources:
    return PinnedResources.from_pins((row["item"], orjson.loads(row["definition"])) for row in rows)
