"""A gateway with one MCP server behind it, and the words tests use about both."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import orjson

from deputize.core.settings import McpServerSettings, Settings
from tests.integration.conftest import ADMIN, HttpGateway, serve_gateway
from tests.support.mcp_servers.upstream import Upstream

NAME = "orders"
SCOPES = (f"{NAME}:write", ADMIN)
READ, WRITE = f"{NAME}.get_order", f"{NAME}.cancel_order"
# Nothing in a test waits for a probe: each look is asked for.
PROBE_SECONDS = 3600.0


def server_settings(upstream: Upstream, **more: Any) -> McpServerSettings:
    # Slow, so that a machine that has other things to do ends no call.
    said: dict[str, Any] = {
        "name": NAME, "url": upstream.url, "reads": ("get_*",), "slow": ("*",), "probe_seconds": PROBE_SECONDS,
        "start_seconds": 60,
    }  # fmt: skip
    return McpServerSettings.model_validate({**said, **more})


@dataclass
class UpstreamGateway:
    gateway: HttpGateway
    upstream: Upstream

    @property
    def admin_token(self) -> str:
        return self.gateway.token("root", scopes=SCOPES)

    async def probe(self) -> dict[str, Any]:
        answer = await self.gateway.post(f"/v1/servers/{NAME}/test", token=self.admin_token)
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    async def fetch_server(self) -> dict[str, Any]:
        answer = await self.gateway.get(f"/v1/servers/{NAME}", token=self.admin_token)
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    async def fetch_changes(self, state: str = "open") -> dict[str, dict[str, Any]]:
        answer = await self.gateway.get(f"/v1/servers/{NAME}/changes", token=self.admin_token, state=state)
        assert answer.status_code == 200, answer.text
        return {each["item"]: each for each in answer.json()["changes"]}

    async def decide_change(
        self, change: dict[str, Any], decision: str = "accept", reason: str = "", *, token: str = ""
    ) -> Any:
        asked = {"item": change["item"], "digest": change["digest"], "decision": decision, "reason": reason}
        return await self.gateway.post(f"/v1/servers/{NAME}/changes/decide", asked, token=token or self.admin_token)

    async def call_tool(self, tool: str, **arguments: Any) -> Any:
        return await self.gateway.call(tool, arguments or {"name": "Ana"}, token=self.admin_token, key=self._next_key())

    async def fetch_tool_status(self) -> dict[str, tuple[str, str]]:
        """Status and code of each tool of the server."""
        answer = await self.gateway.get("/v1/surface", token=self.admin_token, namespace=NAME)
        return {
            each["name"]: (each["status"], each["reason"]["code"])
            for each in answer.json()["tools"]
            if each["name"].startswith(f"{NAME}.")
        }

    async def fetch_versions(self, tool: str) -> dict[str, str]:
        answer = await self.gateway.get(f"/v1/tools/{tool}/versions", token=self.admin_token)
        return {each["version"]: each["state"] for each in answer.json()["versions"]}

    async def list_commands(self, *names: str) -> list[str]:
        """Subjects of the audit entries of these commands, oldest first."""
        rows = await self._fetch_rows("select entry from deputize.audit_entries where tenant = 'dev' order by id")
        entries = [orjson.loads(row["entry"]) for row in rows]
        return [str(each.get("subject")) for each in entries if each.get("command") in names]

    async def _fetch_rows(self, sql: str) -> list[asyncpg.Record]:
        assert self.gateway.settings.database.url is not None
        db = await asyncpg.connect(self.gateway.settings.database.url.get_secret_value())
        try:
            return list(await db.fetch(sql))
        finally:
            await db.close()

    _keys = 0

    def _next_key(self) -> str:
        UpstreamGateway._keys += 1
        return f"key-{UpstreamGateway._keys}"


@asynccontextmanager
async def open_upstream_gateway(
    dsn: str, folder: Path, upstream: Upstream, servers: Iterable[McpServerSettings] = (), **more: Any
) -> AsyncIterator[UpstreamGateway]:
    """The gateway waits for its first look at the server, as a development gateway does."""
    named = tuple(servers) or (server_settings(upstream),)

    def change(settings: Settings) -> Settings:
        return settings.model_copy(update={"servers": named, **more})

    async with serve_gateway(dsn, folder, change=change, gateway_options={"tools": ()}) as gateway:
        yield UpstreamGateway(gateway=gateway, upstream=upstream)
