"""An unknown outcome becomes known: a call that ended as UNKNOWN gets the end that was found out about it.

Whoever found out (the tool's status, a person) says what became of it; here that is put into the call's own envelope,
sealed, and recorded, by compare-and-set. Above: `reconcile.py` and `tickets.py`.
"""

from typing import Any, Literal

import asyncpg

from deputize.catalog.compiled import CompiledTool
from deputize.core.call import CallRequest
from deputize.core.caller import Caller
from deputize.core.canonical import canonical
from deputize.core.clock import Deadline
from deputize.core.decision import Decision
from deputize.core.errors import DidNotHappen, Problem, ToolNotFound
from deputize.core.events import State
from deputize.core.frozen import frozen
from deputize.core.outcome import Result
from deputize.lifecycle import record
from deputize.lifecycle.phases import Authorized, Executed, Held, Received, Validated, Verified
from deputize.lifecycle.reply import rendered
from deputize.lifecycle.rooms import Rooms
from deputize.prove.entries import About, entry
from deputize.prove.tracing import Trail
from deputize.store.pool import Connection
from deputize.store.queries import load
from deputize.store.rows import Closing

_SQL = load("tickets")

Found = Literal["happened", "did_not_happen"]


@frozen
class Unknown:
    """A call whose outcome is unknown, and the epoch it was seen at."""

    tenant: str
    call_id: str
    epoch: int
    tool: CompiledTool
    session: str | None
    trace: str
    error: str
    mutation_class: str


@frozen
class Settlement:
    """What became of a call, who says so, and by which rule it is believed. `ticket` is what a person decided about."""

    found: Found
    by: Caller
    decision: Decision
    source: str
    summary: str
    result: Any = None
    ticket: str | None = None


async def unknown_from(rooms: Rooms, tenant: str, row: asyncpg.Record) -> Unknown:
    """The call with the tool it was made with, whatever became of that version since."""
    tools = (await rooms.authority.of(tenant)).tools
    version = tools.entry(row["tool"]).by_version.get(row["version"])
    if version is None or version.digest != row["tool_digest"]:
        raise ToolNotFound(f"{row['tool']} {row['version']} is not the tool this call was made with any more")
    return Unknown(
        tenant=tenant,
        call_id=str(row["id"]),
        epoch=row["owner_epoch"],
        tool=version.tool,
        session=row["session"],
        trace=row["trace"],
        error=row["error"] or "",
        mutation_class=row["mutation_class"],
    )


async def settle_unknown(rooms: Rooms, connection: Connection, call: Unknown, end: Settlement) -> bool:
    """False where the call was settled or taken over meanwhile; then nothing changed."""
    keys = rooms.keys.ready(call.tenant) or await rooms.keys.load(rooms.store, call.tenant)
    problem = None if end.found == "happened" else DidNotHappen(end.summary, details={"source": end.source})
    verified = _verified(rooms, call, end, problem)
    state = State.SUCCEEDED if problem is None else State.FAILED
    outcome = rendered(verified, call.call_id, state, problem, rooms.stamps.now())
    held = Held(call_id=call.call_id, epoch=call.epoch)
    box = keys.seal(call.call_id, "outcome", outcome.body)
    closing = record.closing(rooms, verified, held, state, problem, box)
    if end.ticket is not None:
        closing = _decided(rooms, call, end, closing)
    return bool(await connection.fetchval(_SQL["settle_unknown"], *closing))


def _verified(rooms: Rooms, call: Unknown, end: Settlement, problem: Problem | None) -> Verified:
    """As if the call had just come back with this end."""
    now = rooms.clock.monotonic()
    request = CallRequest(tool=call.tool.name, arguments={}, version=call.tool.contract.version)
    received = Received(
        call_id=call.call_id, caller=end.by, request=request, session=call.session, started=now, deadline=None,
        trail=Trail(trace_id=call.trace),
    )  # fmt: skip
    validated = Validated(
        received=received, tool=call.tool, deadline=Deadline(at=now), canonical=b"", call_input={},
        warnings=(end.summary,),
    )  # fmt: skip
    executed = Executed(
        authorized=Authorized(validated=validated, decision=end.decision), held=None, output=None, problem=problem,
        attempts=0, seconds=0,
    )  # fmt: skip
    if problem is not None:
        return Verified(executed=executed, problem=problem)
    payload = end.result
    if payload is None or not call.tool.is_valid_output(payload):
        # What the tool itself would have returned is not known; that it happened is.
        payload = {"settled": {"happened": True, "by": end.source, "said": end.summary}}
    said = Result(payload=payload, summary=end.summary, source=end.source)
    return Verified(
        executed=executed, problem=None, payload=payload, canonical=canonical({"result": payload}), said=said
    )


def _decided(rooms: Rooms, call: Unknown, end: Settlement, closing: Closing) -> Closing:
    """A person's word is recorded as a decision, and names the ticket where they gave their reason."""
    about = About(
        caller=end.by, trace=call.trace, call=call.call_id, session=end.by.session, contract=call.tool.contract
    )
    body = entry(
        about,
        id=closing.entry_id,
        kind="decision",
        time=rooms.stamps.now(),
        decision=end.decision,
        outcome=closing.state,
        error=DidNotHappen.face.e_number if closing.error else None,
        command=f"settle:{end.found}",
        subject=end.ticket,
    )
    return closing._replace(entry=body, salt=None)
