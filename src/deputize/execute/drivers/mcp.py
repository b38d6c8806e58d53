"""Tools of MCP servers: one call through a line that is open already, held against what somebody agreed to.

A tool that its server changed since then goes on reading and stops writing. The result is one envelope that loses
nothing of what the server sent: `{"content": […], "structured": {…}}`. A server that asks back before it answers is
heard where the operator lets it ask and whoever called can answer; the call has then ended with its questions.

Above: `execute/driver.py`. Below: `upstreams/servers.py`; what is no tool, in `mcp_reads.py`.
"""

from functools import partial
from typing import Any, Final

import orjson

from deputize.core.contract import Contract, MutationClass
from deputize.core.definition import ToolContext, UpstreamTool
from deputize.core.errors import (
    OutcomeUnknown,
    Problem,
    RequiresSetup,
    ResourceLimit,
    ResultInvalid,
    ServerNotFound,
    ToolDrifted,
    ToolFailed,
    UpstreamUnavailable,
)
from deputize.core.questions import Asks
from deputize.core.servers import CALL_TOOL, address
from deputize.execute.drivers.mcp_questions import told_or_asked
from deputize.execute.drivers.mcp_reads import read
from deputize.execute.upstreams.servers import Upstreams

_LONGEST_WORDS: Final = 300
_LARGEST_DETAILS: Final = 16_384
_OF_USERS: Final = frozenset({"delegated", "link"})


class McpDriver:
    def __init__(self, upstreams: Upstreams) -> None:
        self._upstreams = upstreams

    def find(self, contract: Contract) -> UpstreamTool:
        at = address(contract.handler.target)
        return UpstreamTool(contract=contract, server=at.server, name=at.name, method=at.method)

    async def run(
        self, tool: UpstreamTool, arguments: dict[str, Any], context: ToolContext | None, seconds: float
    ) -> Any:
        """The tool's output, or the Problem it ended in."""
        assert context is not None, "a tool of a server always asks for its context"
        upstreams, clock = self._upstreams, self._upstreams.clock.monotonic
        ends = clock() + seconds
        if tool.method != CALL_TOOL:
            await self._look(tool, context, seconds, within=float("inf"))
            return await read(upstreams, tool, arguments, context, ends - clock())
        await self._require_agreed(tool, context, seconds)
        left = ends - clock()
        allowed = upstreams.settings_of(context.tenant, tool.server).asks
        send = partial(upstreams.call, context.tenant, tool.server, tool.name, arguments)
        try:
            result = await told_or_asked(tool, context, allowed, left, send)
        except ResourceLimit as limit:
            if _only_reads(tool):
                raise
            # The answer was not read to its end: it may be a success.
            raise OutcomeUnknown(f"{limit.message}; whether it acted is not known") from limit
        return result if isinstance(result, Asks) else _envelope(tool, result)

    async def _require_agreed(self, tool: UpstreamTool, context: ToolContext, seconds: float) -> None:
        """That the tool is still there, and, for whatever changes anything, that it is what somebody agreed to."""
        upstreams, tenant, server = self._upstreams, context.tenant, tool.server
        reads, who = _only_reads(tool), _eyes(tool, context)
        await self._look(tool, context, seconds, within=float("inf") if reads else None)
        digest = (upstreams.seen(tenant, server, who) or {}).get(tool.name)
        if digest is None:
            raise UpstreamUnavailable(f"the server {server} no longer has the tool {tool.name}", nothing_happened=True)
        if reads:
            return
        pin, everybodys = tool.contract.handler.pin, upstreams.seen(tenant, server)
        # What the gateway saw itself since counts as well, as far as it is shown this tool.
        if {digest, (everybodys or {}).get(tool.name, digest)} != {pin}:
            raise ToolDrifted(
                f"the server {server} changed {tool.name} since somebody agreed to it", details={"server": server}
            )
        eyes = (who,) if everybodys is None else (who, "")
        if not all(upstreams.says_what_was_agreed(tenant, server, each) for each in eyes):
            raise ToolDrifted(
                f"the server {server} changed its instructions since somebody agreed to them",
                details={"server": server},
            )

    async def _look(self, tool: UpstreamTool, context: ToolContext, seconds: float, *, within: float | None) -> None:
        """At a server that nobody has seen, or not within so many seconds; as often as the settings say, for None."""
        upstreams, tenant, server = self._upstreams, context.tenant, tool.server
        try:
            within = upstreams.settings_of(tenant, server).recheck_seconds if within is None else within
            who = _eyes(tool, context)
            if (
                upstreams.seconds_since_seen(tenant, server, who) > within
                or upstreams.seen(tenant, server, who) is None
            ):
                await upstreams.look(tenant, server, context.credential, seconds, within=within, who=who)
        except ServerNotFound as missing:
            raise RequiresSetup(
                f"{tool.contract.full_name} is a tool of the server {server}, which the settings do not name",
                details={"server": server, "setting": "servers"},
                nothing_happened=True,
            ) from missing
        except Problem as problem:
            problem.nothing_happened = True
            raise


def _eyes(tool: UpstreamTool, context: ToolContext) -> str:
    """Whose look at the server counts. Of what changes something, with a credential of the user's own, only theirs: the
    server may tell everybody something else, and no user's account speaks for another's.
    """
    own = tool.contract.auth.credential in _OF_USERS and not _only_reads(tool)
    return context.user if own else ""


def _only_reads(tool: UpstreamTool) -> bool:
    return tool.contract.mutation_class is MutationClass.READ


def _envelope(tool: UpstreamTool, result: dict[str, Any]) -> dict[str, Any]:
    kind, content = result.get("resultType", "complete"), result.get("content", [])
    if kind != "complete":
        raise UpstreamUnavailable(f"the server {tool.server} answers in a way nobody asked for: it may be at it still")
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise ResultInvalid(f"the server {tool.server} answers with content that is none")
    if result.get("isError") is True:
        raise ToolFailed(_first_words(tool, content), details=_details(content))
    structured = result.get("structuredContent")
    return {"content": content} if structured is None else {"content": content, "structured": structured}


def _first_words(tool: UpstreamTool, content: list[dict[str, Any]]) -> str:
    for block in content:
        if block.get("type") == "text" and isinstance(block.get("text"), str) and block["text"].strip():
            text: str = block["text"].strip()
            return text[:_LONGEST_WORDS]
    return f"{tool.contract.full_name} failed and did not say why"


def _details(content: list[dict[str, Any]]) -> dict[str, Any]:
    """What the server said of its failure, unless it is too much to keep."""
    try:
        return {"content": content} if len(orjson.dumps([[[content]]])) <= _LARGEST_DETAILS else {}
    except TypeError:
        return {}  # it nests deeper than can be written
