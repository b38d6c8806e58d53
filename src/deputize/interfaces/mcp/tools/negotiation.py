"""Serve `dev.deputize/negotiate`: find the best version of a tool that offers what the agent expects."""

from typing import Any

from deputize.core.mcp.constants import INVALID_PARAMS
from deputize.interfaces.mcp.context import McpContext
from deputize.interfaces.mcp.errors import RpcError
from deputize.interfaces.negotiation_request import parse_negotiation


async def negotiate_version(context: McpContext) -> dict[str, Any]:
    """Negotiate by the tool's `name`; the other parameters are those of the REST route."""
    fields = {key: value for key, value in context.request.params.items() if key != "_meta"}
    name = fields.pop("name", None)
    if not isinstance(name, str) or not name:
        raise RpcError(INVALID_PARAMS, "name must be the name of a tool")
    body = parse_negotiation(fields)
    return await context.gateway.negotiations.negotiate_version(
        context.caller, name, body.version, body.build_expectation()
    )
