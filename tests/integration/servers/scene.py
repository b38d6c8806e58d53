"""A gateway with one MCP server behind it, and the words tests use about both."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import orjson

from deputize.core.settings import McpServer, Settings
from tests.integration.conftest import ADMIN, Served, serving
from tests.integration.servers.upstream import Upstream

NAME = "orders"
SCOPES = (f"{NAME}:write", ADMIN)
READ, WRITE = f"{NAME}.get_order", f"{NAME}.cancel_order"
# Nothing in a test waits for a probe: each look is asked for.
SELDOM = 3600.0


def described(upstream: Upstream, **more: Any) -> McpServer:
    # Slow, so that a machine that has other things to do ends no call.
    said: dict[str, Any] = {
        "name": NAME, "url": upstream.url, "reads": ("get_*",), "slow": ("*",), "probe_seconds": SELDOM,
        "start_seconds": 60,
    }  # fmt: skip
    return McpServer.model_validate({**said, **more})


@dataclass
class Scene:
    served: Served
    upstream: Upstream

    @property
    def admin(self) -> str:
        return self.served.token("root", scopes=SCOPES)

    async def look(self) -> dict[str, Any]:
        answer = await self.served.post(f"/v1/servers/{NAME}/test", token=self.admin)
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    async def shown(self) -> dict[str, Any]:
        answer = await self.served.get(f"/v1/servers/{NAME}", token=self.admin)
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    async def changes(self, state: str = "open") -> dict[str, dict[str, Any]]:
        answer = await self.served.get(f"/v1/servers/{NAME}/changes", token=self.admin, state=state)
        assert answer.status_code == 200, answer.text
        return {each["item"]: each for each in answer.json()["changes"]}

    async def decide(
        self, change: dict[str, Any], decision: str = "accept", reason: str = "", *, token: str = ""
    ) -> Any:
        asked = {"item": change["item"], "digest": change["digest"], "decision": decision, "reason": reason}
        return await self.served.post(f"/v1/servers/{NAME}/changes/decide", asked, token=token or self.admin)

    async def call(self, tool: str, **arguments: Any) -> Any:
        return await self.served.call(tool, arguments or {"name": "Ana"}, token=self.admin, key=self._key())

    async def standings(self) -> dict[str, tuple[str, str]]:
        """Status and code of each tool of the server."""
        answer = await self.served.get("/v1/surface", token=self.admin, namespace=NAME)
        return {
            each["name"]: (each["status"], each["reason"]["code"])
            for each in answer.json()["tools"]
            if each["name"].startswith(f"{NAME}.")
        }

    async def versions(self, tool: str) -> dict[str, str]:
        answer = await self.served.get(f"/v1/tools/{tool}/versions", token=self.admin)
        return {each["version"]: each["state"] for each in answer.json()["versions"]}

    async def commands(self, *names: str) -> list[str]:
        """Subjects of the audit entries of these commands, oldest first."""
        rows = await self._rows("select entry from deputize.audit_entries where tenant = 'dev' order by id")
        entries = [orjson.loads(row["entry"]) for row in rows]
        return [str(each.get("subject")) for each in entries if each.get("command") in names]

    async def _rows(self, sql: str) -> list[asyncpg.Record]:
        assert self.served.settings.database.url is not None
        db = await asyncpg.connect(self.served.settings.database.url.get_secret_value())
        try:
            return list(await db.fetch(sql))
        finally:
            await db.close()

    _keys = 0

    def _key(self) -> str:
        Scene._keys += 1
        return f"key-{Scene._keys}"


@asynccontextmanager
async def scene(dsn: str, folder: Path, upstream: Upstream, servers: Iterable[McpServer] = ()) -> AsyncIterator[Scene]:
    """The gateway waits for its first look at the server, as a development gateway does."""
    named = tuple(servers) or (described(upstream),)

    def change(settings: Settings) -> Settings:
        return settings.model_copy(update={"servers": named})

    async with serving(dsn, folder, change=change, opening={"tools": ()}) as served:
        yield Scene(served=served, upstream=upstream)
