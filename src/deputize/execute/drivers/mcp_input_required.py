"""Send a request to an MCP server, and accept its input requests if settings and client capabilities allow them."""

from collections.abc import Callable, Coroutine
from typing import Any

from deputize.core.contract.tools import ToolContext, UpstreamTool
from deputize.core.errors import ClientCapabilityMissing, InputRequestNotAllowed, InputRequestRejected
from deputize.core.mcp.constants import DEADLINE_MS, IDEMPOTENCY_KEY, TRACEPARENT
from deputize.core.mcp.elicitation import (
    CapabilityFamily,
    ClientCapability,
    InputRequests,
    build_client_capabilities,
    find_required_capability,
)

SendRequest = Callable[..., Coroutine[Any, Any, dict[str, Any]]]


async def send_upstream_request(
    tool: UpstreamTool,
    context: ToolContext,
    allowed_families: tuple[CapabilityFamily, ...],
    seconds: float,
    send: SendRequest,
) -> dict[str, Any] | InputRequests:
    """Send one request and return the server's result, or its input requests.

    `send` gets the request options (`RequestOptions` in `server_pool.py`) as keyword arguments.
    """
    client_capabilities = _select_capabilities(context, allowed_families)
    try:
        result = await send(
            meta=_build_meta(context, seconds),
            credential=context.credential,
            seconds=seconds,
            report_progress=context.report_progress,
            client_capabilities=client_capabilities,
            input_round=context.input_round,
        )
    except ClientCapabilityMissing as missing:
        _check_capabilities(tool, missing, allowed_families)
        raise
    return (
        _parse_input_requests(tool, result, allowed_families, client_capabilities)
        if result.get("resultType") == "input_required"
        else result
    )


def _build_meta(context: ToolContext, seconds: float) -> dict[str, Any]:
    """Build the `_meta` of a request: idempotency key, deadline and trace context."""
    meta: dict[str, Any] = {IDEMPOTENCY_KEY: context.key, DEADLINE_MS: int(seconds * 1000)}
    if context.traceparent is not None:
        meta[TRACEPARENT] = context.traceparent
    return meta


def _parse_input_requests(
    tool: UpstreamTool,
    result: dict[str, Any],
    allowed_families: tuple[CapabilityFamily, ...],
    client_capabilities: frozenset[ClientCapability],
) -> InputRequests:
    """Parse input requests; reject those that the settings do not allow or the client cannot answer.

    The verify phase checks their content.
    """
    requests, state = result.get("inputRequests"), result.get("requestState")
    if not isinstance(requests, dict) or not requests or not all(isinstance(each, dict) for each in requests.values()):
        raise InputRequestRejected(f"the server {tool.server} requires input but sent no input requests")
    if state is not None and not isinstance(state, str):
        raise InputRequestRejected(f"the server {tool.server} sent a requestState that is not a string")
    for request in requests.values():
        capability = find_required_capability(request)
        if capability is None:
            raise InputRequestRejected(f"the server {tool.server} sent an input request with an unknown method")
        _check_family(tool, capability.family, allowed_families)
        if capability not in client_capabilities:
            details = {"server": tool.server, "requiredCapabilities": build_client_capabilities([capability])}
            raise ClientCapabilityMissing(
                f"the server {tool.server} requires input ({capability.value}), but the client does not support that",
                details=details,
            )
    return InputRequests(server=tool.server, requests=requests, request_state=state)


def _select_capabilities(
    context: ToolContext, allowed_families: tuple[CapabilityFamily, ...]
) -> frozenset[ClientCapability]:
    """Select the client's capabilities that the settings let this server use."""
    return frozenset(each for each in context.client_capabilities if each.family in allowed_families)


def _check_capabilities(
    tool: UpstreamTool, missing: ClientCapabilityMissing, allowed_families: tuple[CapabilityFamily, ...]
) -> None:
    """Raise `InputRequestNotAllowed` if the server needs a capability that its settings do not allow."""
    for family in missing.details["requiredCapabilities"]:
        _check_family(tool, family, allowed_families, nothing_happened=missing.nothing_happened)


def _check_family(
    tool: UpstreamTool,
    family: CapabilityFamily,
    allowed_families: tuple[CapabilityFamily, ...],
    *,
    nothing_happened: bool = False,
) -> None:
    if family not in allowed_families:
        raise InputRequestNotAllowed(
            f"the server {tool.server} requires input ({family}), which its settings do not allow",
            details={"server": tool.server, "setting": f"servers.{tool.server}.input_requests", "needed": family},
            nothing_happened=nothing_happened,
        )
