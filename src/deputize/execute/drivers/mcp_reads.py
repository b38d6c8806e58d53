"""Read resources, get prompts and request completions from MCP servers.

Only pinned resources and prompts are requested: a URI that is not listed and matches no pinned template is rejected
here, and so is a prompt that is not pinned. Later changes of their definitions do not matter, because these only read.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from deputize.core.contract.tools import ToolContext, UpstreamTool
from deputize.core.errors import (
    Problem,
    ResourceNotFound,
    SchemaViolation,
    ToolFailed,
    UpstreamUnavailable,
)
from deputize.core.mcp.constants import INVALID_PARAMS, RESOURCE_NOT_FOUND
from deputize.core.mcp.elicitation import InputRequests
from deputize.core.mcp.resources import PinnedResources
from deputize.core.mcp.servers import COMPLETE, GET_PROMPT, READ_RESOURCE
from deputize.execute.drivers.mcp_input_required import send_upstream_request
from deputize.execute.upstreams.faults import UnreadableAnswer, UpstreamNotAtFault
from deputize.execute.upstreams.jsonrpc import UpstreamRpcError
from deputize.execute.upstreams.server_pool import UpstreamPool

Arguments = Mapping[str, Any]


class _ReadMethod(NamedTuple):
    """How one method is checked: whether its target is pinned, which result fields are kept, what a valid result is."""

    is_pinned: Callable[[PinnedResources, Arguments], bool]
    result_fields: tuple[str, ...]
    is_answer: Callable[[Arguments], bool]


def _is_object_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _is_completion(result: Arguments) -> bool:
    completion = result.get("completion")
    values = completion.get("values") if isinstance(completion, dict) else None
    return isinstance(values, list) and all(isinstance(each, str) for each in values)


_METHODS: Final = {
    READ_RESOURCE: _ReadMethod(
        is_pinned=lambda pins, arguments: pins.has_resource(arguments["uri"]),
        result_fields=("contents",),
        is_answer=lambda result: _is_object_list(result.get("contents")),
    ),
    GET_PROMPT: _ReadMethod(
        is_pinned=lambda pins, arguments: arguments["name"] in pins.prompts,
        result_fields=("description", "messages"),
        is_answer=lambda result: _is_object_list(result.get("messages")),
    ),
    COMPLETE: _ReadMethod(
        is_pinned=lambda pins, arguments: pins.has_reference(arguments["ref"]),
        result_fields=("completion",),
        is_answer=_is_completion,
    ),
}


async def read_from_server(
    upstreams: UpstreamPool, tool: UpstreamTool, arguments: dict[str, Any], context: ToolContext, seconds: float
) -> dict[str, Any] | InputRequests:
    """Send the read and return the result or input requests, or raise the Problem it ended in.

    The server has been discovered before.
    """
    tenant, server, method = context.tenant, tool.server, _METHODS[tool.method]
    if tool.method not in upstreams.get_methods(tenant, server):
        raise UpstreamNotAtFault(f"the server {server} no longer supports {tool.method}", nothing_happened=True)
    if not method.is_pinned(upstreams.get_pinned_resources(tenant, server), arguments):
        raise _build_not_offered(tool, arguments)
    allowed_families, send = (
        upstreams.get_settings(tenant, server).input_requests,
        partial(upstreams.send_request, tenant, server, tool.method),
    )
    try:
        result = await send_upstream_request(tool, context, allowed_families, seconds, partial(send, arguments))
    except ToolFailed as error:
        cause = error.__cause__
        if isinstance(cause, UpstreamRpcError) and cause.code in (INVALID_PARAMS, RESOURCE_NOT_FOUND):
            raise _explain_invalid_params(tool, arguments, error) from error
        raise
    return result if isinstance(result, InputRequests) else _extract_answer(tool, method, result)


def _explain_invalid_params(tool: UpstreamTool, arguments: Arguments, error: ToolFailed) -> Problem:
    return _build_not_offered(tool, arguments) if tool.method == READ_RESOURCE else SchemaViolation(error.message)


def _build_not_offered(tool: UpstreamTool, arguments: Arguments) -> ResourceNotFound:
    """Build the same error for unknown and for unpinned targets, so that callers cannot tell them apart."""
    reference = arguments.get("ref", arguments)
    identifiers = {name: reference[name][:200] for name in ("uri", "name") if isinstance(reference.get(name), str)}
    return ResourceNotFound(
        f"the server {tool.server} has no resource or prompt {next(iter(identifiers.values()), '')}",
        details={"server": tool.server, **identifiers},
        nothing_happened=True,
    )


def _extract_answer(tool: UpstreamTool, method: _ReadMethod, result: dict[str, Any]) -> dict[str, Any]:
    kind = result.get("resultType", "complete")
    if kind != "complete":
        raise UpstreamUnavailable(f"the server {tool.server} answered with an unknown result type")
    if not method.is_answer(result):
        raise UnreadableAnswer(f"the server {tool.server} answered {tool.method} with an invalid result")
    return {name: result[name] for name in method.result_fields if result.get(name) is not None}
