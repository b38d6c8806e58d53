"""Render a call's envelope for the client that made it: its result, that it is pending, or the input it requires first.

What a model must know is in both `content` and `structuredContent`, since some clients show only one of them. The
result of an MCP server's tool is sent as the server sent it. Everything else is in `_meta` under `dev.deputize/`; it
holds no secrets, since clients may pass it to the model.

Since 2026-07-28, a server's questions are passed on as `input_required` to a client that declares the capabilities to
answer them. The `requestState` it brings back is the round token that the lifecycle issued. A client without the
capabilities gets the error that the protocol has for this, with those that are missing.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import orjson

from deputize.core.errors import ClientCapabilityMissing, OutcomeUnknown, find_problem_type
from deputize.core.mcp.constants import CAPABILITY_MISSING, DEPRECATION, META_PREFIX
from deputize.core.mcp.elicitation import (
    ClientCapability,
    InputRequest,
    build_client_capabilities,
    find_required_capability,
)
from deputize.core.outcome import build_failure_envelope
from deputize.core.states import TERMINAL_STATES, State
from deputize.interfaces.mcp.context import McpContext
from deputize.interfaces.mcp.errors import RpcError, build_call_error, get_advice, is_protocol_error
from deputize.interfaces.mcp.tools.tool_definitions import is_tool_of_server
from deputize.operations.gateway import ToolView

CALL: Final = META_PREFIX + "call"
RECEIPT: Final = META_PREFIX + "receipt"
COST: Final = META_PREFIX + "cost"
REDACTION: Final = META_PREFIX + "redaction"
SERVER: Final = META_PREFIX + "server"
REPLAY: Final = META_PREFIX + "replayed"
WARNINGS: Final = META_PREFIX + "warnings"
_REDACTED_CLASS: Final = "result_redacted"
_POLL_AFTER_MS = 5000

EnvelopeJson = Mapping[str, Any]
ContentBlock = dict[str, Any]


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
            SERVER: input_required["server"],
        },
    }


def get_input_requests(envelope: EnvelopeJson) -> dict[str, InputRequest]:
    """Return the questions of the tool's server, by name; empty if there are none."""
    input_required = envelope.get("input_required")
    input_requests: dict[str, InputRequest] = {} if input_required is None else input_required["requests"]
    return input_requests


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


def build_result(
    envelope: EnvelopeJson, tool_version: ToolView | None, base: str, *, is_replay: bool = False
) -> dict[str, Any]:
    """Build the result of a call that ended; raise RpcError if its outcome is one. `base` is the gateway's URL."""
    if envelope.get("is_error"):
        return _build_failure(envelope, tool_version, base, is_replay=is_replay)
    content, structured_content = render_result(envelope, tool_version)
    result: dict[str, Any] = {
        "content": content,
        "isError": False,
        "_meta": build_meta(envelope, tool_version, base, is_replay),
    }
    if structured_content is not None:
        result["structuredContent"] = structured_content
    return result


def complete_envelope(envelope: dict[str, Any]) -> EnvelopeJson:
    """Build the envelope of a call that ended without one because its process died, as a repeated call would get it."""
    slug, state = envelope.get("error_slug"), State(envelope["state"])
    if (
        "is_error" in envelope
        or state not in TERMINAL_STATES
        or state is State.SUCCEEDED
        or "error_slug" not in envelope
    ):
        return envelope
    problem = (find_problem_type(slug) if slug else OutcomeUnknown)(
        "the process that ran this call ended before its outcome was recorded"
    )
    return build_failure_envelope(
        problem, call_id=envelope["call_id"], state=state, trace_id=envelope.get("trace_id") or "", extra_fields={}
    ).fields


def render_result(envelope: EnvelopeJson, tool_version: ToolView | None) -> tuple[list[ContentBlock], Any]:
    """Render the result of a call that succeeded; a reference has the same form whatever the tool."""
    is_reference = envelope.get("persistence") is not None
    blocks, structured_content = render_payload(envelope.get("result"), None if is_reference else tool_version)
    return [*blocks, *map(render_content_block, envelope.get("content") or ())], structured_content


def render_content_block(item: Mapping[str, Any]) -> ContentBlock:
    """Render what a tool returned beside its payload as the content block of its kind; diffs and logs are texts."""
    mime_type = {"mimeType": item["media_type"]} if "media_type" in item else {}
    match item["kind"]:
        case "image" | "audio":
            return {"type": item["kind"], "data": item["data"], **mime_type}
        case "file":
            uri = f"file:///{quote(item.get('name') or 'file', safe='')}"
            return {"type": "resource", "resource": {"uri": uri, "blob": item["data"], **mime_type}}
        case "link":
            return {"type": "resource_link", "uri": item["uri"], "name": item.get("name") or item["uri"], **mime_type}
        case _:
            return build_text_block(item["text"])


def render_payload(payload: Any, tool_version: ToolView | None) -> tuple[list[ContentBlock], Any]:
    """Render a payload as content blocks and as structured content."""
    if tool_version is not None and is_tool_of_server(tool_version.contract) and isinstance(payload, dict):
        return payload.get("content", []), payload.get("structured")
    structured_content = payload if isinstance(payload, dict) else {"result": payload}
    return [
        build_text_block(payload if isinstance(payload, str) else orjson.dumps(payload).decode())
    ], structured_content


def build_text_block(value: str) -> ContentBlock:
    return {"type": "text", "text": value}


def _build_failure(
    envelope: EnvelopeJson, tool_version: ToolView | None, base: str, *, is_replay: bool
) -> dict[str, Any]:
    error = envelope["error"]
    spec = find_problem_type(error["slug"]).spec
    if is_protocol_error(spec):
        raise build_call_error(envelope, spec)
    structured_content = describe_failure(envelope)
    blocks = (
        error["details"].get("content")
        if tool_version is not None and is_tool_of_server(tool_version.contract)
        else None
    )
    content = (
        blocks if _are_blocks(blocks) else [build_text_block(_format_error(structured_content["error"], envelope))]
    )
    return {
        "content": content,
        "structuredContent": structured_content,
        "isError": True,
        "_meta": build_meta(envelope, tool_version, base, is_replay),
    }


def describe_failure(envelope: EnvelopeJson) -> dict[str, Any]:
    """Describe a failed call for a model: what went wrong, whether to retry, and what to do next."""
    error = envelope["error"]
    fields = {name: error[name] for name in ("code", "slug", "message", "retryable", "retry_after_ms")}
    details = {name: value for name, value in error["details"].items() if name != "content"}
    advice = get_advice(error["slug"], error["advice"])
    return {
        "status": envelope["state"],
        "call_id": envelope["call_id"],
        "error": {**fields, "advice": advice, "details": details},
    }


def _format_error(error: Mapping[str, Any], envelope: EnvelopeJson) -> str:
    lines = [f"{error['code']}: {error['message']}", str(error["advice"])]
    if error["retry_after_ms"] is not None:
        lines.append(f"Retry after {error['retry_after_ms']} ms.")
    if error["details"]:
        lines.append("Details: " + orjson.dumps(error["details"]).decode())
    return "\n".join([*lines, f"(call {envelope['call_id']}, {envelope['state']})"])


def _are_blocks(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) and "type" in each for each in value)


def build_meta(
    envelope: EnvelopeJson, tool_version: ToolView | None, base: str, is_replay: bool = False
) -> dict[str, Any]:
    """Build the `_meta` of a result: the call, its receipt, and whatever else applies."""
    call_id = envelope["call_id"]
    meta: dict[str, Any] = {
        CALL: {"id": call_id, "state": envelope["state"], "trace_id": envelope.get("trace_id")},
        RECEIPT: {"id": call_id, "url": f"{base}/v1/calls/{call_id}"},
    }
    cost = (envelope.get("execution") or {}).get("cost")
    if cost:
        meta[COST] = cost
    if is_replay:
        meta[REPLAY] = True
    if envelope.get("warnings"):
        meta[WARNINGS] = envelope["warnings"]
    if (envelope.get("error") or {}).get("class") == _REDACTED_CLASS:
        meta[REDACTION] = {"applied": True}
    if tool_version is not None and tool_version.deprecation is not None:
        meta[DEPRECATION] = tool_version.deprecation.to_meta()
    return meta


def build_pending(envelope: EnvelopeJson, base: str) -> dict[str, Any]:
    """Build the result of a pending call, which is never an error."""
    facts = describe_pending(envelope)
    meta = build_meta(envelope, None, base)
    return {
        "content": [build_text_block(facts["message"])],
        "structuredContent": facts,
        "isError": False,
        "_meta": meta,
    }


def describe_pending(envelope: EnvelopeJson) -> dict[str, Any]:
    """Describe what a pending call waits for, and how to poll it."""
    call_id, state = envelope["call_id"], envelope["state"]
    approval = envelope.get("approval") or {}
    url = approval.get("url")
    if state == "awaiting_approval":
        wait = _POLL_AFTER_MS
        groups = ", ".join(approval.get("groups", ()))
        why = f"Nothing was done yet: this call needs approval{f' by {groups}' if groups else ''}."
        if url:
            why += f" Approvers decide at {url}"
    else:
        wait = envelope.get("poll_after_ms") or _POLL_AFTER_MS
        why = "The call was accepted and has not ended yet."
    how = f'Poll it with calls_get {{"call_id": "{call_id}"}}; do not make the call again.'
    progress = envelope.get("progress")
    return {
        "status": state,
        "call_id": call_id,
        "approval_url": url,
        "retry_after_ms": wait,
        "message": f"{why}\n{how}",
        **({"progress": progress} if progress else {}),
    }
