"""Carry one MCP request through its handlers: the caller, the request, and the response it is answered with."""

import asyncio
from dataclasses import dataclass

from deputize.core.caller import Caller
from deputize.core.contract.tools import ToolProgress
from deputize.interfaces.asgi_http import Header, Headers
from deputize.interfaces.mcp.recent_calls import RecentCalls
from deputize.interfaces.mcp.request import McpRequest
from deputize.interfaces.mcp.response import McpResponse
from deputize.interfaces.mcp.tools.tools_list import ToolLists
from deputize.operations.gateway import Gateway


@dataclass(frozen=True, kw_only=True, slots=True)
class McpContext:
    """Everything that a method handler needs."""

    gateway: Gateway
    caller: Caller
    request: McpRequest
    headers: Headers
    raw_headers: list[Header]
    response: McpResponse
    tool_lists: ToolLists
    recent_calls: RecentCalls
    # Set when the server stops: requests that wait are answered at once.
    shutdown_event: asyncio.Event

    @property
    def base_url(self) -> str:
        """The gateway's public URL; empty if it is not set."""
        return self.gateway.settings.identity.public_url or ""

    def report_progress(self, progress: ToolProgress) -> None:
        """Report a tool's progress to a client that gave a progress token. Partial results are not progress."""
        if progress.current is not None or progress.message:
            self.send_progress(progress.current, progress.total, progress.message)

    def send_progress(self, current: float | None, total: float | None, message: str) -> None:
        """Send a progress notification, if the client gave a progress token."""
        token = self.request.progress_token
        if token is None:
            return
        params = {"progressToken": token, "progress": current or 0.0}
        if total is not None:
            params["total"] = total
        if message:
            params["message"] = message
        self.response.notify("notifications/progress", params)
