"""Apply changed settings to a server's registered tools, once, when a process starts and first reaches the server.

The settings say what a tool does, who may call it and whether it is served. A tool whose settings changed gets a new
version; a tool, resource or prompt that is no longer served is retired. Only at startup: gateways with different
settings that run side by side would undo each other's changes again and again.
"""

import asyncio
from dataclasses import dataclass

import structlog

from deputize.acts.act import change_authority, record_act
from deputize.catalog import registry
from deputize.catalog.importers.mcp_resources import is_item_served
from deputize.catalog.snapshot import TenantTools
from deputize.core.caller import Caller
from deputize.core.errors import ToolNotAdmitted, Unavailable
from deputize.core.settings import McpServerSettings
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.tenant_snapshot import TenantAuthority
from deputize.operations.servers.pins import ServerPins, delete_pin, load_pins
from deputize.operations.servers.versions import (
    ToolUpdate,
    admit_version,
    build_update,
    register_update,
    retire_tool,
)
from deputize.store.pool import Connection

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _SettingsChanges:
    """What the settings change, as found beside these tools and pins."""

    removed_items: list[str]
    updates: list[ToolUpdate]
    tools: TenantTools
    server_pins: ServerPins


async def sync_tool_settings(runtime: Runtime, by: Caller, server: McpServerSettings) -> int:
    """Update the registered tools to the settings; return how many changed."""
    changes = await _list_changes(runtime, by.tenant, server, await runtime.authority.load_tenant(by.tenant))
    if not changes.removed_items and not changes.updates:
        return 0

    async def prepare(authority: TenantAuthority) -> None:
        # Check again: another gateway with these settings may have been first.
        nonlocal changes
        changes = await _list_changes(runtime, by.tenant, server, authority)
        for each in changes.updates:
            await asyncio.to_thread(admit_version, each.contract, changes.tools)

    async def apply_changes(connection: Connection) -> int:
        tools, pins = changes.tools, changes.server_pins
        if (await load_pins(connection, by.tenant, server.name)).digests != pins.digests:
            raise Unavailable(
                f"the definitions of {server.name} changed meanwhile, so its settings are applied at the next probe",
                retry_after_ms=1000,
                nothing_happened=True,
            )
        for item in changes.removed_items:
            if item in pins.versions:
                await retire_tool(runtime, connection, by, pins.versions[item][0], tools)
            await delete_pin(connection, by.tenant, server.name, item)
            await record_act(runtime, connection, by, "withdraw", f"{server.name} {item}")
        for each in changes.updates:
            await register_update(runtime, connection, by, server.name, each, tools)
        if changes.removed_items:
            await connection.execute(registry.SQL["raise_registry_epoch"], by.tenant)
        return len(changes.removed_items) + len(changes.updates)

    return await change_authority(runtime, by, "describe_server", server.name, apply_changes, prepare=prepare)


async def _list_changes(
    runtime: Runtime, tenant: str, server: McpServerSettings, authority: TenantAuthority
) -> _SettingsChanges:
    async with runtime.store.read_transaction(tenant) as connection:
        server_pins = await load_pins(connection, tenant, server.name)
    return _SettingsChanges(
        removed_items=_list_removed_items(server, server_pins),
        updates=await asyncio.to_thread(_list_tool_updates, server, server_pins, authority.tools),
        tools=authority.tools,
        server_pins=server_pins,
    )


def _list_removed_items(server: McpServerSettings, server_pins: ServerPins) -> list[str]:
    return [item for item in server_pins.pins if not is_item_served(server, item)]


def _list_tool_updates(server: McpServerSettings, server_pins: ServerPins, tools: TenantTools) -> list[ToolUpdate]:
    updates = []
    for item, (name, _) in server_pins.versions.items():
        try:
            update = build_update(server, item, server_pins, tools)
        except ToolNotAdmitted as problem:
            log.warning("tool_not_described_again", server=server.name, tool=name, reason=problem.message)
            continue
        if update is not None:
            updates.append(update)
    return updates
