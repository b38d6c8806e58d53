"""List what a server's tools do, and confirm it: until an operator has confirmed a tool, it counts as destructive.

A confirmation is for exactly one definition, named by its digest. It registers the next minor version of the tool and
retires those before it. A definition that changes later is read strictly again. What `reads` and `writes` in the
settings say wins, and is changed there.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import asyncpg
import orjson

from deputize.acts.act import change_authority, record_act
from deputize.catalog.effect_proposals import is_stricter, propose_effects
from deputize.catalog.importers.mcp import find_declared_effects
from deputize.catalog.importers.mcp_resources import is_item_served
from deputize.catalog.policy_facts import list_facts
from deputize.catalog.snapshot import TenantTools
from deputize.core.caller import Caller
from deputize.core.canonical import canonicalize
from deputize.core.contract.contract import Contract, Effects
from deputize.core.display_text import to_display_text
from deputize.core.errors import MalformedRequest, ServerChangeNotFound
from deputize.core.mcp.servers import DefinitionKind, format_item, parse_item_kind, parse_item_name
from deputize.core.settings import McpServerSettings
from deputize.govern.approvals.confirmation_codes import DocumentChange
from deputize.govern.token_authorization import require_admin, require_full_admin
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.tenant_snapshot import TenantAuthority
from deputize.operations.servers.monitor import ServerMonitor
from deputize.operations.servers.pins import SQL, ServerPins, is_registered, load_pins
from deputize.operations.servers.versions import ToolUpdate, admit_version, build_update, register_update
from deputize.store.pool import Connection

_MAX_TEXT_LENGTH = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class EffectChoice:
    """What an operator says that one definition of a tool does."""

    tool: str
    digest: str
    effects: Effects

    @property
    def item(self) -> str:
        return format_item(DefinitionKind.TOOL, self.tool)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Confirmation:
    """Confirmed effects as they were checked before the barrier is closed, with the versions that they register."""

    current_effects: dict[str, Effects]
    updates: tuple[ToolUpdate, ...]
    tools: TenantTools
    server_pins: ServerPins

    def is_tightening(self, choices: Sequence[EffectChoice]) -> bool:
        return not any(is_stricter(self.current_effects[each.tool], each.effects) for each in choices)

    def list_changes(self, server: str, choices: Sequence[EffectChoice]) -> tuple[DocumentChange, ...]:
        def render(effects_by_tool: dict[str, Effects]) -> str:
            return "".join(
                f"{to_display_text(each.tool, _MAX_TEXT_LENGTH)}: {effects_by_tool[each.tool]}\n" for each in choices
            )

        new_effects = {each.tool: each.effects for each in choices}
        return (DocumentChange(name=f"effects of {server}", old=render(self.current_effects), new=render(new_effects)),)


class ServerEffects:
    def __init__(self, runtime: Runtime, monitor: ServerMonitor) -> None:
        self._runtime = runtime
        self._monitor = monitor

    async def list_tools(self, caller: Caller, server: str) -> list[dict[str, Any]]:
        """List the pinned tools and methods of a server: definitions, effects and who chose them, and proposals."""
        require_admin(caller)
        authority = await self._runtime.authority.load_tenant(caller.tenant)
        authority.revocations.check(caller)
        settings = self._runtime.upstreams.get_settings(caller.tenant, server)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            pins = await connection.fetch(SQL["list_pins"], caller.tenant, server)
            effects = {row["item"]: row for row in await connection.fetch(SQL["list_effects"], caller.tenant, server)}
        return await asyncio.to_thread(
            lambda: [
                _describe_tool(settings, row, effects.get(row["item"]), authority.tools)
                for row in pins
                if is_registered(row["item"]) and is_item_served(settings, row["item"])
            ]
        )

    async def confirm_effects(
        self, caller: Caller, server: str, choices: Sequence[EffectChoice]
    ) -> list[dict[str, Any]]:
        """Confirm what tools do; return for each the effects, and what it is registered as from now on."""
        require_full_admin(caller)
        runtime, tenant = self._runtime, caller.tenant
        settings = runtime.upstreams.get_settings(tenant, server)
        _check_choices(settings, choices)
        confirmation: _Confirmation | None = None

        async def prepare(authority: TenantAuthority) -> None:
            nonlocal confirmation
            async with runtime.store.read_transaction(tenant) as connection:
                server_pins = await load_pins(connection, tenant, server)
            confirmation = await asyncio.to_thread(
                _prepare_confirmation, settings, choices, server_pins, authority.tools
            )

        async def confirm(connection: Connection) -> dict[str, str]:
            assert confirmation is not None
            return await self._store_confirmation(connection, caller, server, choices, confirmation)

        def is_tightening(_: dict[str, str]) -> bool:
            assert confirmation is not None
            return confirmation.is_tightening(choices)

        def list_changes() -> tuple[DocumentChange, ...]:
            assert confirmation is not None
            return confirmation.list_changes(server, choices)

        new_versions = await change_authority(
            runtime,
            caller,
            "confirm_effects",
            server,
            confirm,
            prepare=prepare,
            content=canonicalize([[each.tool, each.digest, each.effects] for each in choices]).decode(),
            is_tightening=is_tightening,
            list_changes=list_changes,
        )
        await self._monitor.sync_pins(tenant)
        return [{**asdict(each), "registered_tool": new_versions.get(each.item)} for each in choices]

    async def _store_confirmation(
        self,
        connection: Connection,
        caller: Caller,
        server: str,
        choices: Sequence[EffectChoice],
        confirmation: _Confirmation,
    ) -> dict[str, str]:
        """Store and record the effects, register the new versions, and return them by item."""
        runtime, tenant = self._runtime, caller.tenant
        if (await load_pins(connection, tenant, server)).digests != confirmation.server_pins.digests:
            raise _build_changed_error(server, choices[0])
        for each in choices:
            values = (server, each.item, each.digest, each.effects)
            await connection.execute(SQL["upsert_effects"], tenant, *values)
            subject = f"{server} {each.item} {each.digest}"
            await record_act(runtime, connection, caller, f"confirm_effects:{each.effects}", subject)
        for update in confirmation.updates:
            await register_update(runtime, connection, caller, server, update, confirmation.tools)
        return {each.item: f"{each.contract.full_name}@{each.contract.version}" for each in confirmation.updates}


def _check_choices(server: McpServerSettings, choices: Sequence[EffectChoice]) -> None:
    names = [each.tool for each in choices]
    for each in choices:
        if names.count(each.tool) > 1:
            raise MalformedRequest(f"{each.tool[:120]} is named twice; name each tool once")
        settings_effects = find_declared_effects(server, each.tool)
        if settings_effects is not None:
            raise MalformedRequest(
                f"the settings say that {each.tool[:120]} is {settings_effects}, and they win",
                details={"server": server.name, "tool": each.tool[:120]},
                advice="Change reads or writes under [[servers]], or leave this tool out.",
            )


def _prepare_confirmation(
    server: McpServerSettings, choices: Sequence[EffectChoice], server_pins: ServerPins, tools: TenantTools
) -> _Confirmation:
    """Build and admit what the confirmed effects register; refuse definitions that are not the pinned ones."""
    current_effects: dict[str, Effects] = {}
    for each in choices:
        pin, tool_version = server_pins.pins.get(each.item), server_pins.versions.get(each.item)
        contract = None if tool_version is None else _find_contract(tools, *tool_version)
        if pin is None or pin.digest != each.digest or contract is None or not is_item_served(server, each.item):
            raise _build_changed_error(server.name, each)
        current_effects[each.tool] = contract.effects
    confirmed_effects = {**server_pins.confirmed_effects, **{each.digest: each.effects for each in choices}}
    new_pins = replace(server_pins, confirmed_effects=confirmed_effects)
    updates = [build_update(server, each.item, new_pins, tools) for each in choices]
    for update in updates:
        if update is not None:
            admit_version(update.contract, tools)
    return _Confirmation(
        current_effects=current_effects,
        updates=tuple(each for each in updates if each is not None),
        tools=tools,
        server_pins=server_pins,
    )


def _describe_tool(
    server: McpServerSettings, pin: asyncpg.Record, confirmation_row: asyncpg.Record | None, tools: TenantTools
) -> dict[str, Any]:
    name, declaration = parse_item_name(pin["item"]), orjson.loads(pin["definition"])
    contract = _find_contract(tools, pin["tool"], pin["version"])
    is_confirmed = confirmation_row is not None and confirmation_row["digest"] == pin["digest"]
    is_tool = parse_item_kind(pin["item"]) is DefinitionKind.TOOL
    proposal = propose_effects(declaration) if is_tool else None
    if not is_tool:
        source = "protocol"
    elif find_declared_effects(server, name) is not None:
        source = "settings"
    else:
        source = "confirmed" if is_confirmed else "unconfirmed"
    return {
        "item": pin["item"],
        "name": name,
        "display_name": to_display_text(name, _MAX_TEXT_LENGTH),
        "digest": pin["digest"],
        "tool": pin["tool"],
        "version": pin["version"],
        "definition": declaration,
        "effects": None if contract is None else contract.effects,
        "source": source,
        "confirmed_effects": confirmation_row["effects"] if confirmation_row is not None and is_confirmed else None,
        "proposed_effects": None if proposal is None else proposal.effects,
        "why": None if proposal is None else proposal.reason,
        "facts": [] if contract is None else [each.name for each in list_facts(contract)],
    }


def _find_contract(tools: TenantTools, name: str, version: str) -> Contract | None:
    entry = tools.tools.get(name)
    tool_version = None if entry is None else entry.by_version.get(version)
    return None if tool_version is None else tool_version.contract


def _build_changed_error(server: str, choice: EffectChoice) -> ServerChangeNotFound:
    return ServerChangeNotFound(
        f"{server} has no pinned tool {choice.tool[:120]} with this digest",
        details={"server": server, "item": choice.item[:120]},
        advice="List the tools as they are now: deputize servers effects SERVER.",
    )
