"""Apply changed settings to a server's registered tools, once, when a process starts and first reaches the server.

The settings say what a tool does, who may call it and whether it is served. A tool whose settings changed gets a new
version; a tool, resource or prompt that is no longer served is retired. Only at startup: gateways with different
settings that run side by side would undo each other's changes again and again.
"""

import asyncio
from dataclasses import dataclass

import orjson
import structlog

from deputize.catalog import registry
from deputize.catalog.importers.mcp import build_tool_contract
from deputize.catalog.importers.mcp_resources import build_method_contract, is_item_served
from deputize.catalog.snapshot import TenantTools, ToolVersion
from deputize.core.caller import Caller
from deputize.core.contract.contract import Contract, LifecycleState
from deputize.core.errors import ToolNotAdmitted, Unavailable
from deputize.core.mcp.servers import Definition, DefinitionKind, parse_item_kind
from deputize.core.settings import McpServerSettings
from deputize.lifecycle.authority import TenantAuthority
from deputize.lifecycle.barrier import change_authority, record_act
from deputize.lifecycle.runtime import Runtime
from deputize.operations.servers.pins import SQL, ServerPins, load_pins
from deputize.operations.servers.versions import (
    admit_version,
    bump_minor_version,
    pin_tool,
    register_version,
    retire_tool,
)
from deputize.store.pool import Connection

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _ToolUpdate:
    item: str
    definition: bytes
    contract: Contract
    # The new state of the versions before it.
    previous_state: LifecycleState


@dataclass(frozen=True, kw_only=True, slots=True)
class _SettingsChanges:
    """What the settings change, as found beside these tools and pins."""

    removed_items: list[str]
    updates: list[_ToolUpdate]
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
            await connection.execute(SQL["delete_pin"], by.tenant, server.name, item)
            await record_act(runtime, connection, by, "withdraw", f"{server.name} {item}")
        for each in changes.updates:
            await register_version(runtime, connection, by, each.contract, tools, previous_state=each.previous_state)
            await pin_tool(connection, by, server.name, each.item, each.definition, each.contract)
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


def _list_tool_updates(server: McpServerSettings, server_pins: ServerPins, tools: TenantTools) -> list[_ToolUpdate]:
    updates = []
    for item, (name, version) in server_pins.versions.items():
        entry = tools.tools.get(name)
        registered_version = None if entry is None else entry.by_version.get(version)
        if entry is None or registered_version is None or not is_item_served(server, item):
            continue
        if registered_version.state is LifecycleState.RETIRED:
            continue  # an administrator retired it, and settings do not bring it back
        definition = Definition.from_declaration(
            dict(server_pins.pins[item].declaration), parse_item_kind(item) or DefinitionKind.TOOL
        )
        short_name = name.partition(".")[2]
        build = build_tool_contract if definition.kind is DefinitionKind.TOOL else build_method_contract
        try:
            same_contract = build(server, definition, registered_name=short_name, version=version)
            if same_contract.digest == registered_version.digest:
                continue
            contract = build(
                server, definition, registered_name=short_name, version=bump_minor_version(entry.versions[0].version)
            )
        except ToolNotAdmitted as problem:
            log.warning("tool_not_described_again", server=server.name, tool=name, reason=problem.message)
            continue
        updates.append(
            _ToolUpdate(
                item=item,
                definition=orjson.dumps(definition.declaration),
                contract=contract,
                previous_state=_choose_previous_state(registered_version, contract),
            )
        )
    return updates


def _choose_previous_state(before: ToolVersion, after: Contract) -> LifecycleState:
    """Retire the old version if the settings now allow less, so that callers cannot select it to do more."""
    old_contract = before.contract
    is_alike = (old_contract.effects, old_contract.auth, old_contract.idempotency) == (
        after.effects,
        after.auth,
        after.idempotency,
    )
    return LifecycleState.DEPRECATED if is_alike else LifecycleState.RETIRED
