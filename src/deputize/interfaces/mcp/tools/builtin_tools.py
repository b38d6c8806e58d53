"""Serve two built-in tools that stand in every list: `calls_get` polls a call, `calls_cancel` cancels one.

They make no call of their own: they read or cancel a call of the caller, as `/v1/calls/{id}` does.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson

from deputize.core.errors import CallNotFound, ErrorSpec, NotCancelable, Problem, SchemaViolation
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
BUILTIN_DEFINITIONS: Final[dict[str, dict[str, Any]]] = {
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
}


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
    if envelope.get("is_error"):
        failure_facts = describe_failure(envelope)
        error = failure_facts["error"]
        return _build_answer(
            context,
            envelope,
            failure_facts,
            [build_text_block(f"{failure_facts['status']}: {error['message']}\n{error['advice']}")],
        )
    facts: dict[str, Any] = {"status": envelope["state"], "call_id": envelope["call_id"]}
    if get_input_requests(envelope):
        facts |= {"input_requests": sorted(get_input_requests(envelope)), "message": _INPUT_REQUIRED_MESSAGE}
        return _build_answer(context, envelope, facts, [build_text_block(f"{facts['status']}: {facts['message']}")])
    if "result" not in envelope:
        # A read that was answered in its own request: its audit entry is stored, its result is not.
        facts["message"] = str(envelope.get("detail", ""))
        return _build_answer(context, envelope, facts, [build_text_block(f"{facts['status']}: {facts['message']}")])
    tool = envelope["tool"]
    tool_version = await context.gateway.surface.find_tool(context.caller, tool["name"], tool["version"])
    content, structured_content = render_result(envelope, tool_version)
    facts["result"] = (
        envelope["result"]
        if tool_version is None or "persistence" in envelope or not is_tool_of_server(tool_version.contract)
        else structured_content or {"content": content}
    )
    return _build_answer(context, envelope, facts, content)


async def _cancel_call(context: McpContext, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        cancellation = await context.gateway.cancellations.cancel_call(context.caller, str(arguments["call_id"]))
    except (CallNotFound, NotCancelable) as problem:
        return _build_refusal(problem)
    facts = {"status": cancellation["state"], "call_id": cancellation["call_id"], "message": cancellation["detail"]}
    return {"content": [build_text_block(cancellation["detail"])], "structuredContent": facts, "isError": False}


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
    "calls_get": _check_arguments(_get_call, "wait_ms"),
    "calls_cancel": _check_arguments(_cancel_call),
}
