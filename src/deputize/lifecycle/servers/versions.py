"""The versions of a server's tools: a new one beside those before it, or the end of all of them.

Called under the tenant's closed barrier. Above: `described.py` and `review.py`. Below: `catalog/registry.py`.
"""

from deputize.catalog import registry
from deputize.catalog.admission import admit
from deputize.catalog.snapshot import TenantTools
from deputize.catalog.versions import parse
from deputize.core.caller import Caller
from deputize.core.contract import Contract, LifecycleState
from deputize.lifecycle.barrier import record
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.servers.agreed import SQL
from deputize.store.pool import Connection

_S = LifecycleState
# Where somebody put a tool by hand; a new version of it stays there.
_BY_HAND = frozenset({_S.DISABLED, _S.REQUIRES_SETUP, _S.DEFERRED})
_OVER = frozenset({_S.DRAFT, _S.RETIRED})


async def put_version(
    rooms: Rooms,
    connection: Connection,
    by: Caller,
    contract: Contract,
    tools: TenantTools,
    *,
    before: LifecycleState = _S.DEPRECATED,
) -> None:
    """Registers the next version of a tool and moves those before it on to where they end."""
    admit(contract, known=tools.owner_of, facts=tools.fact, other=tools.contract_of)
    entry = tools.tools.get(contract.full_name)
    older = () if entry is None else entry.versions
    newest = next((each.state for each in older if each.state not in _OVER), _S.AVAILABLE)
    state = newest if newest in _BY_HAND else _S.AVAILABLE
    await registry.register(connection, by.tenant, contract, by=by.user, state=state)
    for each in older:
        if each.state not in _OVER and each.state is not before:
            await registry.set_state(connection, by.tenant, contract.full_name, each.version, before)
    await record(rooms, connection, by, f"register:{state}", f"{contract.full_name}@{contract.version}", contract)


async def retire(rooms: Rooms, connection: Connection, by: Caller, name: str, tools: TenantTools) -> None:
    """Ends every version of a tool. Should its server offer it again, it comes back as a new one."""
    entry = tools.tools.get(name)
    for each in () if entry is None else entry.versions:
        if each.state is not _S.RETIRED:
            await registry.set_state(connection, by.tenant, name, each.version, _S.RETIRED)
            await record(rooms, connection, by, "set_state:retired", f"{name}@{each.version}")


async def pin_tool(connection: Connection, by: Caller, server: str, item: str, said: bytes, contract: Contract) -> None:
    assert contract.handler.pin is not None
    await connection.execute(
        SQL["pin"], by.tenant, server, item, contract.handler.pin, said, contract.full_name, contract.version, by.user
    )


def next_minor(version: str) -> str:
    """For the same definition, described otherwise by the operator."""
    found = parse(version)
    return f"{found.major}.{found.minor + 1}.0"
