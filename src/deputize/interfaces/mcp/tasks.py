"""Serve the tasks extension: a call that outlives its request is a task under its own id, durable before the response.

A call that waits for approval is `working`, with the approval URL in its message. A server's questions make the task
`input_required`: each round of answers is a new call, and the task continues as the newest one. The result of a task is
the result that its call would have had.
"""

import contextlib
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from deputize.core.errors import CallNotFound, NotCancelable
from deputize.core.mcp.constants import CAPABILITY_MISSING, TASKS_EXTENSION
from deputize.core.states import TERMINAL_STATES, State
from deputize.interfaces.mcp.context import McpContext
from deputize.interfaces.mcp.errors import RpcError, build_call_error
from deputize.interfaces.mcp.render import (
    EnvelopeJson,
    build_meta,
    build_result,
    complete_envelope,
    describe_pending,
    require_answerable,
)
from deputize.interfaces.mcp.request import parse_input_responses
from deputize.operations.gateway import CallSummary, ToolView

_POLL_MS: Final = 1000
_DAY_MS: Final = 86_400_000


def build_new_task(context: McpContext, call: CallSummary | None, envelope: EnvelopeJson) -> dict[str, Any]:
    """Describe a call that was just accepted as a task."""
    now = context.gateway.format_now()
    created_at = now if call is None else call.created_at.isoformat()
    return {
        "resultType": "task",
        **_build_task(context, envelope, created_at, now),
        "_meta": build_meta(envelope, None, context.base_url),
    }


async def get_task(context: McpContext) -> dict[str, Any]:
    """Serve `tasks/get`."""
    first_call = await _load_call(context)
    call, stored_envelope, input_requests = await context.gateway.input_responses.load_latest_call(
        context.caller, first_call.call_id
    )
    envelope = complete_envelope(stored_envelope)
    created_at = first_call.created_at.isoformat()
    now = context.gateway.format_now() if call.ended_at is None else call.ended_at.isoformat()
    task = {**_build_task(context, envelope, created_at, now), "taskId": first_call.call_id}
    if State(envelope["state"]) not in TERMINAL_STATES:
        return task
    context.recent_calls.forget_call(envelope["call_id"])
    if input_requests:
        require_answerable(context, envelope)
        return {**task, "status": "input_required", "inputRequests": input_requests}
    tool_version = await context.gateway.surface.find_tool(context.caller, call.tool, call.version)
    return {**task, **_build_task_end(context, envelope, tool_version)}


async def update_task(context: McpContext) -> dict[str, Any]:
    """Take answers to the questions of the task's server. Answers to anything else are ignored."""
    call = await _load_call(context)
    outcome = await context.gateway.input_responses.answer_questions(
        context.caller, call.call_id, parse_input_responses(context.request)
    )
    if outcome is not None and outcome.spec is not None:
        raise build_call_error(outcome.envelope.fields, outcome.spec)
    return {}


async def cancel_task(context: McpContext) -> dict[str, Any]:
    """Request the cancellation of a task; its state shows the result. A task that has ended stays as it is."""
    first_call = await _load_call(context)
    latest = await context.gateway.input_responses.load_latest_call(context.caller, first_call.call_id)
    with contextlib.suppress(NotCancelable):
        await context.gateway.cancellations.cancel_call(context.caller, latest.call.call_id)
    return {}


def _build_task(context: McpContext, envelope: EnvelopeJson, created_at: str, now: str) -> dict[str, Any]:
    state = State(envelope["state"])
    task: dict[str, Any] = {
        "taskId": envelope["call_id"],
        "status": "working",
        "createdAt": created_at,
        "lastUpdatedAt": now,
        "ttlMs": context.gateway.settings.database.retention_days * _DAY_MS,
        "pollIntervalMs": envelope.get("poll_after_ms") or _POLL_MS,
    }
    if state not in TERMINAL_STATES:
        task["statusMessage"] = _build_status_message(envelope)
    return task


def _build_status_message(envelope: EnvelopeJson) -> str:
    progress = envelope.get("progress") or {}
    message: str = progress.get("message") or describe_pending(envelope)["message"].partition("\n")[0]
    return message


def _build_task_end(context: McpContext, envelope: Mapping[str, Any], tool_version: ToolView | None) -> dict[str, Any]:
    if State(envelope["state"]) is State.NEEDS_INPUT:
        return {"status": "cancelled", "statusMessage": "the questions of its server will not be answered"}
    if State(envelope["state"]) is State.CANCELED:
        return {"status": "cancelled", "statusMessage": str(envelope.get("detail", "the call was canceled"))}
    server_error = ((envelope.get("error") or {}).get("details") or {}).get("answered")
    if server_error is not None:
        # The server's own JSON-RPC error: the tool has no result.
        return {"status": "failed", "statusMessage": str(envelope["detail"]), "error": server_error}
    try:
        return {
            "status": "completed",
            "result": {"resultType": "complete", **build_result(envelope, tool_version, context.base_url)},
        }
    except RpcError as error:
        return {"status": "failed", "statusMessage": error.message, "error": error.to_json()}


async def _load_call(context: McpContext) -> CallSummary:
    if not context.request.client.supports_tasks:
        capabilities: dict[str, Any] = {"extensions": {TASKS_EXTENSION: {}}}
        raise RpcError(
            CAPABILITY_MISSING,
            "the client does not declare the tasks extension",
            {"requiredCapabilities": capabilities},
        )
    task_id = context.request.params.get("taskId")
    try:
        call = (
            await context.gateway.calls.find_call(context.caller, str(UUID(task_id)))
            if isinstance(task_id, str)
            else None
        )
    except (ValueError, CallNotFound):
        call = None
    if call is None:
        raise CallNotFound("there is no such task, or it is not yours")
    return call
