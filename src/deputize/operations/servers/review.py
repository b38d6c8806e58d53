"""Review a server's changes: an administrator accepts or rejects exactly the definition they saw.

    accept    tool            registers it as its next major version and pins it
              tool, removed   retires it and deletes the pin
              all else        pins it, or deletes the pin: resources, templates, prompts, instructions
    reject                    records the decision; the pin stays, and the changed definition stays held

The administrator names the definition by its digest, so that a later one is not accepted by mistake.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import asyncpg
import orjson

from deputize.acts.act import change_authority, commit_act
from deputize.catalog import registry
from deputize.catalog.drift.flags import FlagCode
from deputize.catalog.importers.server_contracts import build_contracts_off_loop
from deputize.catalog.registration_rules import check_conflicts
from deputize.catalog.snapshot import TenantTools
from deputize.core.caller import Caller
from deputize.core.contract.contract import Contract
from deputize.core.errors import MalformedRequest, ServerChangeNotFound, ToolNotAdmitted
from deputize.core.mcp.servers import Definition, DefinitionKind, parse_item_kind
from deputize.core.settings import McpServerSettings
from deputize.govern.token_authorization import require_full_admin
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.tenant_snapshot import TenantAuthority
from deputize.operations.servers.import_tools import MAX_JUDGE_SECONDS
from deputize.operations.servers.monitor import ServerMonitor
from deputize.operations.servers.pins import (
    SQL,
    collect_registered_names,
    delete_pin,
    is_registered,
    load_confirmed_effects,
)
from deputize.operations.servers.versions import pin_tool, register_version, retire_tool
from deputize.store.pool import Connection

ReviewDecision = Literal["accept", "reject"]
# States that can still be decided: a rejection can be revised.
_OPEN_STATES = frozenset({"open", "rejected"})


@dataclass(frozen=True, kw_only=True, slots=True)
class _AcceptableChange:
    """A change as it was checked before the barrier is closed, with the contract that accepting it registers."""

    kind: str
    flags: bytes
    digest: str
    definition: bytes
    contract: Contract | None
    tools: TenantTools


class ServerReview:
    def __init__(self, runtime: Runtime, monitor: ServerMonitor) -> None:
        self._runtime = runtime
        self._monitor = monitor

    async def decide_change(
        self, caller: Caller, server: str, item: str, digest: str, decision: ReviewDecision, reason: str = ""
    ) -> dict[str, Any]:
        """Decide one change; return the decision, and what the item is registered as from now on."""
        require_full_admin(caller)
        server_settings = self._runtime.upstreams.get_settings(caller.tenant, server)
        subject = f"{server} {item} {digest}".rstrip()
        if decision == "reject" and not reason.strip():
            raise MalformedRequest("a reason is required to reject a change", details={"field": "reason"})

        change: _AcceptableChange | None = None

        async def prepare(authority: TenantAuthority) -> None:
            nonlocal change
            async with self._runtime.store.read_transaction(caller.tenant) as connection:
                row = await connection.fetchrow(SQL["load_change"], caller.tenant, server, item, digest)
            change = await self._check_change(server_settings, _require_open(row, server, item), authority)

        async def accept_change(connection: Connection) -> str | None:
            row = await _lock_open_change(connection, caller.tenant, server, item, digest)
            assert change is not None
            if (row["kind"], row["flags"]) != (change.kind, change.flags):
                raise _build_not_open_error(server, item)
            registered_as = await self._accept_change(connection, caller, server, item, change)
            await connection.execute(
                SQL["decide_change"], caller.tenant, server, item, digest, "accepted", caller.user, reason
            )
            return registered_as

        async def reject_change(connection: Connection) -> None:
            await _lock_open_change(connection, caller.tenant, server, item, digest)
            await connection.execute(
                SQL["decide_change"], caller.tenant, server, item, digest, "rejected", caller.user, reason
            )

        registered_as = None
        if decision == "accept":
            registered_as = await change_authority(
                self._runtime, caller, "accept_change", subject, accept_change, prepare=prepare
            )
        else:
            await commit_act(self._runtime, caller, "reject_change", subject, reject_change, ())
        await self._monitor.sync_pins(caller.tenant)
        self._monitor.request_probe(caller.tenant, server)
        return {
            "server": server,
            "item": item,
            "digest": digest,
            "decision": decision,
            "registered_tool": registered_as,
        }

    async def _check_change(
        self, server: McpServerSettings, row: asyncpg.Record, authority: TenantAuthority
    ) -> _AcceptableChange:
        """Build and admit what accepting a change would register; refuse what cannot be accepted."""
        item, contract = row["item"], None
        if row["kind"] != "removed":
            if _is_ambiguous(row):
                raise ToolNotAdmitted(
                    "the server declares several definitions under this name, so none can be accepted",
                    details={"server": server.name, "item": item},
                    advice="Ask the server's author to give each its own name; until then none of them can be called.",
                )
            if is_registered(item):
                contract = await self._build_contract(server, row, authority)
        return _AcceptableChange(
            kind=row["kind"],
            flags=row["flags"],
            digest=row["digest"],
            definition=row["definition"],
            contract=contract,
            tools=authority.tools,
        )

    async def _build_contract(
        self, server: McpServerSettings, row: asyncpg.Record, authority: TenantAuthority
    ) -> Contract:
        item, tools = row["item"], authority.tools
        definition = await asyncio.to_thread(
            lambda: Definition.from_declaration(
                orjson.loads(row["definition"]), parse_item_kind(item) or DefinitionKind.TOOL
            )
        )
        async with self._runtime.store.read_transaction(tools.tenant) as connection:
            confirmed_effects = await load_confirmed_effects(connection, tools.tenant, server.name)
        registered_names = await asyncio.to_thread(collect_registered_names, server.name, tools, confirmed_effects)
        run_job = partial(self._runtime.definition_jobs.run_job, tools.tenant, seconds=MAX_JUDGE_SECONDS)
        built_contracts = await build_contracts_off_loop(server, [definition], registered_names, run_job)
        if item in built_contracts.rejections:
            raise _add_review_advice(built_contracts.rejections[item])
        contract = built_contracts.contracts[item].contract
        check_conflicts(
            contract, find_owner=tools.find_owner, find_fact=tools.find_fact, find_contract=tools.find_contract
        )
        return contract

    async def _accept_change(
        self, connection: Connection, caller: Caller, server: str, item: str, change: _AcceptableChange
    ) -> str | None:
        """Register and pin the change; return what the tool is registered as, or None if nothing is."""
        runtime, tools = self._runtime, change.tools
        if change.kind == "removed":
            pins = {each["item"]: each for each in await connection.fetch(SQL["list_pins"], caller.tenant, server)}
            if item in pins and pins[item]["tool"] is not None:
                await retire_tool(runtime, connection, caller, pins[item]["tool"], tools)
            await delete_pin(connection, caller.tenant, server, item)
            await self._raise_registry_epoch(connection, caller)
            return None
        if change.contract is None:
            values = (item, change.digest, change.definition, None, None, caller.user)
            await connection.execute(SQL["upsert_pin"], caller.tenant, server, *values)
            await self._raise_registry_epoch(connection, caller)
            return None
        contract = change.contract
        await register_version(runtime, connection, caller, contract, tools)
        await pin_tool(connection, caller, server, item, change.definition, contract)
        return f"{contract.full_name}@{contract.version}"

    async def _raise_registry_epoch(self, connection: Connection, caller: Caller) -> None:
        """Raise the epoch that every gateway watches, although no tool changed, so that all load the new pins."""
        await connection.execute(registry.SQL["raise_registry_epoch"], caller.tenant)


async def _lock_open_change(connection: Connection, tenant: str, server: str, item: str, digest: str) -> asyncpg.Record:
    return _require_open(await connection.fetchrow(SQL["lock_change"], tenant, server, item, digest), server, item)


def _require_open(row: asyncpg.Record | None, server: str, item: str) -> asyncpg.Record:
    if row is None or row["state"] not in _OPEN_STATES:
        raise _build_not_open_error(server, item)
    return row


def _build_not_open_error(server: str, item: str) -> ServerChangeNotFound:
    return ServerChangeNotFound(
        f"no change of {item[:120]} with this digest is open", details={"server": server, "item": item[:120]}
    )


def _is_ambiguous(row: asyncpg.Record) -> bool:
    """Tell whether a change is ambiguous, by the gateway's own flag: the server controls the definition itself."""
    return any(each["code"] == FlagCode.AMBIGUOUS for each in orjson.loads(row["flags"]))


def _add_review_advice(problem: ToolNotAdmitted) -> ToolNotAdmitted:
    """Add advice for the administrator, who cannot fix the definition: the server's author or the operator can."""
    return problem.replace(
        advice="Ask the server's author to fix the definition, or exclude the tool with `tools` in [[servers]]."
    )
