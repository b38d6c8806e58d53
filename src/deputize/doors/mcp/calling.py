"""`tools/call`: from its parameters to one call of the lifecycle, and back.

The key of a call is, in this order: ours in `_meta`, the argument that is declared for it, the HTTP header, and what a
client is known to number its calls by. The id of the JSON-RPC request is none: a client that lost an answer asks again
under a new one. Above: `door.py`. Below: the one lifecycle, and `waiting.py` for what does not end at once.
"""

from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson

from deputize.catalog.snapshot import ToolVersion
from deputize.core.call import CallRequest
from deputize.core.contract import TimeoutClass
from deputize.core.mcp import DEADLINE_MS, IDEMPOTENCY_KEY, INVALID_PARAMS, TRACEPARENT
from deputize.core.questions import Answers
from deputize.doors.asking import call_request, idempotency_key
from deputize.doors.mcp.asking_back import questions_in, responses_in, told_to
from deputize.doors.mcp.faces import RpcError
from deputize.doors.mcp.mirrored import require_mirrored
from deputize.doors.mcp.own_tools import OWN
from deputize.doors.mcp.shown import KEY_ARGUMENT, takes_key
from deputize.doors.mcp.turn import Turn
from deputize.doors.mcp.waiting import come_again, held, taken_on
from deputize.lifecycle.rounds import is_round

_TOOL_USE: Final = "claudecode/toolUseId"


class _Wanted(NamedTuple):
    """What is to be called, with the arguments as the tool gets them."""

    name: str
    arguments: dict[str, Any]
    key: str | None
    found: ToolVersion | None


async def call_tool(turn: Turn) -> dict[str, Any]:
    name, arguments = _named(turn.asked.params)
    responses_in(turn)
    own = OWN.get(name)
    if own is not None:
        return await own(turn, arguments)
    found = await turn.gateway.surface.found(turn.caller, name)
    if found is not None and turn.asked.client.modern:
        require_mirrored(found, arguments, turn.raw)
    key, arguments = _key(turn, found, arguments)
    wanted = _Wanted(name, arguments, key, found)
    state = turn.asked.params.get("requestState")
    if is_round(state):
        return await _called(turn, wanted, Answers(round=state, responses=responses_in(turn)))
    if state is not None:
        return await come_again(turn, name, arguments, found, state)
    joined = None if key is not None else turn.remembered.waiting(turn.caller, name, arguments)
    if joined is not None:
        return await _joined(turn, wanted, joined)
    return await _called(turn, wanted)


async def _called(turn: Turn, wanted: _Wanted, answers: Answers | None = None) -> dict[str, Any]:
    request = _request(turn, wanted)
    outcome = await turn.gateway.lifecycle.run(turn.caller, replace(request, answers=answers))
    envelope = orjson.loads(outcome.body)
    if not outcome.accepted:
        asked, brought = questions_in(envelope), responses_in(turn)
        if answers is None and asked and asked.keys() <= brought.keys():
            # It knew what would be asked. Its answers are held to the questions all the same, now that there are some.
            return await _called(turn, wanted, Answers(round=envelope["asks"]["round"], responses=brought))
        return told_to(turn, envelope, wanted.found, replayed=outcome.replayed or outcome.joined)
    if wanted.key is None:
        turn.remembered.wait(turn.caller, wanted.name, wanted.arguments, outcome.call_id)
    return await taken_on(turn, wanted.name, wanted.arguments, wanted.found, envelope)


async def _joined(turn: Turn, wanted: _Wanted, call_id: str) -> dict[str, Any]:
    """The same words again, from a client that cannot say whether it means the same call: it hears of the one that
    waits, and once it heard how that ended, they are a new one.
    """
    envelope, ended = await held(turn, call_id, 0.0)
    if not ended:
        return await taken_on(turn, wanted.name, wanted.arguments, wanted.found, envelope)
    turn.remembered.heard(call_id)
    if turn.asked.client.tasks:
        # It follows its task to the end by the task's own id, so whoever says the same words after it wants it anew.
        return await _called(turn, wanted)
    return told_to(turn, envelope, wanted.found, replayed=True)


def _named(params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    name, arguments = params.get("name"), params.get("arguments")
    if not isinstance(name, str) or not name:
        raise RpcError(INVALID_PARAMS, "name must be the name of a tool")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise RpcError(INVALID_PARAMS, "arguments must be an object with the tool's arguments by name")
    return name, arguments


def _key(turn: Turn, found: ToolVersion | None, arguments: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The key, and the arguments without it where it is none of the tool's own."""
    declared, tool_use = None, turn.asked.meta.get(_TOOL_USE)
    if found is not None and found.contract.idempotency.key_argument is not None:
        declared = arguments.get(found.contract.idempotency.key_argument)
    elif found is not None and KEY_ARGUMENT in arguments and takes_key(found.contract):
        declared = arguments[KEY_ARGUMENT]
        arguments = {name: value for name, value in arguments.items() if name != KEY_ARGUMENT}
    for given in (turn.asked.meta.get(IDEMPOTENCY_KEY), declared, turn.headers.get(b"idempotency-key"), tool_use):
        if given is not None:
            return idempotency_key(given), arguments
    return None, arguments


def _request(turn: Turn, wanted: _Wanted) -> CallRequest:
    fields: dict[str, Any] = {"tool": wanted.name, "arguments": wanted.arguments}
    meta = turn.asked.meta
    if DEADLINE_MS in meta:
        fields["deadline_ms"] = meta[DEADLINE_MS]
    if wanted.found is not None and wanted.found.contract.timeout.timeout_class is TimeoutClass.LONG_RUNNING:
        # Clients wait between five seconds and a minute for an answer: what may take minutes is a run, and looked for.
        fields["mode"] = "async"
    parent = meta.get(TRACEPARENT) or turn.headers.get(b"traceparent")
    request = call_request(
        fields, key=wanted.key, traceparent=parent.decode("latin-1") if isinstance(parent, bytes) else _text(parent)
    )
    request = replace(request, can_answer=turn.asked.client.abilities)
    return request if turn.asked.progress_token is None else request.told_to(turn.progress)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
