"""The gateway signs in to a server as itself: with a secret from the vault, for that server, and again when it must."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deputize.core.settings import McpServer, Settings
from tests.integration.conftest import ADMIN, Served, serving
from tests.integration.servers.guarded import Guarded, guarded

pytestmark = pytest.mark.requirement("REG-2", "EXE-1")

SECRET = "the secret of the gateway's own client"
SCOPES = ("orders:write", ADMIN)


@dataclass
class Stage:
    served: Served
    server: Guarded

    @property
    def root(self) -> str:
        return self.served.token("root", scopes=SCOPES)

    async def look(self) -> Any:
        return await self.served.post("/v1/servers/orders/test", token=self.root)

    async def call(self, tool: str, key: str | None = None) -> Any:
        return await self.served.call(tool, {"name": "Ana"}, token=self.root, key=key)


@pytest_asyncio.fixture
async def stage(fresh_database: str, tmp_path: Path) -> AsyncIterator[Stage]:
    with guarded() as server:
        server.registered["gateway"] = SECRET
        named = McpServer(
            name="orders", url=server.url, credential="client", client_id="gateway", secret="orders/client",
            issuer=server.issuer, reads=("get_*",), slow=("*",), probe_seconds=3600, start_seconds=60,
        )  # fmt: skip

        def change(settings: Settings) -> Settings:
            return settings.model_copy(update={"servers": (named,)})

        async with serving(fresh_database, tmp_path, change=change, opening={"tools": ()}) as served:
            yield Stage(served=served, server=server)


async def test_nothing_is_reached_before_the_secret_is_there_and_everything_after(stage: Stage) -> None:
    missing = await stage.look()
    assert missing.status_code == 424
    assert "orders/client" in missing.text
    put = await stage.served.post("/v1/secrets", {"name": "orders/client", "value": SECRET}, token=stage.root)
    assert put.status_code == 201
    assert (await stage.look()).status_code == 200
    given = len(stage.server.access)
    for _ in range(3):
        assert (await stage.call("orders.get_order")).status_code == 200
    assert stage.server.done == [("gateway", "get_order")] * 3
    # One token does for all of them while it holds.
    assert len(stage.server.access) == given


async def test_a_token_that_is_taken_back_or_too_small_is_replaced_by_the_next_call(stage: Stage) -> None:
    await stage.served.post("/v1/secrets", {"name": "orders/client", "value": SECRET}, token=stage.root)
    assert (await stage.look()).status_code == 200
    for grant, _ in stage.server.access.values():
        grant.valid = False
    assert (await stage.call("orders.get_order")).status_code == 424
    assert (await stage.call("orders.get_order")).status_code == 200
    refused = await stage.call("orders.cancel_order", "once")
    assert refused.status_code == 424, refused.text
    assert (await stage.call("orders.cancel_order", "once")).status_code == 200
    assert stage.server.done == [("gateway", "get_order"), ("gateway", "cancel_order")]


async def test_a_secret_that_is_wrong_is_told_without_it(stage: Stage) -> None:
    wrong = "another secret, that nobody knows"
    await stage.served.post("/v1/secrets", {"name": "orders/client", "value": wrong}, token=stage.root)
    told = await stage.look()
    assert told.status_code == 502
    assert "invalid_client" in told.text
    assert wrong not in told.text
