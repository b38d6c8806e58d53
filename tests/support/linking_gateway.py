"""A gateway with a console, a server that wants people's own accounts, and what people do about it."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import unescape
from typing import Any

import asyncpg
import httpx2

from tests.integration.conftest import ADMIN
from tests.support.console_gateway import Browser, ConsoleGateway, visible_text
from tests.support.mcp_servers.protected_server import ProtectedServer

PAGE, CALLBACK = "/console/servers", "/console/servers/callback"
READ, WRITE = "orders.get_order", "orders.cancel_order"
SCOPES = ("orders:write",)


@dataclass
class LinkingGateway:
    console: ConsoleGateway
    server: ProtectedServer

    async def call_tool(self, tool: str, person: str, *, agent: str | None = None, key: str | None = None) -> Any:
        more = {} if agent is None else {"agent": agent}
        token = self.console.gateway.token(person, scopes=SCOPES, **more)
        return await self.console.gateway.call(tool, {"name": "Ana"}, token=token, key=key)

    async def begin_linking(self, browser: Browser) -> str:
        """Return the authorization server's URL that the page redirects to."""
        page = await browser.get(PAGE)
        assert page.status_code == 200, page.text
        going = await browser.post(f"{PAGE}/orders/link", parse_form(page))
        assert going.status_code == 200, going.text
        found = re.search(r'<a class="button" href="([^"]+)"', going.text)
        assert found is not None
        return unescape(found[1])

    async def give_consent(self, url: str, account: str) -> str:
        """Someone's consent there; the address they are sent back to."""
        self.server.account = account
        async with httpx2.AsyncClient(trust_env=False, timeout=60.0) as elsewhere:
            answer = await elsewhere.get(url)
        assert answer.status_code == 302, answer.text
        return str(answer.headers["location"])

    async def link_account(self, person: str, account: str) -> None:
        async with self.console.open_browser(person) as browser:
            landed = await browser.get(await self.give_consent(await self.begin_linking(browser), account))
            assert (landed.status_code, landed.headers.get("location")) == (303, PAGE), landed.text

    async def unlink_account(self, person: str) -> str:
        """Return the text of the page that follows."""
        async with self.console.open_browser(person) as browser:
            answer = await browser.post(f"{PAGE}/orders/unlink", parse_form(await browser.get(PAGE)))
            return visible_text(await browser.get(answer.headers.get("location", PAGE)))

    async def probe(self) -> None:
        answer = await self.console.gateway.post(
            "/v1/servers/orders/test", token=self.console.gateway.token("root", scopes=[ADMIN])
        )
        assert answer.status_code == 200, answer.text

    async def fetch_rows(self, sql: str, *values: Any) -> list[asyncpg.Record]:
        assert self.console.gateway.settings.database.url is not None
        db = await asyncpg.connect(self.console.gateway.settings.database.url.get_secret_value())
        try:
            return list(await db.fetch(sql, *values))
        finally:
            await db.close()

    async def expire_token(self, person: str) -> None:
        """As if the token's time were over."""
        long_ago = "expires_at = now() - interval '1 hour', renewed_at = now() - interval '1 day'"
        await self.fetch_rows(f"update deputize.server_links set {long_ago} where user_name = $1", person)


def parse_form(page: httpx2.Response) -> dict[str, str]:
    found = re.search(r'name="form_token" value="([^"]+)"', page.text)
    assert found is not None, page.text
    return {"form_token": unescape(found[1])}


@asynccontextmanager
async def account_link(linking_gateway: LinkingGateway, person: str, account: str) -> AsyncIterator[None]:
    await linking_gateway.link_account(person, account)
    try:
        yield
    finally:
        await linking_gateway.unlink_account(person)


def parse_refusal(answer: httpx2.Response) -> dict[str, Any]:
    assert answer.status_code == 424, answer.text
    told: dict[str, Any] = answer.json()["error"]
    return told
