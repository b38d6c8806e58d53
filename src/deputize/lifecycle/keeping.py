"""A call's checkpoints: who keeps them while its tool runs, and how a person has a run go on from an earlier one."""

import contextlib
from typing import Any, NoReturn
from uuid import UUID

import asyncpg

from deputize.core.caller import Caller
from deputize.core.errors import CallNotFound, CheckpointNotFound, NotRetryable, SealBroken
from deputize.core.events import State
from deputize.govern.decide import require_administering
from deputize.lifecycle.authorize import allowed_by_token
from deputize.lifecycle.barrier import add
from deputize.lifecycle.claim import may_go_again
from deputize.lifecycle.phases import Authorized, Held
from deputize.lifecycle.rooms import Rooms
from deputize.runs.checkpoints import opened
from deputize.runs.keeper import Keeper, Place, Reading
from deputize.store.keys import KeySet
from deputize.store.pool import Connection
from deputize.store.queries import load

_SQL = load("checkpoints")
_BEGUN = [State.RUNNING, State.UNKNOWN]


async def kept(rooms: Rooms, authorized: Authorized, held: Held | None) -> Keeper | None:
    """Who keeps the checkpoints of this call, with what an owner before us saved; None where nothing is to be kept."""
    settings = authorized.validated.tool.contract.checkpoints
    if held is None or not settings.enabled:
        return None
    tenant = authorized.validated.received.caller.tenant
    keys = rooms.keys.ready(tenant) or await rooms.keys.load(rooms.store, tenant)
    place = Place(call_id=held.call_id, epoch=held.epoch, interval=settings.micro_interval_seconds)
    keeper = Keeper(rooms.store, keys, rooms.clock, place)
    if held.taken_over:
        await keeper.load()
    return keeper


async def undeclared(state: Any, name: str | None, macro: bool) -> NoReturn:
    """An author who saves without saying so would believe in what is not kept."""
    raise RuntimeError("the contract of this tool does not enable checkpoints")


class Rollbacks:
    """Who made a run, or an administrator, sends it back to a checkpoint that its tool gave a name."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    async def roll_back(self, caller: Caller, call_id: str, name: str) -> dict[str, Any]:
        """The run goes on from there, with its own grant. Whoever carries it now is fenced; what it did stays done, so
        only tools whose upstream takes a repeated key once may be sent back.
        """
        rooms, call_id = self._rooms, _id(call_id)
        keys = rooms.keys.ready(caller.tenant) or await rooms.keys.load(rooms.store, caller.tenant)

        async def act(connection: Connection) -> None:
            row = await self._run(connection, caller, call_id)
            seq = await _found(connection, keys, call_id, name)
            await connection.execute(_SQL["drop_after"], caller.tenant, call_id, seq)
            queued = row["state"] == State.QUEUED or await connection.fetchval(
                _SQL["requeue_run"], caller.tenant, call_id, row["owner_epoch"], _BEGUN
            )
            if not queued:
                raise NotRetryable("somebody asked this call to stop", details={"call_id": call_id})

        await add(rooms, caller, "rollback", f"{call_id} {name}", act, ())
        return {"call_id": call_id, "state": State.QUEUED, "checkpoint": name}

    async def _run(self, connection: Connection, caller: Caller, call_id: str) -> asyncpg.Record:
        row = await connection.fetchrow(_SQL["run_to_send_back"], caller.tenant, call_id)
        own = row is not None and caller.made(row["caller_user"], row["caller_agent"])
        if row is None or not (own or caller.is_admin):
            raise _unknown(call_id)
        authority = await self._rooms.authority.of(caller.tenant)
        contract = authority.tools.entry(row["tool"]).by_version[row["version"]].contract
        # Who was lent less than the tool does, or to administer without changing anything, has nothing repeated.
        if own:
            allowed_by_token(caller, contract, authority)
        else:
            require_administering(caller)
        state = State(row["state"])
        if state is not State.QUEUED and state not in _BEGUN:
            raise NotRetryable(f"the call has ended as {state}", details={"call_id": call_id, "state": state})
        if not may_go_again(contract):
            raise NotRetryable(
                f"what stands behind {row['tool']} cannot tell a repeated call from a second one",
                details={"call_id": call_id, "tool": row["tool"]},
            )
        return row


async def _found(connection: Connection, keys: KeySet, call_id: str, name: str) -> int:
    """The newest checkpoint of that name, if it verifies: nobody is sent back to what cannot be read."""
    rows = await connection.fetch(_SQL["list_checkpoints"], keys.tenant, call_id)
    read = Reading(connection, keys.tenant, call_id)
    for each in rows:
        row = await read(each["seq"]) if each["name"] == name else None
        if row is None:
            continue
        with contextlib.suppress(SealBroken):
            opened(keys, call_id, row, None if row.parent is None else await read(row.parent))
            return row.seq
    names = sorted({each["name"] for each in rows if each["name"] is not None})
    raise CheckpointNotFound(f"this run has no checkpoint {name[:100]} that can be read", details={"names": names})


def _id(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise _unknown(text) from None


def _unknown(call_id: str) -> CallNotFound:
    return CallNotFound("there is no such run, or it is not yours", details={"call_id": call_id[:64]})
