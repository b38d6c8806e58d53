"""Calls that do not end in their request: they wait for people, or for their turn. No `tools/call` waits for a person.

    tasks are declared                       a task, which is the call itself under its own id
    people are asked, addresses are opened   the address once: since 2026-07-28 as input that is required, before as
                                             the error -32042. When the client comes again it is held for a moment
    a run                                    held for a moment, for most end soon
    then, and for everybody else             what it waits for, and `calls_get` to ask what became of it

That somebody opened the address says nothing: who may approve signs in there, and decides there.

Above: `calling.py`, `own_tools.py`, `tasks.py`. Below: `lifecycle/calls.py`, where calls are looked at.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

from deputize.catalog.snapshot import ToolVersion
from deputize.core.events import TERMINAL, Event, State
from deputize.core.mcp import URL_ELICITATION_REQUIRED
from deputize.doors.mcp.asking_back import told_to
from deputize.doors.mcp.faces import RpcError
from deputize.doors.mcp.results import Envelope, pending, waits, whole
from deputize.doors.mcp.state import PURPOSE, opened, sealed
from deputize.doors.mcp.tasks import task_of
from deputize.doors.mcp.turn import Turn

# Most clients give up on a call after five seconds or more; who asked to be held longer says so.
HOLD_SECONDS: Final = 4.0
AFTER_OPENING_SECONDS: Final = 20.0
_ANSWER: Final = "approval"


async def taken_on(
    turn: Turn, tool: str, arguments: Mapping[str, Any], found: ToolVersion | None, envelope: Envelope
) -> dict[str, Any]:
    """The answer to a call that was taken on and is not at its end."""
    client, call_id = turn.asked.client, envelope["call_id"]
    if client.tasks:
        return task_of(turn, await turn.gateway.calls.row(turn.caller, call_id), envelope)
    if envelope["state"] != State.AWAITING_APPROVAL:
        return await _after(turn, found, call_id, HOLD_SECONDS)
    url = (envelope.get("approval") or {}).get("url")
    if not (client.opens and url):
        return pending(envelope, turn.base)
    if client.modern:
        return _ask_to_open(turn, tool, arguments, envelope, url)
    if turn.remembered.first_time(call_id):
        raise _open_first(envelope, url)
    return await _after(turn, found, call_id, AFTER_OPENING_SECONDS)


async def come_again(
    turn: Turn, tool: str, arguments: Mapping[str, Any], found: ToolVersion | None, state: Any
) -> dict[str, Any]:
    """A client that was sent to an address comes back. Whether it went there is not asked: only people decide. One
    that did not go is not held.
    """
    rooms = turn.gateway.lifecycle.rooms
    call_id = opened(rooms.keys.of_no_tenant(PURPOSE), rooms.clock, turn.caller, tool, arguments, state)
    answers = turn.asked.params.get("inputResponses")
    said = answers.get(_ANSWER) if isinstance(answers, dict) else None
    went = isinstance(said, dict) and said.get("action") == "accept"
    return await _after(turn, found, call_id, AFTER_OPENING_SECONDS if went else 0.0)


async def _after(turn: Turn, found: ToolVersion | None, call_id: str, seconds: float) -> dict[str, Any]:
    envelope, ended = await held(turn, call_id, seconds)
    if not ended:
        return pending(envelope, turn.base)
    turn.remembered.heard(call_id)
    return told_to(turn, envelope, found)


async def held(turn: Turn, call_id: str, seconds: float) -> tuple[Envelope, bool]:
    """A call as it is once it has ended, or the time is over, or the client has gone; and whether it has ended."""
    calls, caller = turn.gateway.calls, turn.caller
    shown = await calls.show(caller, call_id)
    if shown.poll_after_ms is not None and seconds > 0:
        await _follow(turn, call_id, seconds)
        shown = await calls.show(caller, call_id)
    return whole(orjson.loads(shown.body)), shown.poll_after_ms is None


async def _follow(turn: Turn, call_id: str, seconds: float) -> None:
    following = asyncio.create_task(_until_its_end(turn, call_id))
    closing = asyncio.create_task(turn.closing.wait())
    try:
        await asyncio.wait(
            {following, closing, turn.reply.left()}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        closing.cancel()
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following


async def _until_its_end(turn: Turn, call_id: str) -> None:
    """What its tool says on the way is passed on."""
    async for seen in await turn.gateway.calls.follow(turn.caller, call_id):
        if seen.event is Event.PROGRESS:
            told = seen.facts
            turn.tell_progress(told.get("current_step"), told.get("total_steps"), told.get("message") or "")
        elif seen.event is not Event.PARTIAL_RESULT and State(seen.facts["state"]) in TERMINAL:
            return


def _ask_to_open(turn: Turn, tool: str, arguments: Mapping[str, Any], envelope: Envelope, url: str) -> dict[str, Any]:
    rooms = turn.gateway.lifecycle.rooms
    key = rooms.keys.of_no_tenant(PURPOSE)
    asks = {"method": "elicitation/create", "params": {"mode": "url", "message": _message(envelope), "url": url}}
    return {
        "resultType": "input_required",
        "inputRequests": {_ANSWER: asks},
        "requestState": sealed(key, rooms.clock, turn.caller, tool, arguments, envelope["call_id"]),
    }


def _open_first(envelope: Envelope, url: str) -> RpcError:
    approval = envelope["approval"]
    asks = {"mode": "url", "elicitationId": approval["ticket_id"], "url": url, "message": _message(envelope)}
    data = {"elicitations": [asks], "call": waits(envelope)}
    return RpcError(URL_ELICITATION_REQUIRED, "A person has to approve this call first.", data)


def _message(envelope: Envelope) -> str:
    tool = (envelope.get("tool") or {}).get("name", "This call")
    return f"{tool} waits for somebody's approval. Whoever may decide signs in and decides there."
