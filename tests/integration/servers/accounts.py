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
from tests.integration.console.kit import Browser, Desk
from tests.integration.servers.guarded import Guarded

PAGE, BACK = "/console/servers", "/console/servers/callback"
READ, WRITE = "orders.get_order", "orders.cancel_order"
SCOPES = ("orders:write",)


@dataclass
class Stage:
    desk: Desk
    server: Guarded

    async def call(self, tool: str, person: str, *, agent: str | None = None, key: str | None = None) -> Any:
        more = {} if agent is None else {"agent": agent}
        token = self.desk.served.token(person, scopes=SCOPES, **more)
        return await self.desk.served.call(tool, {"name": "Ana"}, token=token, key=key)

    async def begin(self, browser: Browser) -> str:
        """The address at the authorization server that the page sends somebody to."""
        page = await browser.get(PAGE)
        assert page.status_code == 200, page.text
        going = await browser.post(f"{PAGE}/orders/link", form_of(page))
        assert going.status_code == 200, going.text
        found = re.search(r'<a class="button" href="([^"]+)"', going.text)
        assert found is not None
        return unescape(found[1])

    async def agree(self, url: str, account: str) -> str:
        """Somebody's consent there; the address they are sent back to."""
        self.server.account = account
        async with httpx2.AsyncClient(trust_env=False) as elsewhere:
            answer = await elsewhere.get(url)
        assert answer.status_code == 302, answer.text
        return str(answer.headers["location"])

    async def link(self, person: str, account: str) -> None:
        async with self.desk.browser(person) as browser:
            landed = await browser.get(await self.agree(await self.begin(browser), account))
            assert (landed.status_code, landed.headers.get("location")) == (303, PAGE), landed.text

    async def unlink(self, person: str) -> None:
        async with self.desk.browser(person) as browser:
            await browser.post(f"{PAGE}/orders/unlink", form_of(await browser.get(PAGE)))

    async def look(self) -> None:
        answer = await self.desk.served.post(
            "/v1/servers/orders/test", token=self.desk.served.token("root", scopes=[ADMIN])
        )
        assert answer.status_code == 200, answer.text

    async def sql(self, sql: str, *values: Any) -> list[asyncpg.Record]:
        assert self.desk.served.settings.database.url is not None
        db = await asyncpg.connect(self.desk.served.settings.database.url.get_secret_value())
        try:
            return list(await db.fetch(sql, *values))
        finally:
            await db.close()

    async def ends(self, person: str) -> None:
        """As if the token's time were over."""
        long_ago = "expires_at = now() - interval '1 hour', renewed_at = now() - interval '1 day'"
        await self.sql(f"update deputize.server_links set {long_ago} where user_name = $1", person)


def form_of(page: httpx2.Response) -> dict[str, str]:
    found = re.search(r'name="form_token" value="([^"]+)"', page.text)
    assert found is not None, page.text
    return {"form_token": unescape(found[1])}


@asynccontextmanager
async def linked(stage: Stage, person: str, account: str) -> AsyncIterator[None]:
    await stage.link(person, account)
    try:
        yield
    finally:
        await stage.unlink(person)


def refusal(answer: httpx2.Response) -> dict[str, Any]:
    assert answer.status_code == 424, answer.text
    told: dict[str, Any] = answer.json()["error"]
    return told
