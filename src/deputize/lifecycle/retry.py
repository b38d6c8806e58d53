"""A run that came to no good end, asked for again by who made it. It is never repeated blindly.

unknown, upstream takes a key once    the same call goes on, with the same upstream key
nothing happened, a read, canceled    a new call with the same arguments; asked for twice, it is one
anything else                         refused: what may have acted is somebody's to look at
"""

from typing import NoReturn
from uuid import UUID

import asyncpg

from deputize.core.call import CallRequest
from deputize.core.caller import Caller
from deputize.core.contract import MutationClass
from deputize.core.errors import CallNotFound, NotRetryable
from deputize.core.events import TERMINAL, State
from deputize.lifecycle.claim import may_go_again
from deputize.lifecycle.recorded import WrittenInput
from deputize.lifecycle.rooms import Rooms
from deputize.store.queries import load

_SQL = load("calls")
_WELL = {State.SUCCEEDED: "it has succeeded", State.NEEDS_INPUT: "its server asked something back: answer it"}


async def request_again(rooms: Rooms, caller: Caller, call_id: str) -> CallRequest:
    """The call as it was first asked for, to pass through the whole lifecycle with the authority of who asks now."""
    authority = await rooms.authority.of(caller.tenant)
    authority.revocations.check(caller)
    row = await _row(rooms, caller, call_id)
    call_id = str(row["id"])
    state = State(row["state"])
    if row["input"] is None:
        _refuse(call_id, state, "its arguments were not kept: repeat it with its own idempotency key")
    if state not in TERMINAL or state in _WELL:
        _refuse(call_id, state, _WELL.get(state, "it has not ended yet"))
    keys = rooms.keys.ready(caller.tenant) or await rooms.keys.load(rooms.store, caller.tenant)
    written = WrittenInput(keys.open(call_id, "input", row["input"]))
    if written.round is not None:
        _refuse(call_id, state, "it answered what a server had asked: make the first call anew")
    if state is State.UNKNOWN:
        contract = authority.tools.resolve(row["tool"], row["version"]).tool.contract
        if not may_go_again(contract):
            _refuse(call_id, state, f"what stands behind {row['tool']} cannot tell a repeated call from a second one")
        return written.request(row["tool"], row["version"], row["session"], mode="async", retry_of=call_id)
    harmless = row["nothing_happened"] or row["mutation_class"] == MutationClass.READ or state is State.CANCELED
    if not harmless:
        _refuse(call_id, state, "it failed after it was started, and may have acted before it did")
    # One more call, however often it is asked for.
    key = f"retry:{call_id}"
    return written.request(row["tool"], row["version"], row["session"], mode="async", idempotency_key=key)


async def _row(rooms: Rooms, caller: Caller, call_id: str) -> asyncpg.Record:
    """Only who made a call has it made again: no other agent of theirs, and not even an administrator."""
    try:
        wanted = str(UUID(call_id))
    except ValueError:
        wanted = ""
    row: asyncpg.Record | None = None
    if wanted:
        async with rooms.store.reading(caller.tenant) as connection:
            row = await connection.fetchrow(_SQL["call_to_retry"], caller.tenant, wanted)
    if row is None or not caller.made(row["caller_user"], row["caller_agent"]):
        raise CallNotFound("there is no such call, or it is not yours", details={"call_id": call_id[:64]})
    return row


def _refuse(call_id: str, state: State, why: str) -> NoReturn:
    raise NotRetryable(f"the call is not tried again: {why}", details={"call_id": call_id, "state": state})
