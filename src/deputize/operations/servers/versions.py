"""Register new versions of a server's tools, and retire tools.

Written under the tenant's closed barrier, by `settings_sync.py`, `effects.py` and `review.py`, which admit the
contracts before they close it: how much there is to check is the server's choice, and no call commits meanwhile.
"""

from dataclasses import dataclass

import orjson

from deputize.acts.act import record_act
from deputize.catalog import registry
from deputize.catalog.importers.mcp_resources import is_item_served
from deputize.catalog.importers.server_contracts import build_contract
from deputize.catalog.registration_rules import admit_contract
from deputize.catalog.snapshot import TenantTools, ToolVersion
from deputize.catalog.versions import parse_version
from deputize.core.caller import Caller
from deputize.core.contract.contract import Contract, LifecycleState
from deputize.core.mcp.servers import Definition, DefinitionKind, parse_item_kind
from deputize.core.settings import McpServerSettings
from deputize.lifecycle.runtime import Runtime
from deputize.operations.servers.pins import SQL, ServerPins
from deputize.store.pool import Connection

_S = LifecycleState
# States that an operator sets by hand; a new version keeps them.
_OPERATOR_STATES = frozenset({_S.DISABLED, _S.REQUIRES_SETUP, _S.DEFERRED})
_INACTIVE_STATES = frozenset({_S.DRAFT, _S.RETIRED})


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolUpdate:
    """A new version of a tool for the same definition, which the operator describes differently now."""

    item: str
    definition: bytes
    contract: Contract
    # The new state of the versions before it.
    previous_state: LifecycleState


def build_update(
    server: McpServerSettings, item: str, server_pins: ServerPins, tools: TenantTools
) -> ToolUpdate | None:
    """Build the version that a pinned tool should have by the settings and what was confirmed; None if it has it.

    Raise `ToolNotAdmitted` if it cannot be built.
    """
    name, version = server_pins.versions[item]
    entry = tools.tools.get(name)
    registered_version = None if entry is None else entry.by_version.get(version)
    if entry is None or registered_version is None or not is_item_served(server, item):
        return None
    if registered_version.state is _S.RETIRED:
        return None  # an administrator retired it, and settings do not bring it back
    definition = Definition.from_declaration(
        dict(server_pins.pins[item].declaration), parse_item_kind(item) or DefinitionKind.TOOL
    )
    short_name, confirmed_effects = name.partition(".")[2], server_pins.confirmed_effects
    same_contract = build_contract(server, definition, short_name, version, confirmed_effects)
    if same_contract.digest == registered_version.digest:
        return None
    next_version = bump_minor_version(entry.versions[0].version)
    contract = build_contract(server, definition, short_name, next_version, confirmed_effects)
    return ToolUpdate(
        item=item,
        definition=orjson.dumps(definition.declaration),
        contract=contract,
        previous_state=choose_previous_state(registered_version, contract),
    )


async def register_update(
    runtime: Runtime, connection: Connection, by: Caller, server: str, update: ToolUpdate, tools: TenantTools
) -> None:
    """Register and pin the new version of a tool."""
    await register_version(runtime, connection, by, update.contract, tools, previous_state=update.previous_state)
    await pin_tool(connection, by, server, update.item, update.definition, update.contract)


def choose_previous_state(before: ToolVersion, after: Contract) -> LifecycleState:
    """Retire the old version if the operator now allows something else, so that callers cannot select it to do more."""
    old, new = (
        (
            each.effects,
            each.auth,
            each.idempotency,
            each.input_schema,  # with other facts, rules would judge the old version differently
            # the old version would give the results of one caller to others
            each.freshness is not None and each.freshness.shared_by == "tenant",
            each.handler.request,  # the old version would call another operation of the service
        )
        for each in (before.contract, after)
    )
    return _S.DEPRECATED if old == new else _S.RETIRED


def admit_version(contract: Contract, tools: TenantTools) -> None:
    """Check that a contract fits beside the tenant's other tools."""
    admit_contract(contract, find_owner=tools.find_owner, find_fact=tools.find_fact, find_contract=tools.find_contract)


async def register_version(
    runtime: Runtime,
    connection: Connection,
    by: Caller,
    contract: Contract,
    tools: TenantTools,
    *,
    previous_state: LifecycleState = _S.DEPRECATED,
) -> None:
    """Register an admitted version of a tool and move the previous versions to their new state."""
    entry = tools.tools.get(contract.full_name)
    older = () if entry is None else entry.versions
    newest_state = next((each.state for each in older if each.state not in _INACTIVE_STATES), _S.AVAILABLE)
    state = newest_state if newest_state in _OPERATOR_STATES else _S.AVAILABLE
    await registry.register_contract(connection, by.tenant, contract, by=by.user, state=state)
    for each in older:
        if each.state not in _INACTIVE_STATES and each.state is not previous_state:
            await registry.set_version_state(connection, by.tenant, contract.full_name, each.version, previous_state)
    await record_act(runtime, connection, by, f"register:{state}", f"{contract.full_name}@{contract.version}", contract)


async def retire_tool(runtime: Runtime, connection: Connection, by: Caller, name: str, tools: TenantTools) -> None:
    """Retire every version of a tool. If its server offers it again, it is registered as a new version."""
    entry = tools.tools.get(name)
    for each in () if entry is None else entry.versions:
        if each.state is not _S.RETIRED:
            await registry.set_version_state(connection, by.tenant, name, each.version, _S.RETIRED)
            await record_act(runtime, connection, by, "set_state:retired", f"{name}@{each.version}")


async def pin_tool(
    connection: Connection, by: Caller, server: str, item: str, definition: bytes, contract: Contract
) -> None:
    assert contract.handler.pin is not None
    await connection.execute(
        SQL["upsert_pin"],
        by.tenant,
        server,
        item,
        contract.handler.pin,
        definition,
        contract.full_name,
        contract.version,
        by.user,
    )


def bump_minor_version(version: str) -> str:
    """Return the next minor version, for the same definition described differently by the operator."""
    parts = parse_version(version)
    return f"{parts.major}.{parts.minor + 1}.0"
