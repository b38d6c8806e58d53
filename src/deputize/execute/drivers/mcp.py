"""Call tools of MCP servers, after comparing their definitions with the pins.

If a server changed a tool since it was pinned, its calls are refused; a rule may let those that only read continue. The
result keeps everything the server sent: `{"content": […], "structured": {…}}`. A server may answer with
`input_required` if the settings allow it and the caller has the capability; the call then ends with the server's input
requests.

`mcp_reads.py` handles the methods for resources, prompts and completions.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import orjson

from deputize.core.contract.contract import Contract, Effects, MutationClass
from deputize.core.contract.tools import ToolContext, UpstreamTool
from deputize.core.errors import (
    OutcomeUnknown,
    Problem,
    ResourceLimitExceeded,
    ResultInvalid,
    ServerNotFound,
    ToolDrifted,
    ToolFailed,
    ToolRequiresSetup,
    UpstreamUnavailable,
)
from deputize.core.mcp.elicitation import InputRequests
from deputize.core.mcp.servers import CALL_TOOL, parse_mcp_target
from deputize.core.sensitive.known_paths import KnownPaths
from deputize.core.sensitive.text import redact_error_text, redact_texts
from deputize.execute.drivers.mcp_input_required import send_upstream_request
from deputize.execute.drivers.mcp_reads import read_from_server
from deputize.execute.network_policy import require_reachable
from deputize.execute.upstreams.faults import UnreadableAnswer, UpstreamNotAtFault
from deputize.execute.upstreams.server_pool import UpstreamPool
from deputize.sandboxes.port import Backend

_MAX_WORDS_LENGTH: Final = 300
_MAX_SEARCHED_LENGTH: Final = 4_000
_MAX_BLOCKS: Final = 2_000
_LARGEST_DETAILS: Final = 16_384
_USER_CREDENTIALS: Final = frozenset({"delegated", "link"})


class McpDriver:
    """The driver for tools and methods of MCP servers."""

    def __init__(self, upstreams: UpstreamPool) -> None:
        self._upstreams = upstreams

    def find_tool(self, contract: Contract) -> UpstreamTool:
        """Return the server's tool or method that a contract names."""
        target = parse_mcp_target(contract.handler.target)
        return UpstreamTool(contract=contract, server=target.server, name=target.name, method=target.method)

    def find_backend(self, contract: Contract, tenant: str) -> Backend | None:
        """Find the sandbox of a server's program; None if it has none, or is reached by a URL."""
        try:
            return self._upstreams.find_backend(tenant, parse_mcp_target(contract.handler.target).server)
        except ServerNotFound:
            return None

    async def run(
        self, tool: UpstreamTool, arguments: dict[str, Any], context: ToolContext | None, seconds: float
    ) -> Any:
        """Call the tool and return its output, or raise the Problem it ended in."""
        assert context is not None, "a call of an MCP server's tool always has a context"
        upstreams, clock = self._upstreams, self._upstreams.clock.monotonic
        deadline = clock() + seconds
        if tool.contract.limits_network:
            self._require_reachable_server(tool, context)
        if tool.method != CALL_TOOL:
            await self._refresh_discovery(tool, context, seconds, max_age=float("inf"))
            return await read_from_server(upstreams, tool, arguments, context, deadline - clock())
        await self._require_pinned_tool(tool, context, seconds)
        seconds_left = deadline - clock()
        allowed_families = upstreams.get_settings(context.tenant, tool.server).input_requests
        send = partial(upstreams.call_tool, context.tenant, tool.server, tool.name, arguments)
        try:
            result = await send_upstream_request(tool, context, allowed_families, seconds_left, send)
        except ResourceLimitExceeded as limit:
            if _is_read_only(tool):
                raise
            # The response was not read to its end, so it may be a success.
            raise OutcomeUnknown(f"{limit.message}; it is unknown whether the tool acted") from limit
        if isinstance(result, InputRequests):
            return result
        find_known_paths = partial(upstreams.get_known_paths, context.tenant, tool.server, arguments)
        return _build_envelope(tool, result, find_known_paths)

    def _require_reachable_server(self, tool: UpstreamTool, context: ToolContext) -> None:
        """Require that the contract's network allows the server's URL; what a program reaches is not checked here."""
        try:
            url = self._upstreams.get_settings(context.tenant, tool.server).url
        except ServerNotFound as missing:
            raise _build_missing_server(tool) from missing
        if url is None:
            raise ToolRequiresSetup(
                f"{tool.contract.full_name} {tool.contract.version} declares what this gateway does not enforce for a "
                f"server that is a program: /network",
                details={"server": tool.server, "fields": ["/network"]},
                advice="Ask the tool's author for a version without it, or use a server with a URL.",
                nothing_happened=True,
            )
        require_reachable(tool.contract, url)

    async def _require_pinned_tool(self, tool: UpstreamTool, context: ToolContext, seconds: float) -> None:
        """Require that the server still has the tool and that it matches its pin, unless a rule lets it pass all the
        same. A read is compared with what the gateway knows, and asks the server for nothing more.
        """
        upstreams, tenant, server = self._upstreams, context.tenant, tool.server
        is_read, viewer = _is_read_only(tool), _choose_viewer(tool, context)
        await self._refresh_discovery(tool, context, seconds, max_age=float("inf") if is_read else None)
        digest = (upstreams.get_tool_digests(tenant, server, viewer) or {}).get(tool.name)
        if digest is None:
            raise UpstreamNotAtFault(f"the server {server} no longer has the tool {tool.name}", nothing_happened=True)
        if context.admitted_drift.admits(Effects.READ if is_read else Effects.WRITE):
            return
        pin, shared_digests = tool.contract.handler.pin, upstreams.get_tool_digests(tenant, server)
        # The gateway's own discovery must match the pin too, if the server shows it this tool.
        if {digest, (shared_digests or {}).get(tool.name, digest)} != {pin}:
            raise ToolDrifted(
                f"the server {server} changed the definition of {tool.name} since it was accepted",
                details={"server": server},
            )
        viewers = (viewer,) if shared_digests is None else (viewer, "")
        if not all(upstreams.has_pinned_instructions(tenant, server, each) for each in viewers):
            raise ToolDrifted(
                f"the server {server} changed its instructions since they were accepted",
                details={"server": server},
            )

    async def _refresh_discovery(
        self, tool: UpstreamTool, context: ToolContext, seconds: float, *, max_age: float | None
    ) -> None:
        """Discover the server if it was not discovered within `max_age` seconds; None means `recheck_seconds`."""
        upstreams, tenant, server = self._upstreams, context.tenant, tool.server
        try:
            max_age = upstreams.get_settings(tenant, server).recheck_seconds if max_age is None else max_age
            viewer = _choose_viewer(tool, context)
            if (
                upstreams.get_discovery_age(tenant, server, viewer) > max_age
                or upstreams.get_tool_digests(tenant, server, viewer) is None
            ):
                await upstreams.refresh_discovery(
                    tenant, server, context.credential, seconds, max_age=max_age, viewer=viewer
                )
        except ServerNotFound as missing:
            raise _build_missing_server(tool) from missing
        except Problem as problem:
            raise problem.replace(nothing_happened=True) from problem.__cause__


def _build_missing_server(tool: UpstreamTool) -> ToolRequiresSetup:
    return ToolRequiresSetup(
        f"{tool.contract.full_name} is a tool of the server {tool.server}, which is not in the settings",
        details={"server": tool.server, "setting": "servers"},
        advice=f"Add the server {tool.server} to [[servers]] in deputize.toml, and restart the gateway.",
        nothing_happened=True,
    )


def _choose_viewer(tool: UpstreamTool, context: ToolContext) -> str:
    """Choose whose discovery counts: the user's own for writes with a user credential, else the gateway's.

    A server may declare different definitions to each user, so one user's discovery says nothing about another's.
    """
    is_user_only = tool.contract.auth.credential in _USER_CREDENTIALS and not _is_read_only(tool)
    return context.user if is_user_only else ""


def _is_read_only(tool: UpstreamTool) -> bool:
    return tool.contract.mutation_class is MutationClass.READ


def _build_envelope(
    tool: UpstreamTool, result: dict[str, Any], find_known_paths: Callable[[], KnownPaths]
) -> dict[str, Any]:
    kind, content = result.get("resultType", "complete"), result.get("content", [])
    if kind != "complete":
        raise UpstreamUnavailable(
            f"the server {tool.server} answered with an unknown result type; the tool may still be running"
        )
    if isinstance(content, list) and len(content) > _MAX_BLOCKS:
        raise ResultInvalid(
            f"the server {tool.server} returned {len(content):,} content blocks; the limit is {_MAX_BLOCKS:,}"
        )
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise UnreadableAnswer(f"the server {tool.server} returned content that is not a list of objects")
    if result.get("isError") is True:
        raise _build_failure(tool, content, find_known_paths())
    structured_content = result.get("structuredContent")
    return (
        {"content": content} if structured_content is None else {"content": content, "structured": structured_content}
    )


def _build_failure(tool: UpstreamTool, content: list[dict[str, Any]], known_paths: KnownPaths) -> Problem:
    """Build the problem of an error that the server told, with its content unless that is too large."""
    text = _find_error_text(content)
    # Redacted before it is cut: what remains of a secret may not look like one.
    visible_text = redact_error_text(text, known_paths)
    message = visible_text[:_MAX_WORDS_LENGTH] or f"{tool.contract.full_name} failed without an error message"
    try:
        is_small = len(orjson.dumps([[[content]]])) <= _LARGEST_DETAILS
    except TypeError:
        is_small = False  # it is nested too deep to serialize
    redact = partial(redact_error_text, known_paths=known_paths)
    visible_content = redact_texts(content, redact) if is_small else content
    return ToolFailed(message, details={"content": visible_content} if is_small else {}).replace(
        is_redacted=visible_text != text or visible_content != content, known_paths=known_paths
    )


def _find_error_text(content: list[dict[str, Any]]) -> str:
    for block in content:
        if block.get("type") == "text" and isinstance(block.get("text"), str) and block["text"].strip():
            return str(block["text"]).strip()[:_MAX_SEARCHED_LENGTH]
    return ""
