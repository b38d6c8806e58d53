"""Run each read of a resource, a prompt or a completion as one call of the lifecycle.

MCP has no form for a pending or failed read, so both are JSON-RPC errors with everything there is to know. A reference
to no server at all is audited too, as a call of an unknown tool.
"""

from dataclasses import replace
from typing import Any

from deputize.core.call import CallRequest
from deputize.core.errors import ApprovalRequired, CallInFlight, ResourceNotFound, find_problem_type
from deputize.core.mcp.constants import DEADLINE_MS, INVALID_PARAMS, RESOURCE_NOT_FOUND, TRACEPARENT
from deputize.core.mcp.elicitation import InputResponses, is_round_token
from deputize.core.mcp.servers import READ_RESOURCE
from deputize.core.states import State
from deputize.interfaces.call_request import parse_call_request
from deputize.interfaces.mcp.call_origin import parse_call_origin
from deputize.interfaces.mcp.context import McpContext
from deputize.interfaces.mcp.errors import RpcError, build_call_error, build_error, get_rpc_code
from deputize.interfaces.mcp.pending import WAIT_SECONDS, wait_for_call
from deputize.interfaces.mcp.reads.sources import ServerSource
from deputize.interfaces.mcp.render import (
    EnvelopeJson,
    build_meta,
    describe_pending,
    get_input_requests,
    render_outcome,
    require_capability,
)
from deputize.interfaces.mcp.request import parse_input_responses


async def read_upstream(
    context: McpContext, source: ServerSource, arguments: dict[str, Any], **reference: str
) -> dict[str, Any]:
    """Read from a server. `reference` is how the client named the resource, and is repeated in errors."""
    state, responses = context.request.params.get("requestState"), parse_input_responses(context.request)
    if state is not None and not is_round_token(state):
        raise RpcError(INVALID_PARAMS, "requestState was not issued for this request")
    answers = InputResponses(round_token=state, responses=responses) if is_round_token(state) else None
    request = _build_request(context, source.tool, arguments)
    return await _run_read(context, request, answers, responses, reference)


async def _run_read(
    context: McpContext,
    request: CallRequest,
    answers: InputResponses | None,
    responses: dict[str, Any],
    reference: dict[str, str],
) -> dict[str, Any]:
    outcome = await context.gateway.run_call(context.caller, replace(request, input_responses=answers))
    envelope: EnvelopeJson = await outcome.envelope.load_fields()
    if outcome.is_accepted:
        envelope = await _wait_for_end(context, envelope, reference)
    input_requests = get_input_requests(envelope)
    if answers is None and input_requests and input_requests.keys() <= responses.keys():
        # The client sent the answers with the first request, as it may with tools.
        answers = InputResponses(round_token=envelope["input_required"]["round_token"], responses=responses)
        return await _run_read(context, request, answers, responses, reference)
    if envelope.get("is_error"):
        require_capability(context, envelope)
        raise _build_read_error(context, envelope, reference)
    if input_requests:
        return render_outcome(context, envelope, None)
    return {
        **envelope["result"],
        "_meta": build_meta(envelope, None, context.base_url, outcome.is_replay or outcome.is_joined),
    }


async def build_refusal(context: McpContext, problem: ResourceNotFound, **reference: str) -> RpcError:
    """Audit a reference to no server, and return its error."""
    outcome = await context.gateway.run_call(
        context.caller, _build_request(context, context.request.method, dict(reference))
    )
    error = build_error(problem, outcome.envelope.fields.get("trace_id") or "")
    return RpcError(_choose_not_found_code(context), error.message, {**error.data, **reference})


async def _wait_for_end(context: McpContext, envelope: EnvelopeJson, reference: dict[str, str]) -> EnvelopeJson:
    """Wait a moment for an accepted call; raise RpcError if it is still pending or needs approval."""
    spec = ApprovalRequired.spec
    if envelope["state"] != State.AWAITING_APPROVAL:
        spec = CallInFlight.spec
        envelope, has_ended = await wait_for_call(context, envelope["call_id"], WAIT_SECONDS)
        if has_ended:
            return envelope
    facts = describe_pending(envelope)
    raise RpcError(get_rpc_code(spec), facts["message"], {**facts, **reference})


def _build_read_error(context: McpContext, envelope: EnvelopeJson, reference: dict[str, str]) -> RpcError:
    spec = find_problem_type(envelope["error"]["slug"]).spec
    error = build_call_error(envelope, spec)
    if spec is ResourceNotFound.spec:
        return RpcError(_choose_not_found_code(context), error.message, {**error.data, **reference})
    return RpcError(error.code, error.message, {**error.data, **reference}, http=error.http)


def _choose_not_found_code(context: McpContext) -> int:
    """Choose the error code of a missing resource, which had its own before 2026-07-28."""
    is_legacy = context.request.method == READ_RESOURCE and not context.request.client.is_modern
    return RESOURCE_NOT_FOUND if is_legacy else INVALID_PARAMS


def _build_request(context: McpContext, tool: str, arguments: dict[str, Any]) -> CallRequest:
    fields: dict[str, Any] = {"tool": tool, "arguments": arguments}
    if DEADLINE_MS in context.request.meta:
        fields["deadline_ms"] = context.request.meta[DEADLINE_MS]
    parent = context.request.meta.get(TRACEPARENT)
    request = parse_call_request(fields, traceparent=parent if isinstance(parent, str) else None)
    request = replace(
        request, client_capabilities=context.request.client.capabilities, origin=parse_call_origin(context.request)
    )
    return (
        request if context.request.progress_token is None else request.with_progress_callback(context.report_progress)
    )
