"""Answer calls that are still pending when their request ends: those that wait for approval, or run in a queue.

    client declares the tasks extension     a task, which is the call under its own id
    approval, and client opens URLs         the approval URL, once: as `input_required` since 2026-07-28, before that as
                                            the error -32042. When the client returns, its request waits for a moment
    a run                                   its request waits for a moment, since most runs end soon
    otherwise                               a pending result, and `calls_get` to poll

No `tools/call` waits until a person decides. Opening the URL proves nothing: approvers sign in and decide there.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

from deputize.core.errors import ConcurrencyLimitReached, TokenExpired
from deputize.core.json_values import run_for_value
from deputize.core.mcp.constants import URL_ELICITATION_REQUIRED
from deputize.core.states import TERMINAL_STATES, State, ToolEvent
from deputize.interfaces.mcp.context import McpContext
from deputize.interfaces.mcp.errors import RpcError
from deputize.interfaces.mcp.render import (
    EnvelopeJson,
    build_pending,
    complete_envelope,
    describe_pending,
    render_outcome,
)
from deputize.interfaces.mcp.request_state import issue_request_state, verify_request_state
from deputize.interfaces.mcp.tasks import build_new_task
from deputize.operations.gateway import ToolView

# Most clients time out after five seconds or more; a client that opened an approval URL waits longer.
WAIT_SECONDS: Final = 4.0
APPROVAL_WAIT_SECONDS: Final = 20.0
_APPROVAL_KEY: Final = "approval"


async def answer_pending(
    context: McpContext,
    tool: str,
    arguments: Mapping[str, Any],
    tool_version: ToolView | None,
    envelope: EnvelopeJson,
) -> dict[str, Any]:
    """Answer a call that was accepted and has not ended."""
    client, call_id = context.request.client, envelope["call_id"]
    if client.supports_tasks:
        return build_new_task(context, await context.gateway.calls.find_call(context.caller, call_id), envelope)
    if envelope["state"] != State.AWAITING_APPROVAL:
        return await _wait_and_render(context, tool_version, call_id, WAIT_SECONDS)
    url = (envelope.get("approval") or {}).get("url")
    if not (client.can_open_urls and url):
        return build_pending(envelope, context.base_url)
    if client.is_modern:
        return await run_for_value(arguments, _build_url_elicitation, context, tool, arguments, envelope, url)
    if context.recent_calls.is_first_prompt(call_id):
        raise _url_elicitation_error(envelope, url)
    return await _wait_and_render(context, tool_version, call_id, APPROVAL_WAIT_SECONDS)


async def resume_pending(
    context: McpContext, tool: str, arguments: Mapping[str, Any], tool_version: ToolView | None, state: Any
) -> dict[str, Any]:
    """Answer a client that returns from an approval URL. It waits for the decision only if it opened the URL."""
    call_id = await run_for_value(
        arguments, verify_request_state, context.gateway, context.caller, tool, arguments, state
    )
    answers = context.request.params.get("inputResponses")
    approval_answer = answers.get(_APPROVAL_KEY) if isinstance(answers, dict) else None
    has_accepted = isinstance(approval_answer, dict) and approval_answer.get("action") == "accept"
    return await _wait_and_render(context, tool_version, call_id, APPROVAL_WAIT_SECONDS if has_accepted else 0.0)


async def _wait_and_render(
    context: McpContext, tool_version: ToolView | None, call_id: str, seconds: float
) -> dict[str, Any]:
    envelope, has_ended = await wait_for_call(context, call_id, seconds)
    if not has_ended:
        return build_pending(envelope, context.base_url)
    context.recent_calls.forget_call(call_id)
    return render_outcome(context, envelope, tool_version)


async def wait_for_call(context: McpContext, call_id: str, seconds: float) -> tuple[EnvelopeJson, bool]:
    """Wait until a call ends, the time is over or the client disconnects; return its envelope and whether it ended."""
    calls, caller = context.gateway.calls, context.caller
    call_view = await calls.show_call(caller, call_id)
    if call_view.poll_after_ms is not None and seconds > 0:
        await _follow_call(context, call_id, seconds)
        call_view = await calls.show_call(caller, call_id)
    return complete_envelope(await call_view.envelope.load_fields()), call_view.poll_after_ms is None


async def _follow_call(context: McpContext, call_id: str, seconds: float) -> None:
    follow_task = asyncio.create_task(_forward_progress(context, call_id))
    shutdown_task = asyncio.create_task(context.shutdown_event.wait())
    try:
        await asyncio.wait(
            {follow_task, shutdown_task, context.response.watch_disconnect()},
            timeout=seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
    finally:
        shutdown_task.cancel()
        follow_task.cancel()
        # The token was valid when the request came, so the request is answered; it only waits no longer. Nor does it if
        # the caller follows too many calls already.
        with contextlib.suppress(asyncio.CancelledError, TokenExpired, ConcurrencyLimitReached):
            await follow_task


async def _forward_progress(context: McpContext, call_id: str) -> None:
    """Forward a call's progress to the client until the call ends."""
    async for call_event in await context.gateway.calls.follow_call(context.caller, call_id):
        if call_event.event is ToolEvent.PROGRESS:
            progress = call_event.facts
            context.send_progress(
                progress.get("current_step"), progress.get("total_steps"), progress.get("message") or ""
            )
        elif call_event.event is not ToolEvent.PARTIAL_RESULT and State(call_event.facts["state"]) in TERMINAL_STATES:
            return


def _build_url_elicitation(
    context: McpContext, tool: str, arguments: Mapping[str, Any], envelope: EnvelopeJson, url: str
) -> dict[str, Any]:
    elicitation = {
        "method": "elicitation/create",
        "params": {"mode": "url", "message": _format_message(envelope), "url": url},
    }
    return {
        "resultType": "input_required",
        "inputRequests": {_APPROVAL_KEY: elicitation},
        "requestState": issue_request_state(context.gateway, context.caller, tool, arguments, envelope["call_id"]),
    }


def _url_elicitation_error(envelope: EnvelopeJson, url: str) -> RpcError:
    approval = envelope["approval"]
    elicitation = {
        "mode": "url",
        "elicitationId": approval["approval_id"],
        "url": url,
        "message": _format_message(envelope),
    }
    data = {"elicitations": [elicitation], "call": describe_pending(envelope)}
    return RpcError(URL_ELICITATION_REQUIRED, "This call needs approval first.", data)


def _format_message(envelope: EnvelopeJson) -> str:
    tool = (envelope.get("tool") or {}).get("name", "This call")
    return f"{tool} needs approval. An approver signs in and decides there."
