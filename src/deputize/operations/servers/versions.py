"""Register new versions of a server's tools, and retire tools.

Written under the tenant's closed barrier, by `settings_sync.py` and `review.py`, which admit the contracts before they
close it: how much there is to check is the server's choice, and no call commits meanwhile.
"""

from deputize.catalog import registry
from deputize.catalog.admission import admit_contract
from deputize.catalog.snapshot import TenantTools
from deputize.catalog.versions import parse_version
from deputize.core.caller import Caller
from deputize.core.contract.contract import Contract, LifecycleState
from deputize.lifecycle.barrier import record_act
from deputize.lifecycle.runtime import Runtime
from deputize.operations.servers.pins import SQL
from deputize.store.pool import Connection

_S = LifecycleState
# States that an operator sets by hand; a new version keeps them.
_OPERATOR_STATES = frozenset({_S.DISABLED, _S.REQUIRES_SETUP, _S.DEFERRED})
_INACTIVE_STATES = frozenset({_S.DRAFT, _S.RETIRED})


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
