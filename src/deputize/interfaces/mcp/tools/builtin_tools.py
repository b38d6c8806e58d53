"""Serve built-in tools that stand in every list: `calls_batch` makes calls, the others follow, cancel or undo one.

They are no calls of their own: they make, read or cancel calls of the caller, as the REST routes of calls do, and undo
none: they ask a person to.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import orjson

from deputize.core.call_batch import MAX_BATCH_SIZE, BatchedCall
from deputize.core.contract.contract import TimeoutClass
from deputize.core.errors import (
    CallNotFound,
    ConcurrencyLimitReached,
    ErrorSpec,
    MalformedRequest,
    NotCancelable,
    Problem,
    QueueFull,
    SchemaViolation,
    UndoTooBroad,
)
from deputize.core.outcome import Outcome, build_problem_fields
from deputize.interfaces.asgi_http import hide_internal_error, read_trace_id
from deputize.interfaces.call_batch import parse_call_batch
from deputize.interfaces.mcp.call_origin import parse_call_origin
from deputize.interfaces.mcp.context import McpContext
from deputize.interfaces.mcp.errors import get_advice
from deputize.interfaces.mcp.pending import wait_for_call
from deputize.interfaces.mcp.render import (
    EnvelopeJson,
    build_meta,
    build_text_block,
    describe_failure,
    describe_pending,
    get_input_requests,
    render_result,
)
from deputize.interfaces.mcp.tools.tool_definitions import is_tool_of_server

MAX_WAIT_MS: Final = 20_000
# Of a plan, so many steps that are not undone are named.
_MAX_STAYS: Final = 10
_CALL_ID = {"type": "string", "description": "The call_id of a pending result.", "minLength": 1, "maxLength": 64}
_INPUT_REQUIRED_MESSAGE: Final = (
    "The tool's server requires input before it answers. Make the same call again with the same idempotency key: your "
    "client then gets the questions, if it can answer them."
)
_OUTPUT_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "status": {"type": "string", "description": "succeeded, failed, awaiting_approval, queued, running, ..."},
        "call_id": {"type": "string"},
        "result": {"description": "The tool's result, once it has succeeded."},
        "error": {"type": "object", "description": "What went wrong, if the call failed."},
        "input_requests": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The names of its server's input requests.",
        },
        "approval_url": {"type": ["string", "null"]},
        "retry_after_ms": {"type": "integer", "description": "When to poll again, while it is pending."},
        "message": {"type": "string"},
    },
    # An error in the arguments is returned without a call; clients validate errors against the schema too.
    "anyOf": [{"required": ["status", "call_id"]}, {"required": ["error"]}],
}
_BATCH_OUTPUT_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "results": {"type": "array", "items": _OUTPUT_SCHEMA, "description": "One for each call, in their order."},
        "error": {"type": "object", "description": "What is wrong with the batch; no call was made."},
    },
    "anyOf": [{"required": ["results"]}, {"required": ["error"]}],
}
_BATCHED_CALL: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "tool": {"type": "string", "description": "The name of a tool in this list."},
        "arguments": {"type": "object", "description": "Its arguments by name."},
        "version": {"type": "string"},
        "idempotency_key": {"type": "string", "description": "Makes repeating the call safe."},
        "depends_on": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0},
            "description": "Positions, from 0, of earlier calls that must succeed before this one begins.",
        },
    },
    "required": ["tool"],
    "additionalProperties": False,
}
BUILTIN_DEFINITIONS: Final[dict[str, dict[str, Any]]] = {
    "calls_batch": {
        "name": "calls_batch",
        "title": "Make several calls",
        "description": "Call several tools at once. Calls that may change the same things run one after another, the "
        "others side by side; reads do not wait for writes unless depends_on says so. Each is permitted, limited and "
        "recorded like a call made alone.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "calls": {"type": "array", "items": _BATCHED_CALL, "minItems": 1, "maxItems": MAX_BATCH_SIZE},
                "on_failure": {
                    "enum": ["ignore", "cancel_siblings", "cancel_dependent"],
                    "default": "cancel_dependent",
                    "description": "What a failed call means for the others.",
                },
            },
            "required": ["calls"],
            "additionalProperties": False,
        },
        "outputSchema": _BATCH_OUTPUT_SCHEMA,
        "annotations": {
            "readOnlyHint": False,
            "destructiveHint": True,
            "idempotentHint": False,
            "openWorldHint": True,
        },
    },
    "calls_get": {
        "name": "calls_get",
        "title": "Get a call",
        "description": "Get the state of a call that returned pending, and its result once it has ended.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "call_id": _CALL_ID,
                "wait_ms": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": MAX_WAIT_MS,
                    "default": 0,
                    "description": "How long to wait for its end. Keep it below your own timeout.",
                },
            },
            "required": ["call_id"],
            "additionalProperties": False,
        },
        "outputSchema": _OUTPUT_SCHEMA,
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    },
    "calls_cancel": {
        "name": "calls_cancel",
        "title": "Cancel a call",
        "description": "Cancel a call that returned pending. What it has done already is not undone.",
        "inputSchema": {
            "type": "object",
            "properties": {"call_id": _CALL_ID},
            "required": ["call_id"],
            "additionalProperties": False,
        },
        "outputSchema": _OUTPUT_SCHEMA,
        "annotations": {
            "readOnlyHint": False,
            "destructiveHint": False,
            "idempotentHint": True,
            "openWorldHint": False,
        },
    },
    "calls_undo": {
        "name": "calls_undo",
        "title": "Ask for an undo",
        "description": "Ask the person you work for to take back a call that you made, or the steps of a flow. They "
        "see the plan and decide; nothing is undone before.",
        "inputSchema": {
            "type": "object",
            "properties": {"call_id": {**_CALL_ID, "description": "The call_id of the call to take back."}},
            "required": ["call_id"],
            "additionalProperties": False,
        },
        "outputSchema": _OUTPUT_SCHEMA,
        "annotations": {
            "readOnlyHint": False,
            "destructiveHint": False,
            "idempotentHint": True,
            "openWorldHint": False,
        },
    },
}


async def _make_calls(context: McpContext, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        calls = arguments.get("calls")
        for index, each in enumerate(calls if isinstance(calls, list) else ()):
            unknown = each.keys() - _BATCHED_CALL["properties"].keys() if isinstance(each, dict) else ()
            if unknown:
                raise MalformedRequest(f"calls[{index}] has no field {orjson.dumps(min(unknown)[:64]).decode()}")
        batch = parse_call_batch(arguments)
    except MalformedRequest as problem:
        return _build_error(problem.message)
    completed = [await _complete_call(context, each) for each in batch.calls]
    results = await context.gateway.run_calls(context.caller, replace(batch, calls=completed))
    facts = {"results": [await _describe_result(context, each) for each in results]}
    return {
        "content": [build_text_block(orjson.dumps(facts).decode())],
        "structuredContent": facts,
        "isError": False,
    }


async def _complete_call(context: McpContext, call: BatchedCall) -> BatchedCall:
    """Add what the client says of itself. A tool that may take minutes is queued, as when it is called alone."""
    request = call.request
    tool_version = await context.gateway.surface.find_tool(context.caller, request.tool, request.version)
    is_long = tool_version is not None and tool_version.contract.timeout.timeout_class is TimeoutClass.LONG_RUNNING
    request = replace(
        request,
        mode="async" if is_long else request.mode,
        client_capabilities=context.request.client.capabilities,
        origin=parse_call_origin(context.request),
    )
    return replace(call, request=request)


async def _describe_result(context: McpContext, result: Outcome | Exception) -> dict[str, Any]:
    if not isinstance(result, Outcome):
        trace_id = read_trace_id({"headers": context.raw_headers})
        return {"error": build_problem_fields(hide_internal_error(result, trace_id), trace_id=trace_id)["error"]}
    envelope = await result.envelope.load_fields()
    if result.is_accepted:
        return describe_pending(envelope)
    facts, _ = await _describe_end(context, envelope)
    return facts


async def _get_call(context: McpContext, arguments: dict[str, Any]) -> dict[str, Any]:
    wait = arguments.get("wait_ms", 0)
    if type(wait) is float and wait.is_integer():
        wait = int(wait)
    if type(wait) is not int or not 0 <= wait <= MAX_WAIT_MS:
        return _build_error(f"wait_ms must be a whole number from 0 to {MAX_WAIT_MS}")
    try:
        envelope, has_ended = await wait_for_call(context, str(arguments["call_id"]), wait / 1000)
    except CallNotFound as problem:
        return _build_refusal(problem)
    if not has_ended:
        pending_facts = describe_pending(envelope)
        return _build_answer(context, envelope, pending_facts, [build_text_block(pending_facts["message"])])
    context.recent_calls.forget_call(envelope["call_id"])
    facts, content = await _describe_end(context, envelope)
    return _build_answer(context, envelope, facts, content)


async def _describe_end(context: McpContext, envelope: EnvelopeJson) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Describe a call that has ended, as structured content and as content blocks."""
    if envelope.get("is_error"):
        failure_facts = describe_failure(envelope)
        error = failure_facts["error"]
        return failure_facts, [build_text_block(f"{failure_facts['status']}: {error['message']}\n{error['advice']}")]
    facts: dict[str, Any] = {"status": envelope["state"], "call_id": envelope["call_id"]}
    if get_input_requests(envelope):
        facts |= {"input_requests": sorted(get_input_requests(envelope)), "message": _INPUT_REQUIRED_MESSAGE}
        return facts, [build_text_block(f"{facts['status']}: {facts['message']}")]
    if "result" not in envelope:
        # A read that was answered in its own request: its audit entry is stored, its result is not.
        facts["message"] = str(envelope.get("detail", ""))
        return facts, [build_text_block(f"{facts['status']}: {facts['message']}")]
    tool = envelope["tool"]
    tool_version = await context.gateway.surface.find_tool(context.caller, tool["name"], tool["version"])
    content, structured_content = render_result(envelope, tool_version)
    facts["result"] = (
        envelope["result"]
        if tool_version is None or "persistence" in envelope or not is_tool_of_server(tool_version.contract)
        else structured_content or {"content": content}
    )
    return facts, content


async def _cancel_call(context: McpContext, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        cancellation = await context.gateway.cancellations.cancel_call(context.caller, str(arguments["call_id"]))
    except (CallNotFound, NotCancelable) as problem:
        return _build_refusal(problem)
    facts = {"status": cancellation["state"], "call_id": cancellation["call_id"], "message": cancellation["detail"]}
    return {"content": [build_text_block(cancellation["detail"])], "structuredContent": facts, "isError": False}


async def _request_undo(context: McpContext, arguments: dict[str, Any]) -> dict[str, Any]:
    call_id = str(arguments["call_id"])
    try:
        requested = await context.gateway.undo.requests.request_undo(context.caller, call_id)
    except (CallNotFound, ConcurrencyLimitReached, MalformedRequest, QueueFull, UndoTooBroad) as problem:
        return _build_refusal(problem)
    plan = requested["plan"]
    stays = [f"{each['tool']} ({each['call_id']}): {each['detail']}" for each in plan["steps"] if each["detail"]]
    if requested["task_id"] is None:
        status, message = "nothing_to_undo", "Nothing can be undone."
    else:
        status = "undo_requested"
        message = f"The person you work for can undo {plan['ready']} of {len(plan['steps'])} calls: tell them to run "
        message += f"deputize undo {call_id}."
    message = " ".join([message, *(f"Not undone: {each}." for each in stays[:_MAX_STAYS])])
    facts = {"status": status, "call_id": call_id, "message": message}
    return {"content": [build_text_block(message)], "structuredContent": facts, "isError": False}


def _build_answer(
    context: McpContext, envelope: EnvelopeJson, facts: dict[str, Any], content: list[dict[str, Any]]
) -> dict[str, Any]:
    meta = build_meta({"state": facts["status"], **envelope}, None, context.base_url)
    return {"content": content, "structuredContent": facts, "isError": False, "_meta": meta}


def _build_refusal(problem: Problem) -> dict[str, Any]:
    return _build_error(f"{problem.message}\n{get_advice(problem.spec.slug, problem.advice)}", problem.spec)


def _build_error(message: str, spec: ErrorSpec = SchemaViolation.spec) -> dict[str, Any]:
    facts = {"error": {"code": spec.code, "slug": spec.slug, "message": message}}
    return {"content": [build_text_block(message)], "structuredContent": facts, "isError": True}


def _check_arguments(
    tool: Callable[[McpContext, dict[str, Any]], Awaitable[dict[str, Any]]], *names: str
) -> Callable[[McpContext, dict[str, Any]], Awaitable[dict[str, Any]]]:
    async def call(context: McpContext, arguments: dict[str, Any]) -> dict[str, Any]:
        unknown = arguments.keys() - {"call_id", *names}
        if unknown:
            return _build_error(f"there is no argument {orjson.dumps(min(unknown)[:64]).decode()}")
        if not isinstance(arguments.get("call_id"), str):
            return _build_error("call_id must be the call_id of a pending result")
        return await tool(context, arguments)

    return call


BUILTIN_TOOLS: Final = {
    "calls_batch": _make_calls,
    "calls_get": _check_arguments(_get_call, "wait_ms"),
    "calls_cancel": _check_arguments(_cancel_call),
    "calls_undo": _check_arguments(_request_undo),
}
