"""Render a call's outcome for the client that made it: its result, or the input that the tool's server requires first.

Since 2026-07-28, a server's questions are passed on as `input_required` to a client that declares the capabilities to
answer them. The `requestState` it brings back is the round token that the lifecycle issued. A client without the
capabilities gets the error that the protocol has for this, with those that are missing.
"""

from typing import Any, Final

from deputize.core.errors import ClientCapabilityMissing
from deputize.core.mcp.constants import CAPABILITY_MISSING, INVALID_PARAMS, META_PREFIX
from deputize.core.mcp.elicitation import (
    ClientCapability,
    InputRequest,
    build_client_capabilities,
    find_required_capability,
)
from deputize.core.outcome import build_failure_envelope
from deputize.core.states import State
from deputize.interfaces.mcp.context import McpContext
from deputize.interfaces.mcp.errors import RpcError
from deputize.interfaces.mcp.tools.results import EnvelopeJson, build_meta, build_result
from deputize.operations.gateway import ToolView

SERVER_META: Final = META_PREFIX + "server"


def render_outcome(
    context: McpContext, envelope: EnvelopeJson, tool_version: ToolView | None, *, is_replay: bool = False
) -> dict[str, Any]:
    """Render an outcome; raise RpcError if MCP has an error for it."""
    input_required = envelope.get("input_required")
    if input_required is None:
        require_capability(context, envelope)
        return build_result(envelope, tool_version, context.base_url, is_replay=is_replay)
    missing = _find_missing_capabilities(context, envelope)
    if missing:
        return render_outcome(context, _build_unanswerable(envelope, missing), tool_version, is_replay=is_replay)
    return {
        "resultType": "input_required",
        "inputRequests": input_required["requests"],
        "requestState": input_required["round_token"],
        "_meta": {
            **build_meta(envelope, tool_version, context.base_url, is_replay),
            SERVER_META: input_required["server"],
        },
    }


def get_input_requests(envelope: EnvelopeJson) -> dict[str, InputRequest]:
    """Return the questions of the tool's server, by name; empty if there are none."""
    input_required = envelope.get("input_required")
    input_requests: dict[str, InputRequest] = {} if input_required is None else input_required["requests"]
    return input_requests


def parse_input_responses(context: McpContext) -> dict[str, Any]:
    """Read the client's answers, by the names of the questions."""
    responses = context.request.params.get("inputResponses", {})
    if not isinstance(responses, dict) or not all(isinstance(each, dict) for each in responses.values()):
        raise RpcError(INVALID_PARAMS, "inputResponses must be an object with one object per answer")
    return responses


def require_answerable(context: McpContext, envelope: EnvelopeJson) -> None:
    """Raise RpcError if this client lacks a capability that a question needs."""
    missing = _find_missing_capabilities(context, envelope)
    if missing:
        require_capability(context, _build_unanswerable(envelope, missing))


def _find_missing_capabilities(context: McpContext, envelope: EnvelopeJson) -> set[ClientCapability]:
    required_capabilities = {
        capability
        for each in get_input_requests(envelope).values()
        if (capability := find_required_capability(each)) is not None
    }
    return required_capabilities - context.request.client.capabilities


def require_capability(context: McpContext, envelope: EnvelopeJson) -> None:
    """Raise the protocol's own error if a call failed because its client lacks a capability."""
    error = envelope.get("error") or {}
    if context.request.client.is_modern and error.get("slug") == ClientCapabilityMissing.spec.slug:
        capabilities = error["details"].get("requiredCapabilities", {})
        raise RpcError(CAPABILITY_MISSING, str(envelope["detail"]), {"requiredCapabilities": capabilities, **envelope})


def _build_unanswerable(envelope: EnvelopeJson, missing: set[ClientCapability]) -> EnvelopeJson:
    """Build the failure for a client that cannot answer: a repeated call may come from another client."""
    server = envelope["input_required"]["server"]
    problem = ClientCapabilityMissing(
        f"the server {server} requires input, and this client does not declare that it can answer",
        details={"server": server, "requiredCapabilities": build_client_capabilities(missing)},
    )
    return build_failure_envelope(
        problem,
        call_id=envelope["call_id"],
        state=State(envelope["state"]),
        trace_id=envelope["trace_id"],
        extra_fields={},
    ).fields
