"""An MCP client that sends exactly what a test gives it, for tests that look at every byte."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
import orjson

from deputize.core.mcp.constants import CLIENT_CAPABILITIES, CLIENT_INFO, MODERN_VERSION, PROTOCOL_VERSION_KEY
from tests.integration.conftest import HttpGateway

TASKS_CAPABILITY: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
URL_ELICITATION: dict[str, Any] = {"elicitation": {"url": {}}}
ACCEPT = "application/json, text/event-stream"


@dataclass
class McpResponse:
    """What came back: the last message, and whatever was told before it."""

    status: int
    headers: httpx2.Headers
    messages: list[dict[str, Any]]

    @property
    def last_message(self) -> dict[str, Any]:
        return self.messages[-1]

    @property
    def result(self) -> dict[str, Any]:
        assert "result" in self.last_message, self.last_message
        found: dict[str, Any] = self.last_message["result"]
        return found

    @property
    def error(self) -> dict[str, Any]:
        assert "error" in self.last_message, self.last_message
        found: dict[str, Any] = self.last_message["error"]
        return found

    @property
    def structured_content(self) -> dict[str, Any]:
        found: dict[str, Any] = self.result["structuredContent"]
        return found


@dataclass
class McpClient:
    """Of the newer era, unless an older `version` is named."""

    gateway: HttpGateway
    token: str | None = None
    version: str = MODERN_VERSION
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    session: str | None = None

    async def send_request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str | None] | None = None,
        id: Any = 1,
    ) -> McpResponse:
        """One request as a proper client makes it; a header of None is left out."""
        sent: dict[str, Any] = dict(params or {})
        told: dict[str, str | None] = {"accept": ACCEPT, "mcp-protocol-version": self.version}
        own = dict(meta or {})
        if self.version == MODERN_VERSION:
            own = {
                PROTOCOL_VERSION_KEY: MODERN_VERSION,
                CLIENT_CAPABILITIES: dict(self.capabilities),
                CLIENT_INFO: {"name": "test", "version": "1"},
                **own,
            }
            told["mcp-method"] = method
            name = sent.get("name") or sent.get("taskId")
            if name:
                told["mcp-name"] = name
        elif self.session is not None:
            told["mcp-session-id"] = self.session
        if own:
            sent["_meta"] = own
        body = {"jsonrpc": "2.0", "id": id, "method": method, "params": sent}
        return await self.post(body, {**told, **(headers or {})})

    async def post(self, body: Any, headers: Mapping[str, str | None]) -> McpResponse:
        sent = {"authorization": f"Bearer {self.token or self.gateway.token()}", "content-type": "application/json"}
        sent |= {name: value for name, value in headers.items() if value is not None}
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        return parse_response(await self.gateway.http.post("/mcp", content=content, headers=sent))

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, key: str | None = None, **more: Any
    ) -> McpResponse:
        meta = dict(more.pop("meta", {}))
        if key is not None:
            meta["dev.deputize/idempotency-key"] = key
        headers = more.pop("headers", None)
        params = {"name": name, "arguments": dict(arguments or {}), **more}
        return await self.send_request("tools/call", params, meta=meta, headers=headers)

    async def list_tools(self) -> dict[str, dict[str, Any]]:
        listed = (await self.send_request("tools/list")).result["tools"]
        return {each["name"]: each for each in listed}


def parse_response(answer: httpx2.Response) -> McpResponse:
    media = answer.headers.get("content-type", "")
    if media.startswith("text/event-stream"):
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        messages = [orjson.loads(line) for line in lines]
    else:
        messages = [orjson.loads(answer.content)] if answer.content else []
    return McpResponse(answer.status_code, answer.headers, messages)
