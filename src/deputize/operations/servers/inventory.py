"""Show administrators the servers of their tenant: each one's status, its pins, and the changes to review.

The status is what this gateway found at the last probe; pins and changes belong to the tenant. Nothing of a server's
credential or environment is shown.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import asyncpg
import orjson

from deputize.catalog.drift.diff import diff_definitions
from deputize.catalog.drift.verdicts import INSTRUCTIONS
from deputize.core.caller import Caller
from deputize.core.display_text import to_display_text
from deputize.core.errors import EgressDenied, UpstreamTimeout, UpstreamUnavailable
from deputize.core.settings import McpServerSettings
from deputize.govern.token_authorization import require_auditor, require_full_admin
from deputize.lifecycle.runtime import Runtime
from deputize.operations.servers.monitor import ServerMonitor
from deputize.operations.servers.pins import SQL

ChangeState = Literal["open", "accepted", "rejected", "gone"]
_MAX_TEXT_LENGTH = 400
_URL_ADVICE = "Check that the server runs and that url under [[servers]] is its MCP endpoint; then probe it again."
_COMMAND_ADVICE = "Run the server's command from [[servers]] by hand; its last output is in the log of this gateway."


class ServerInventory:
    def __init__(self, runtime: Runtime, monitor: ServerMonitor) -> None:
        self._runtime = runtime
        self._monitor = monitor

    async def list_servers(self, caller: Caller) -> list[dict[str, Any]]:
        """List the tenant's servers by name."""
        await self._check_access(caller)
        servers = sorted(self._runtime.upstreams.list_servers(caller.tenant), key=lambda each: each.name)
        counts = await self._load_counts(caller.tenant)
        return [self._describe_server(caller.tenant, each, counts) for each in servers]

    async def list_all_servers(self) -> list[dict[str, Any]]:
        """List the servers of every tenant for the operator; no interface exposes this."""
        counts = {tenant: await self._load_counts(tenant) for tenant, _ in self._monitor.servers}
        return [self._describe_server(tenant, each, counts[tenant]) for tenant, each in self._monitor.servers]

    async def get_server(self, caller: Caller, server: str) -> dict[str, Any]:
        """Return one server with everything that is pinned."""
        await self._check_access(caller)
        server_settings = self._runtime.upstreams.get_settings(caller.tenant, server)
        counts = await self._load_counts(caller.tenant)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(SQL["list_pins"], caller.tenant, server)
        return {
            **self._describe_server(caller.tenant, server_settings, counts),
            "review": server_settings.review,
            "probe_seconds": server_settings.probe_seconds,
            "pins": [self._describe_pin(caller.tenant, server, row) for row in rows],
            "left_out": self._list_rejections(caller.tenant, server),
            "refused_hosts": self._runtime.upstreams.list_refused_hosts(caller.tenant, server),
        }

    async def probe_server(self, caller: Caller, server: str) -> dict[str, Any]:
        """Probe a server now: register or hold new definitions, or raise why it is unreachable."""
        require_full_admin(caller)
        await self._check_access(caller)
        try:
            probe_result = await self._monitor.probe_server(caller.tenant, server)
        except (UpstreamUnavailable, UpstreamTimeout, EgressDenied) as problem:
            if problem.advice != problem.spec.advice:
                raise
            # The advice for callers of a tool does not help the operator of its server.
            server_settings = self._runtime.upstreams.get_settings(caller.tenant, server)
            advice = _URL_ADVICE if server_settings.url is not None else _COMMAND_ADVICE
            raise problem.replace(advice=advice) from problem.__cause__
        server_view = await self.get_server(caller, server)
        return {
            **server_view,
            "registered_tools": list(probe_result.registered_tools),
            "new_changes": probe_result.change_count,
        }

    async def list_changes(
        self, caller: Caller, server: str, *, state: ChangeState | None = "open", limit: int = 200
    ) -> list[dict[str, Any]]:
        """List the server's changes against its pins, each with its differences."""
        await self._check_access(caller)
        self._runtime.upstreams.get_settings(caller.tenant, server)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(SQL["list_changes"], caller.tenant, server, state, limit)
        return await asyncio.to_thread(lambda: [_describe_change(row) for row in rows])

    async def _load_counts(self, tenant: str) -> dict[str, asyncpg.Record]:
        async with self._runtime.store.read_transaction(tenant) as connection:
            return {row["server"]: row for row in await connection.fetch(SQL["count_tools_and_changes"], tenant)}

    def _describe_sandbox(self, server: McpServerSettings) -> str | None:
        if server.url is not None:
            return None
        return self._runtime.settings.sandboxes.backend if server.sandbox else "none"

    def _describe_server(
        self, tenant: str, server: McpServerSettings, counts: Mapping[str, asyncpg.Record]
    ) -> dict[str, Any]:
        state, count = self._runtime.server_states.get_state(tenant, server.name), counts.get(server.name)
        status = "unseen" if state is None else "connected" if state.is_connected else "unavailable"
        return {
            "name": server.name,
            "kind": "http" if server.url is not None else "stdio",
            "address": server.url if server.url is not None else server.command[0],
            "sandbox": self._describe_sandbox(server),
            "credential": server.credential,
            "status": status,
            "since": None if state is None else state.since,
            "probed_at": None if state is None else state.probed_at,
            "why": to_display_text(state.reason, _MAX_TEXT_LENGTH) if state is not None and state.reason else None,
            "protocol": None if state is None else state.protocol or None,
            "title": None if state is None else to_display_text(state.title, _MAX_TEXT_LENGTH) or None,
            "version": None if state is None else to_display_text(state.version, _MAX_TEXT_LENGTH) or None,
            "tools": 0 if count is None else count["tools"],
            "changes": 0 if count is None else count["waiting"],
        }

    def _list_rejections(self, tenant: str, server: str) -> list[str]:
        state = self._runtime.server_states.get_state(tenant, server)
        return [] if state is None else [to_display_text(each, _MAX_TEXT_LENGTH) for each in state.rejections]

    def _describe_pin(self, tenant: str, server: str, row: asyncpg.Record) -> dict[str, Any]:
        state = self._runtime.server_states.get_state(tenant, server)
        now: str | None = None
        if state is not None and state.is_connected:
            digest = state.instructions_digest if row["item"] == INSTRUCTIONS else state.digests.get(row["item"])
            now = "removed" if digest is None else "same" if digest == row["digest"] else "changed"
        return {
            "item": row["item"],
            "digest": row["digest"],
            "tool": row["tool"],
            "version": row["version"],
            "accepted_by": row["accepted_by"],
            "accepted_at": row["accepted_at"].isoformat(),
            "now": now,
        }

    async def _check_access(self, caller: Caller) -> None:
        require_auditor(caller)
        (await self._runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)


def _describe_change(row: asyncpg.Record) -> dict[str, Any]:
    # A change that the server itself took back is shown without differences.
    has_differences = row["state"] != "gone"
    before = None if row["pinned_definition"] is None or not has_differences else orjson.loads(row["pinned_definition"])
    after = None if row["definition"] is None else orjson.loads(row["definition"])
    return {
        "item": row["item"],
        "display_item": to_display_text(row["item"], _MAX_TEXT_LENGTH),
        "digest": row["digest"],
        "kind": row["kind"],
        "state": row["state"],
        "tool": row["tool"],
        "version": row["version"],
        "seen_at": row["seen_at"].isoformat(),
        "flags": orjson.loads(row["flags"]),
        "differences": [
            {"where": each.where, "before": each.before, "after": each.after}
            for each in diff_definitions(before, after)
        ],
        "decided_by": row["decided_by"],
        "decided_at": None if row["decided_at"] is None else row["decided_at"].isoformat(),
        "reason": row["reason"],
    }
