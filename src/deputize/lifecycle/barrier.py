"""Acts beside calls: checked against what was revoked, done and recorded in one commit under the tenant's barrier.

Whatever changes authority closes the barrier, so that no call commits meanwhile. What only adds to what exists, and
must not outlive a revocation, holds it as calls do. Above: `command.py` and `delegate.py`.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from deputize.core.caller import PROCESS, Caller, Epochs
from deputize.core.contract import Contract
from deputize.lifecycle.rooms import Rooms
from deputize.prove.entries import About, entry
from deputize.store.pool import Connection
from deputize.store.queries import load
from deputize.store.tenants import ensure_tenant

_EPOCHS = load("epochs")
_RUNS = load("runs")
T = TypeVar("T")
Act = Callable[[Connection], Awaitable[T]]


async def change(
    rooms: Rooms, caller: Caller, command: str, subject: str, act: Act[T], contract: Contract | None = None
) -> T:
    """Changes authority: from the answer on, no gateway begins anything the change forbids."""
    async with rooms.store.writing() as connection:
        await ensure_tenant(connection, caller.tenant)
        await connection.execute(_EPOCHS["close_barrier"], caller.tenant)
        answer = await _recorded(rooms, connection, caller, command, subject, act, (caller,), contract)
        await connection.execute(_EPOCHS["announce"], caller.tenant)
    await rooms.authority.look_again(caller.tenant)
    return answer


async def add(rooms: Rooms, caller: Caller, command: str, subject: str, act: Act[T], named: Sequence[Caller]) -> T:
    """Adds something that stands on the authority of everybody named: none of them is revoked when it commits."""
    async with rooms.store.writing() as connection:
        await ensure_tenant(connection, caller.tenant)
        await connection.execute(_EPOCHS["hold_barrier"], caller.tenant)
        return await _recorded(rooms, connection, caller, command, subject, act, (caller, *named), None)


async def _recorded(
    rooms: Rooms,
    connection: Connection,
    caller: Caller,
    command: str,
    subject: str,
    act: Act[T],
    free: Sequence[Caller],
    contract: Contract | None,
) -> T:
    # Everybody's authority, as it stands inside the barrier.
    row = await connection.fetchrow(_EPOCHS["epochs_of_tenant"], caller.tenant)
    now = Epochs(registry=row[0], policy=row[1], revocation=row[2]) if row else Epochs()
    authority = await rooms.authority.refresh(caller.tenant, now)
    # Whoever starts a gateway is no subject of a tenant: revoked by one of them, it would start for none.
    for each in free if caller.issuer != PROCESS else ():
        authority.revocations.check(each)
        authority.switches.check_agents(each)
    answer = await act(connection)
    await record(rooms, connection, caller, command, subject, contract)
    return answer


async def record(
    rooms: Rooms, connection: Connection, caller: Caller, command: str, subject: str, contract: Contract | None = None
) -> None:
    """An act's entry, in the act's own commit. Whoever does several in one commit records each."""
    entry_id = rooms.clock.new_id()
    body = entry(
        About(caller=caller, trace=entry_id.replace("-", ""), session=caller.session, contract=contract),
        id=entry_id,
        kind="command",
        time=rooms.stamps.now(),
        command=command,
        subject=subject,
        outcome="succeeded",
    )
    await connection.execute(_RUNS["add_entry"], caller.tenant, entry_id, None, body, None)
