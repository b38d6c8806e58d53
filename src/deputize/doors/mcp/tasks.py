"""The tasks extension: a call that outlives its request is a task under its own id, durable before it is answered.

Waiting for people is `working`, with where they decide: input is required of them, not of the client. What the tool's
server asks is required of the client: each round is a call, and the task goes on as the newest of them. What a task
came to is the result its call would have had.

Above: `door.py`, `waiting.py`. Below: `lifecycle/calls.py` and `lifecycle/cancel.py`.
"""

import contextlib
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import asyncpg
import orjson

from deputize.catalog.snapshot import ToolVersion
from deputize.core.errors import CallNotFound, NotCancelable
from deputize.core.events import TERMINAL, State
from deputize.core.mcp import CAPABILITY_MISSING, TASKS_EXTENSION
from deputize.doors.mcp.asking_back import require_can, responses_in
from deputize.doors.mcp.faces import RpcError, error_in
from deputize.doors.mcp.results import Envelope, meta_of, result_of, waits, whole
from deputize.doors.mcp.turn import Turn

_POLL_MS: Final = 1000
_DAY_MS: Final = 86_400_000


def task_of(turn: Turn, row: asyncpg.Record | None, envelope: Envelope) -> dict[str, Any]:
    """A call that was just taken on, as a task."""
    now = turn.gateway.lifecycle.rooms.stamps.now()
    created = now if row is None else row["created_at"].isoformat()
    return {"resultType": "task", **_task(turn, envelope, created, now), "_meta": meta_of(envelope, None, turn.base)}


async def get_task(turn: Turn) -> dict[str, Any]:
    first = await _row(turn)
    row, shown, left = await turn.gateway.answering.standing(turn.caller, str(first["id"]))
    envelope = whole(shown)
    created, ended = first["created_at"].isoformat(), row["ended_at"]
    now = turn.gateway.lifecycle.rooms.stamps.now() if ended is None else ended.isoformat()
    task = {**_task(turn, envelope, created, now), "taskId": str(first["id"])}
    if State(envelope["state"]) not in TERMINAL:
        return task
    turn.remembered.heard(envelope["call_id"])
    if left:
        require_can(turn, envelope)
        return {**task, "status": "input_required", "inputRequests": left}
    found = await turn.gateway.surface.found(turn.caller, row["tool"], row["version"])
    return {**task, **_ended(turn, envelope, found)}


async def update_task(turn: Turn) -> dict[str, Any]:
    """Answers to what the task's server asks. What nobody asked for is taken note of and changes nothing."""
    row = await _row(turn)
    outcome = await turn.gateway.answering.answer(turn.caller, str(row["id"]), responses_in(turn))
    if outcome is not None and outcome.face is not None:
        raise error_in(orjson.loads(outcome.body), outcome.face)
    return {}


async def cancel_task(turn: Turn) -> dict[str, Any]:
    """Asked for; what comes of it is for the task to say. One that has ended has ended."""
    first = await _row(turn)
    newest, _, _ = await turn.gateway.answering.standing(turn.caller, str(first["id"]))
    with contextlib.suppress(NotCancelable):
        await turn.gateway.cancellations.cancel(turn.caller, str(newest["id"]))
    return {}


def _task(turn: Turn, envelope: Envelope, created: str, now: str) -> dict[str, Any]:
    state = State(envelope["state"])
    task: dict[str, Any] = {
        "taskId": envelope["call_id"],
        "status": "working",
        "createdAt": created,
        "lastUpdatedAt": now,
        "ttlMs": turn.gateway.settings.database.retention_days * _DAY_MS,
        "pollIntervalMs": envelope.get("poll_after_ms") or _POLL_MS,
    }
    if state not in TERMINAL:
        task["statusMessage"] = _said(envelope)
    return task


def _said(envelope: Envelope) -> str:
    progress = envelope.get("progress") or {}
    told: str = progress.get("message") or waits(envelope)["message"].partition("\n")[0]
    return told


def _ended(turn: Turn, envelope: Mapping[str, Any], found: ToolVersion | None) -> dict[str, Any]:
    if State(envelope["state"]) is State.NEEDS_INPUT:
        return {"status": "cancelled", "statusMessage": "nobody will answer what its server asked"}
    if State(envelope["state"]) is State.CANCELED:
        return {"status": "cancelled", "statusMessage": str(envelope.get("detail", "the call was canceled"))}
    answered = ((envelope.get("error") or {}).get("details") or {}).get("answered")
    if answered is not None:
        # Its server's own error, in its own words: the tool came to no result, not even a bad one.
        return {"status": "failed", "statusMessage": str(envelope["detail"]), "error": answered}
    try:
        return {"status": "completed", "result": {"resultType": "complete", **result_of(envelope, found, turn.base)}}
    except RpcError as error:
        return {"status": "failed", "statusMessage": error.message, "error": error.to_json()}


async def _row(turn: Turn) -> asyncpg.Record:
    if not turn.asked.client.tasks:
        needed: dict[str, Any] = {"extensions": {TASKS_EXTENSION: {}}}
        raise RpcError(
            CAPABILITY_MISSING, "the client does not declare the tasks extension", {"requiredCapabilities": needed}
        )
    task = turn.asked.params.get("taskId")
    try:
        row = await turn.gateway.calls.row(turn.caller, str(UUID(task))) if isinstance(task, str) else None
    except (ValueError, CallNotFound):
        row = None
    if row is None:
        raise CallNotFound("there is no such task, or it is not yours")
    return row
