"""One call of the lifecycle for whatever is read at this door and is no tool: there is no other way to a server.

There is no form for a read that waits, nor for one that failed: both are errors, and say what there is to know. What
means no server at all is refused on record, too, as a call of something that nobody has.

Above: `resources.py`, `prompts.py`. Below: the lifecycle, `waiting.py`.
"""

from dataclasses import replace
from typing import Any

import orjson

from deputize.core.call import CallRequest
from deputize.core.errors import ApprovalRequired, InFlight, NotOffered, by_slug
from deputize.core.events import State
from deputize.core.mcp import DEADLINE_MS, INVALID_PARAMS, RESOURCE_NOT_FOUND, TRACEPARENT
from deputize.core.questions import Answers
from deputize.core.servers import READ_RESOURCE
from deputize.doors.asking import call_request
from deputize.doors.mcp.asking_back import questions_in, require_able, responses_in, told_to
from deputize.doors.mcp.faces import RpcError, code_of, error_in, error_of
from deputize.doors.mcp.offered import Source
from deputize.doors.mcp.results import Envelope, meta_of, waits
from deputize.doors.mcp.turn import Turn
from deputize.doors.mcp.waiting import HOLD_SECONDS, held
from deputize.lifecycle.rounds import is_round


async def read(turn: Turn, source: Source, arguments: dict[str, Any], **told: str) -> dict[str, Any]:
    """What the server answered or asks first, with our word on the call. `told` is how the client named what it wants:
    an error says so again.
    """
    state, brought = turn.asked.params.get("requestState"), responses_in(turn)
    if state is not None and not is_round(state):
        raise RpcError(INVALID_PARAMS, "requestState was not given out for this request")
    answers = Answers(round=state, responses=brought) if is_round(state) else None
    return await _read(turn, _request(turn, source.tool, arguments), answers, told)


async def _read(turn: Turn, request: CallRequest, answers: Answers | None, told: dict[str, str]) -> dict[str, Any]:
    outcome = await turn.gateway.lifecycle.run(turn.caller, replace(request, answers=answers))
    envelope: Envelope = orjson.loads(outcome.body)
    if outcome.accepted:
        envelope = await _ended(turn, envelope, told)
    asked, brought = questions_in(envelope), responses_in(turn)
    if answers is None and asked and asked.keys() <= brought.keys():
        # It knew what would be asked, as may be with tools, too.
        return await _read(turn, request, Answers(round=envelope["asks"]["round"], responses=brought), told)
    if envelope.get("is_error"):
        require_able(turn, envelope)
        raise _failed(turn, envelope, told)
    if asked:
        return told_to(turn, envelope, None)
    return {**envelope["result"], "_meta": meta_of(envelope, None, turn.base, outcome.replayed or outcome.joined)}


async def refuse(turn: Turn, problem: NotOffered, **told: str) -> RpcError:
    """The error for what means no server, once it is on record that it was asked for."""
    outcome = await turn.gateway.lifecycle.run(turn.caller, _request(turn, turn.asked.method, dict(told)))
    error = error_of(problem, orjson.loads(outcome.body).get("trace_id") or "")
    return RpcError(_missing(turn), error.message, {**error.data, **told})


async def _ended(turn: Turn, envelope: Envelope, told: dict[str, str]) -> Envelope:
    """A call that was taken on is waited for, as that of a tool is, unless it waits for people."""
    face = ApprovalRequired.face
    if envelope["state"] != State.AWAITING_APPROVAL:
        face = InFlight.face
        envelope, ended = await held(turn, envelope["call_id"], HOLD_SECONDS)
        if ended:
            return envelope
    facts = waits(envelope)
    raise RpcError(code_of(face), facts["message"], {**facts, **told})


def _failed(turn: Turn, envelope: Envelope, told: dict[str, str]) -> RpcError:
    face = by_slug(envelope["error"]["slug"]).face
    error = error_in(envelope, face)
    if face is NotOffered.face:
        return RpcError(_missing(turn), error.message, {**error.data, **told})
    return RpcError(error.code, error.message, {**error.data, **told}, http=error.http)


def _missing(turn: Turn) -> int:
    """What is not there is a parameter that is wrong; before 2026-07-28 a resource had a code of its own."""
    older = turn.asked.method == READ_RESOURCE and not turn.asked.client.modern
    return RESOURCE_NOT_FOUND if older else INVALID_PARAMS


def _request(turn: Turn, tool: str, arguments: dict[str, Any]) -> CallRequest:
    fields: dict[str, Any] = {"tool": tool, "arguments": arguments}
    if DEADLINE_MS in turn.asked.meta:
        fields["deadline_ms"] = turn.asked.meta[DEADLINE_MS]
    parent = turn.asked.meta.get(TRACEPARENT)
    request = call_request(fields, traceparent=parent if isinstance(parent, str) else None)
    request = replace(request, can_answer=turn.asked.client.abilities)
    return request if turn.asked.progress_token is None else request.told_to(turn.progress)
