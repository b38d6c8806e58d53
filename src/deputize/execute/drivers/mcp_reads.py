"""What MCP servers have beside tools, as calls reach it: a resource, a prompt, or ways to complete an argument.

Nothing is sent that nobody agreed to: an address that is in no list and that no agreed template stands for ends here,
and so does a prompt that was not listed. Whether the server changed what it says of it since is not asked: these read.
What comes back loses nothing that the protocol gives a meaning.

Above: `mcp.py`. Below: `core/offers.py`, `upstreams/servers.py`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from deputize.core.definition import ToolContext, UpstreamTool
from deputize.core.errors import (
    NotOffered,
    Problem,
    ResultInvalid,
    SchemaViolation,
    ToolFailed,
    UpstreamUnavailable,
)
from deputize.core.mcp import INVALID_PARAMS, RESOURCE_NOT_FOUND
from deputize.core.offers import Offers
from deputize.core.questions import Asks
from deputize.core.servers import COMPLETE, GET_PROMPT, READ_RESOURCE
from deputize.execute.drivers.mcp_questions import told_or_asked
from deputize.execute.upstreams.messages import Refused
from deputize.execute.upstreams.servers import Upstreams

Arguments = Mapping[str, Any]


class _Method(NamedTuple):
    """Whether what is asked for was agreed to, what of an answer is kept, and whether that is one."""

    agreed: Callable[[Offers, Arguments], bool]
    kept: tuple[str, ...]
    is_answer: Callable[[Arguments], bool]


def _objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _is_completion(result: Arguments) -> bool:
    said = result.get("completion")
    values = said.get("values") if isinstance(said, dict) else None
    return isinstance(values, list) and all(isinstance(each, str) for each in values)


_METHODS: Final = {
    READ_RESOURCE: _Method(
        agreed=lambda offers, asked: offers.has_resource(asked["uri"]),
        kept=("contents",),
        is_answer=lambda result: _objects(result.get("contents")),
    ),
    GET_PROMPT: _Method(
        agreed=lambda offers, asked: asked["name"] in offers.prompts,
        kept=("description", "messages"),
        is_answer=lambda result: _objects(result.get("messages")),
    ),
    COMPLETE: _Method(
        agreed=lambda offers, asked: offers.has_reference(asked["ref"]),
        kept=("completion",),
        is_answer=_is_completion,
    ),
}


async def read(
    upstreams: Upstreams, tool: UpstreamTool, arguments: dict[str, Any], context: ToolContext, seconds: float
) -> dict[str, Any] | Asks:
    """What the server answers or asks first, or the Problem it ended in. The server was looked at before."""
    tenant, server, method = context.tenant, tool.server, _METHODS[tool.method]
    if tool.method not in upstreams.methods(tenant, server):
        raise UpstreamUnavailable(f"the server {server} no longer answers {tool.method}", nothing_happened=True)
    if not method.agreed(upstreams.offers(tenant, server), arguments):
        raise _not_offered(tool, arguments)
    allowed, send = upstreams.settings_of(tenant, server).asks, partial(upstreams.ask, tenant, server, tool.method)
    try:
        result = await told_or_asked(tool, context, allowed, seconds, partial(send, arguments))
    except ToolFailed as failed:
        refused = failed.__cause__
        if isinstance(refused, Refused) and refused.code in (INVALID_PARAMS, RESOURCE_NOT_FOUND):
            raise _wrongly_asked(tool, arguments, failed) from failed
        raise
    return result if isinstance(result, Asks) else _answer(tool, method, result)


def _wrongly_asked(tool: UpstreamTool, arguments: Arguments, failed: ToolFailed) -> Problem:
    return _not_offered(tool, arguments) if tool.method == READ_RESOURCE else SchemaViolation(failed.message)


def _not_offered(tool: UpstreamTool, arguments: Arguments) -> NotOffered:
    """The same whether the server has none or nobody agreed to it: who may not know does not learn it from this."""
    asked = arguments.get("ref", arguments)
    named = {name: asked[name][:200] for name in ("uri", "name") if isinstance(asked.get(name), str)}
    return NotOffered(
        f"the server {tool.server} offers no such thing here: {next(iter(named.values()), '')}",
        details={"server": tool.server, **named},
        nothing_happened=True,
    )


def _answer(tool: UpstreamTool, method: _Method, result: dict[str, Any]) -> dict[str, Any]:
    kind = result.get("resultType", "complete")
    if kind != "complete":
        raise UpstreamUnavailable(f"the server {tool.server} answers in a way nobody asked for")
    if not method.is_answer(result):
        raise ResultInvalid(f"the server {tool.server} answers {tool.method} with what is no answer to it")
    return {name: result[name] for name in method.kept if result.get(name) is not None}
