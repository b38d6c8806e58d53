"""Two tools of the door itself, in every list: what became of a call, and asking one to stop.

They make no call: they look at one, as `GET /v1/calls/{id}` does, for whoever made it. Above: `calling.py`. Below:
`lifecycle/calls.py` and `lifecycle/cancel.py`.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson

from deputize.core.errors import CallNotFound, Face, NotCancelable, Problem, SchemaViolation
from deputize.doors.mcp.asking_back import questions_in
from deputize.doors.mcp.faces import advice_of
from deputize.doors.mcp.results import Envelope, failure, meta_of, text, told, waits
from deputize.doors.mcp.shown import is_tool_of_server
from deputize.doors.mcp.turn import Turn
from deputize.doors.mcp.waiting import held

MOST_WAIT_MS: Final = 20_000
_CALL_ID = {"type": "string", "description": "The call_id that a pending result told.", "minLength": 1, "maxLength": 64}
_ASKED: Final = (
    "The tool's server asks something before it answers. Make the same call again with the same idempotency key: it is "
    "then asked of you, if your client can be asked."
)
_SHOWN: Final = {
    "type": "object",
    "properties": {
        "status": {"type": "string", "description": "succeeded, failed, awaiting_approval, queued, running, ..."},
        "call_id": {"type": "string"},
        "result": {"description": "What the tool answered, once it has succeeded."},
        "error": {"type": "object", "description": "What went wrong, if it did."},
        "asks": {"type": "array", "items": {"type": "string"}, "description": "What its server wants to know first."},
        "approval_url": {"type": ["string", "null"]},
        "retry_after_ms": {"type": "integer", "description": "When asking again is worth it, while it is not ended."},
        "message": {"type": "string"},
    },
    # What is wrong with the asking itself is told without a call; clients hold errors to the schema as well.
    "anyOf": [{"required": ["status", "call_id"]}, {"required": ["error"]}],
}
TOOLS: Final[dict[str, dict[str, Any]]] = {
    "calls_get": {
        "name": "calls_get",
        "title": "What became of a call",
        "description": "Tell what became of a call that answered pending, and its result once it has ended.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "call_id": _CALL_ID,
                "wait_ms": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": MOST_WAIT_MS,
                    "default": 0,
                    "description": "How long to wait for its end. Keep it below your own time limit.",
                },
            },
            "required": ["call_id"],
            "additionalProperties": False,
        },
        "outputSchema": _SHOWN,
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    },
    "calls_cancel": {
        "name": "calls_cancel",
        "title": "Ask a call to stop",
        "description": "Ask a call that answered pending to stop. What was already done is not undone.",
        "inputSchema": {
            "type": "object",
            "properties": {"call_id": _CALL_ID},
            "required": ["call_id"],
            "additionalProperties": False,
        },
        "outputSchema": _SHOWN,
        "annotations": {
            "readOnlyHint": False,
            "destructiveHint": False,
            "idempotentHint": True,
            "openWorldHint": False,
        },
    },
}


async def _get(turn: Turn, arguments: dict[str, Any]) -> dict[str, Any]:
    wait = arguments.get("wait_ms", 0)
    if type(wait) is float and wait.is_integer():
        wait = int(wait)
    if type(wait) is not int or not 0 <= wait <= MOST_WAIT_MS:
        return _wrong(f"wait_ms must be a whole number from 0 to {MOST_WAIT_MS}")
    try:
        envelope, ended = await held(turn, str(arguments["call_id"]), wait / 1000)
    except CallNotFound as problem:
        return _refused(problem)
    if not ended:
        waiting = waits(envelope)
        return _answer(turn, envelope, waiting, [text(waiting["message"])])
    turn.remembered.heard(envelope["call_id"])
    if envelope.get("is_error"):
        failed = failure(envelope)
        error = failed["error"]
        return _answer(turn, envelope, failed, [text(f"{failed['status']}: {error['message']}\n{error['advice']}")])
    facts: dict[str, Any] = {"status": envelope["state"], "call_id": envelope["call_id"]}
    if questions_in(envelope):
        facts |= {"asks": sorted(questions_in(envelope)), "message": _ASKED}
        return _answer(turn, envelope, facts, [text(f"{facts['status']}: {facts['message']}")])
    if "result" not in envelope:
        # A read that was answered in its own request: that it was made is known, what it told is not kept.
        facts["message"] = str(envelope.get("detail", ""))
        return _answer(turn, envelope, facts, [text(f"{facts['status']}: {facts['message']}")])
    tool = envelope["tool"]
    found = await turn.gateway.surface.found(turn.caller, tool["name"], tool["version"])
    content, structured = told(envelope["result"], found)
    facts["result"] = (
        envelope["result"]
        if found is None or not is_tool_of_server(found.contract)
        else structured or {"content": content}
    )
    return _answer(turn, envelope, facts, content)


async def _cancel(turn: Turn, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        said = await turn.gateway.cancellations.cancel(turn.caller, str(arguments["call_id"]))
    except (CallNotFound, NotCancelable) as problem:
        return _refused(problem)
    facts = {"status": said["state"], "call_id": said["call_id"], "message": said["detail"]}
    return {"content": [text(said["detail"])], "structuredContent": facts, "isError": False}


def _answer(turn: Turn, envelope: Envelope, facts: dict[str, Any], content: list[dict[str, Any]]) -> dict[str, Any]:
    meta = meta_of({"state": facts["status"], **envelope}, None, turn.base)
    return {"content": content, "structuredContent": facts, "isError": False, "_meta": meta}


def _refused(problem: Problem) -> dict[str, Any]:
    return _wrong(f"{problem.message}\n{advice_of(problem.face.slug, problem.advice)}", problem.face)


def _wrong(message: str, face: Face = SchemaViolation.face) -> dict[str, Any]:
    facts = {"error": {"code": face.code, "slug": face.slug, "message": message}}
    return {"content": [text(message)], "structuredContent": facts, "isError": True}


def _checked(
    tool: Callable[[Turn, dict[str, Any]], Awaitable[dict[str, Any]]], *names: str
) -> Callable[[Turn, dict[str, Any]], Awaitable[dict[str, Any]]]:
    async def call(turn: Turn, arguments: dict[str, Any]) -> dict[str, Any]:
        unknown = arguments.keys() - {"call_id", *names}
        if unknown:
            return _wrong(f"there is no argument {orjson.dumps(min(unknown)[:64]).decode()}")
        if not isinstance(arguments.get("call_id"), str):
            return _wrong("call_id must be the id that a pending result told")
        return await tool(turn, arguments)

    return call


OWN: Final = {"calls_get": _checked(_get, "wait_ms"), "calls_cancel": _checked(_cancel)}
