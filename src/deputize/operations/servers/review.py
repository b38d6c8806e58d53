"""Review a server's changes: an administrator accepts or rejects exactly the definition they saw.

    accept    tool            registers it as its next major version and pins it
              tool, removed   retires it and deletes the pin
              all else        pins it, or deletes the pin: resources, templates, prompts, instructions
    reject                    records the decision; the pin stays, and the changed definition stays held

The administrator names the definition by its digest, so that a later one is not accepted by mistake.
"""

from typing import Any, Literal

import asyncpg
import orjson

from deputize.catalog import registry
from deputize.catalog.drift.flags import FlagCode
from deputize.core.caller import Caller
from deputize.core.errors import MalformedRequest, ServerChangeNotFound, ToolNotAdmitted
from deputize.core.mcp.servers import Definition, DefinitionKind, parse_item_kind
from deputize.core.settings import McpServerSettings
from deputize.govern.token_authorization import require_full_admin
from deputize.lifecycle.barrier import change_authority, commit_act
from deputize.lifecycle.runtime import Runtime
from deputize.operations.servers.monitor import ServerMonitor
from deputize.operations.servers.pins import SQL, ContractBuilder, is_registered
from deputize.operations.servers.versions import pin_tool, register_version, retire_tool
from deputize.store.pool import Connection

ReviewDecision = Literal["accept", "reject"]
# States that can still be decided: a rejection can be revised.
_OPEN_STATES = frozenset({"open", "rejected"})


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

        async def apply_decision(connection: Connection) -> str | None:
            row = await connection.fetchrow(SQL["lock_change"], caller.tenant, server, item, digest)
            if row is None or row["state"] not in _OPEN_STATES:
                raise ServerChangeNotFound(
                    f"no change of {item[:120]} with this digest is open",
                    details={"server": server, "item": item[:120]},
                )
            registered_as = (
                await self._accept_change(connection, caller, server_settings, row) if decision == "accept" else None
            )
            state = "accepted" if decision == "accept" else "rejected"
            await connection.execute(
                SQL["decide_change"], caller.tenant, server, item, digest, state, caller.user, reason
            )
            return registered_as

        if decision == "accept":
            registered_as = await change_authority(self._runtime, caller, "accept_change", subject, apply_decision)
        else:
            registered_as = await commit_act(self._runtime, caller, "reject_change", subject, apply_decision, ())
        await self._monitor.sync_pins(caller.tenant)
        self._monitor.request_probe(caller.tenant, server)
        return {"server": server, "item": item, "digest": digest, "decision": decision, "registered": registered_as}

    async def _accept_change(
        self, connection: Connection, caller: Caller, server: McpServerSettings, row: asyncpg.Record
    ) -> str | None:
        """Register and pin the change; return what the tool is registered as, or None if nothing is."""
        runtime, item = self._runtime, row["item"]
        tools = (await runtime.authority.load_tenant(caller.tenant)).tools
        if row["kind"] == "removed":
            pins = {each["item"]: each for each in await connection.fetch(SQL["list_pins"], caller.tenant, server.name)}
            if item in pins and pins[item]["tool"] is not None:
                await retire_tool(runtime, connection, caller, pins[item]["tool"], tools)
            await connection.execute(SQL["delete_pin"], caller.tenant, server.name, item)
            await self._raise_registry_epoch(connection, caller)
            return None
        if _is_ambiguous(row):
            raise ToolNotAdmitted(
                "the server declares several definitions under this name, so none can be accepted",
                details={"server": server.name, "item": item},
                advice="Ask the server's author to give each its own name; until then none of them can be called.",
            )
        if not is_registered(item):
            await connection.execute(
                SQL["upsert_pin"],
                caller.tenant,
                server.name,
                item,
                row["digest"],
                row["definition"],
                None,
                None,
                caller.user,
            )
            await self._raise_registry_epoch(connection, caller)
            return None
        definition = Definition.from_declaration(
            orjson.loads(row["definition"]), parse_item_kind(item) or DefinitionKind.TOOL
        )
        contracts, rejections = ContractBuilder(server, tools).build_contracts([definition])
        if item in rejections:
            raise _add_review_advice(rejections[item])
        contract = contracts[item]
        await register_version(runtime, connection, caller, contract, tools)
        await pin_tool(connection, caller, server.name, item, row["definition"], contract)
        return f"{contract.full_name}@{contract.version}"

    async def _raise_registry_epoch(self, connection: Connection, caller: Caller) -> None:
        """Raise the epoch that every gateway watches, although no tool changed, so that all load the new pins."""
        await connection.execute(registry.SQL["raise_registry_epoch"], caller.tenant)


def _is_ambiguous(row: asyncpg.Record) -> bool:
    """Tell whether a change is ambiguous, by the gateway's own flag: the server controls the definition itself."""
    return any(each["code"] == FlagCode.AMBIGUOUS for each in orjson.loads(row["flags"]))


def _add_review_advice(problem: ToolNotAdmitted) -> ToolNotAdmitted:
    """Add advice for the administrator, who cannot fix the definition: the server's author or the operator can."""
    return problem.replace(
        advice="Ask the server's author to fix the definition, or exclude the tool with `tools` in [[servers]]."
    )
