"""Serve `tools/call`: run a call, and render its outcome or answer that it is pending.

A call's idempotency key is, in this order: ours in `_meta`, the argument that the contract declares for it, the HTTP
header, and the id by which a known client numbers its tool uses. The id of the JSON-RPC request is not a key: a client
that lost a response repeats the request with a new id.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from deputize.core.call import CallRequest
from deputize.core.contract.contract import TimeoutClass
from deputize.core.json_values import run_for_value
from deputize.core.mcp.constants import (
    DEADLINE_MS,
    DID_NOT_HAPPEN,
    IDEMPOTENCY_KEY,
    INVALID_PARAMS,
    MAX_AGE_SECONDS,
    TOOL_VERSION,
    TRACEPARENT,
)
from deputize.core.mcp.elicitation import InputResponses, is_round_token
from deputize.interfaces.call_request import parse_call_request, parse_idempotency_key
from deputize.interfaces.mcp.call_origin import TOOL_USE_META, parse_call_origin
from deputize.interfaces.mcp.context import McpContext
from deputize.interfaces.mcp.errors import RpcError
from deputize.interfaces.mcp.param_headers import require_param_headers
from deputize.interfaces.mcp.pending import answer_pending, resume_pending, wait_for_call
from deputize.interfaces.mcp.render import get_input_requests, render_outcome
from deputize.interfaces.mcp.request import parse_input_responses
from deputize.interfaces.mcp.tools.builtin_tools import BUILTIN_TOOLS
from deputize.interfaces.mcp.tools.tool_definitions import KEY_ARGUMENT, can_take_key
from deputize.operations.gateway import ToolView


class _ToolCall(NamedTuple):
    """A call to make, with the arguments as the tool gets them."""

    name: str
    arguments: dict[str, Any]
    key: str | None
    tool_version: ToolView | None
    # The client's answers to questions, by name.
    responses: dict[str, Any]


async def call_tool(context: McpContext) -> dict[str, Any]:
    """Call a tool, or continue a call that a previous request made."""
    name, arguments = _parse_params(context.request.params)
    responses = parse_input_responses(context.request)
    builtin_tool = BUILTIN_TOOLS.get(name)
    if builtin_tool is not None:
        return await builtin_tool(context, arguments)
    version = context.request.meta.get(TOOL_VERSION)
    if version is not None and (not isinstance(version, str) or not version):
        raise RpcError(INVALID_PARAMS, f"_meta {TOOL_VERSION} must be a version or a range, as in ^1")
    tool_version = await context.gateway.surface.find_tool(context.caller, name, version or "latest")
    if tool_version is not None and context.request.client.is_modern:
        require_param_headers(tool_version, arguments, context.raw_headers)
    key, arguments = _extract_key(context, tool_version, arguments)
    tool_call = _ToolCall(name, arguments, key, tool_version, responses)
    state = context.request.params.get("requestState")
    if is_round_token(state):
        return await _run_call(context, tool_call, InputResponses(round_token=state, responses=responses))
    if state is not None:
        return await resume_pending(context, name, arguments, tool_version, state)
    pending_call_id = None
    if key is None:
        pending_call_id = await run_for_value(
            arguments, context.recent_calls.find_pending, context.caller, name, arguments
        )
    if pending_call_id is not None:
        return await _rejoin_call(context, tool_call, pending_call_id)
    return await _run_call(context, tool_call)


async def _run_call(context: McpContext, tool_call: _ToolCall, answers: InputResponses | None = None) -> dict[str, Any]:
    request = _build_request(context, tool_call)
    outcome = await context.gateway.run_call(context.caller, replace(request, input_responses=answers))
    envelope = await outcome.envelope.load_fields()
    if not outcome.is_accepted:
        input_requests, responses = get_input_requests(envelope), tool_call.responses
        if answers is None and input_requests and input_requests.keys() <= responses.keys():
            # The client sent the answers with the first request; they are validated against the questions now.
            return await _run_call(
                context,
                tool_call,
                InputResponses(round_token=envelope["input_required"]["round_token"], responses=responses),
            )
        return render_outcome(
            context, envelope, tool_call.tool_version, is_replay=outcome.is_replay or outcome.is_joined
        )
    if tool_call.key is None:
        name, arguments = tool_call.name, tool_call.arguments
        await run_for_value(
            arguments, context.recent_calls.add_pending, context.caller, name, arguments, outcome.call_id
        )
    return await answer_pending(context, tool_call.name, tool_call.arguments, tool_call.tool_version, envelope)


async def _rejoin_call(context: McpContext, tool_call: _ToolCall, call_id: str) -> dict[str, Any]:
    """Answer a repeated request without a key about the pending call it made before.

    The client cannot say whether it means the same call. Once it knows how that call ended, the request is a new call.
    """
    envelope, has_ended = await wait_for_call(context, call_id, 0.0)
    if not has_ended:
        return await answer_pending(context, tool_call.name, tool_call.arguments, tool_call.tool_version, envelope)
    context.recent_calls.forget_call(call_id)
    if context.request.client.supports_tasks:
        # The client follows its task by the task's id, so the same request after its end means a new call.
        return await _run_call(context, tool_call)
    return render_outcome(context, envelope, tool_call.tool_version, is_replay=True)


def _parse_params(params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    name, arguments = params.get("name"), params.get("arguments")
    if not isinstance(name, str) or not name:
        raise RpcError(INVALID_PARAMS, "name must be the name of a tool")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise RpcError(INVALID_PARAMS, "arguments must be an object with the tool's arguments by name")
    return name, arguments


def _extract_key(
    context: McpContext, tool_version: ToolView | None, arguments: dict[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    """Return the key, and the arguments without it unless it is one of the tool's own arguments."""
    key_argument, tool_use = None, context.request.meta.get(TOOL_USE_META)
    if tool_version is not None and tool_version.contract.idempotency.key_argument is not None:
        key_argument = arguments.get(tool_version.contract.idempotency.key_argument)
    elif tool_version is not None and KEY_ARGUMENT in arguments and can_take_key(tool_version.contract):
        key_argument = arguments[KEY_ARGUMENT]
        arguments = {name: value for name, value in arguments.items() if name != KEY_ARGUMENT}
    for candidate in (
        context.request.meta.get(IDEMPOTENCY_KEY),
        key_argument,
        context.headers.get(b"idempotency-key"),
        tool_use,
    ):
        if candidate is not None:
            return parse_idempotency_key(candidate), arguments
    return None, arguments


def _build_request(context: McpContext, tool_call: _ToolCall) -> CallRequest:
    fields: dict[str, Any] = {"tool": tool_call.name, "arguments": tool_call.arguments}
    meta = context.request.meta
    if DEADLINE_MS in meta:
        fields["deadline_ms"] = meta[DEADLINE_MS]
    if TOOL_VERSION in meta:
        fields["version"] = meta[TOOL_VERSION]
    if MAX_AGE_SECONDS in meta:
        fields["max_age_seconds"] = meta[MAX_AGE_SECONDS]
    if DID_NOT_HAPPEN in meta:
        fields["did_not_happen"] = meta[DID_NOT_HAPPEN]
    if (
        tool_call.tool_version is not None
        and tool_call.tool_version.contract.timeout.timeout_class is TimeoutClass.LONG_RUNNING
    ):
        # Clients time out after five seconds to a minute: a tool that may take minutes runs in the queue.
        fields["mode"] = "async"
    parent = meta.get(TRACEPARENT) or context.headers.get(b"traceparent")
    request = parse_call_request(
        fields,
        key=tool_call.key,
        traceparent=parent.decode("latin-1") if isinstance(parent, bytes) else _as_text(parent),
    )
    request = replace(
        request, client_capabilities=context.request.client.capabilities, origin=parse_call_origin(context.request)
    )
    return (
        request if context.request.progress_token is None else request.with_progress_callback(context.report_progress)
    )


def _as_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
