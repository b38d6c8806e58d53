"""What the operator says of what was agreed to: asked once, when a process starts and first reaches a server.

The settings say what a tool does, who may call it and whether it is served at all. Where they say something else than
when it was registered, it gets a new version; what they do not serve any more ends, be it a tool, a resource or a
prompt. Only at start-up: while gateways of two settings run side by side, each of them would otherwise take back what
the other said.
"""

from dataclasses import dataclass

import orjson
import structlog

from deputize.catalog import registry
from deputize.catalog.importers.mcp import imported
from deputize.catalog.importers.mcp_offers import contract_of, item_served
from deputize.catalog.snapshot import TenantTools, ToolVersion
from deputize.core.caller import Caller
from deputize.core.contract import Contract, LifecycleState
from deputize.core.errors import NotAdmitted
from deputize.core.servers import Definition, Kind, kind_of
from deputize.core.settings import McpServer
from deputize.lifecycle.barrier import change, record
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.servers.agreed import SQL, Agreed, agreed
from deputize.lifecycle.servers.versions import next_minor, pin_tool, put_version, retire
from deputize.store.pool import Connection

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Otherwise:
    item: str
    said: bytes
    contract: Contract
    # Where the versions before it go.
    before: LifecycleState


async def describe_again(rooms: Rooms, by: Caller, server: McpServer) -> int:
    """Brings what is registered to what the settings say; how many tools that changed."""
    async with rooms.store.reading(by.tenant) as connection:
        known = await agreed(connection, by.tenant, server.name)
    tools = (await rooms.authority.of(by.tenant)).tools
    if not _withdrawn(server, known) and not _otherwise(server, known, tools):
        return 0

    async def act(connection: Connection) -> int:
        # Once more, inside the barrier: another gateway with these settings may have been quicker.
        now, then = (await rooms.authority.of(by.tenant)).tools, await agreed(connection, by.tenant, server.name)
        gone, other = _withdrawn(server, then), _otherwise(server, then, now)
        for item in gone:
            if item in then.versions:
                await retire(rooms, connection, by, then.versions[item][0], now)
            await connection.execute(SQL["unpin"], by.tenant, server.name, item)
            await record(rooms, connection, by, "withdraw", f"{server.name} {item}")
        for each in other:
            await put_version(rooms, connection, by, each.contract, now, before=each.before)
            await pin_tool(connection, by, server.name, each.item, each.said, each.contract)
        if gone:
            await connection.execute(registry.SQL["raise_registry_epoch"], by.tenant)
        return len(gone) + len(other)

    return await change(rooms, by, "describe_server", server.name, act)


def _withdrawn(server: McpServer, known: Agreed) -> list[str]:
    return [item for item in known.pins if not item_served(server, item)]


def _otherwise(server: McpServer, known: Agreed, tools: TenantTools) -> list[_Otherwise]:
    found = []
    for item, (name, version) in known.versions.items():
        entry = tools.tools.get(name)
        registered = None if entry is None else entry.by_version.get(version)
        if entry is None or registered is None or not item_served(server, item):
            continue
        if registered.state is LifecycleState.RETIRED:
            continue  # somebody ended it, and the settings do not begin it again
        definition = Definition.of(dict(known.pins[item].said), kind_of(item) or Kind.TOOL)
        word = name.partition(".")[2]
        make = imported if definition.kind is Kind.TOOL else contract_of
        try:
            same = make(server, definition, word=word, version=version)
            if same.digest == registered.digest:
                continue
            contract = make(server, definition, word=word, version=next_minor(entry.versions[0].version))
        except NotAdmitted as problem:
            log.warning("tool_not_described_again", server=server.name, tool=name, reason=problem.message)
            continue
        found.append(
            _Otherwise(
                item=item, said=orjson.dumps(definition.said), contract=contract, before=_where(registered, contract)
            )
        )
    return found


def _where(before: ToolVersion, after: Contract) -> LifecycleState:
    """A version by which its tool would do more than the operator says today must not be had by asking for it."""
    was = before.contract
    alike = (was.effects, was.auth, was.idempotency) == (after.effects, after.auth, after.idempotency)
    return LifecycleState.DEPRECATED if alike else LifecycleState.RETIRED
