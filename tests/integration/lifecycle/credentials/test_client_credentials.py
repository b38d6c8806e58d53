"""The gateway signs in to a server as itself: with a secret from the vault, for that server, and again when it must."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deputize.core.settings import McpServerSettings, Settings
from tests.integration.conftest import ADMIN, HttpGateway, serve_gateway
from tests.support.mcp_servers.protected_server import ProtectedServer, run_protected_server

pytestmark = pytest.mark.requirement("REG-2", "EXE-1")

SECRET = "the secret of the gateway's own client"
SCOPES = ("orders:write", ADMIN)


@dataclass
class ClientCredentialsGateway:
    gateway: HttpGateway
    server: ProtectedServer

    @property
    def admin_token(self) -> str:
        return self.gateway.token("root", scopes=SCOPES)

    async def probe(self) -> Any:
        return await self.gateway.post("/v1/servers/orders/test", token=self.admin_token)

    async def call_tool(self, tool: str, key: str | None = None) -> Any:
        return await self.gateway.call(tool, {"name": "Ana"}, token=self.admin_token, key=key)


@pytest_asyncio.fixture
async def credentials_gateway(fresh_database: str, tmp_path: Path) -> AsyncIterator[ClientCredentialsGateway]:
    with run_protected_server() as server:
        server.clients["gateway"] = SECRET
        named = McpServerSettings(
            name="orders", url=server.url, credential="client", client_id="gateway", secret="orders/client",
            issuer=server.issuer, reads=("get_*",), slow=("*",), probe_seconds=3600, start_seconds=60,
        )  # fmt: skip

        def change(settings: Settings) -> Settings:
            return settings.model_copy(update={"servers": (named,)})

        async with serve_gateway(fresh_database, tmp_path, change=change, gateway_options={"tools": ()}) as gateway:
            yield ClientCredentialsGateway(gateway=gateway, server=server)


async def test_nothing_is_reached_before_the_secret_is_there_and_everything_after(
    credentials_gateway: ClientCredentialsGateway,
) -> None:
    missing = await credentials_gateway.probe()
    assert missing.status_code == 424
    assert "orders/client" in missing.text
    put = await credentials_gateway.gateway.post(
        "/v1/secrets", {"name": "orders/client", "value": SECRET}, token=credentials_gateway.admin_token
    )
    assert put.status_code == 201
    assert (await credentials_gateway.probe()).status_code == 200
    given = len(credentials_gateway.server.access)
    for _ in range(3):
        assert (await credentials_gateway.call_tool("orders.get_order")).status_code == 200
    assert credentials_gateway.server.tool_calls == [("gateway", "get_order")] * 3
    # One token does for all of them while it holds.
    assert len(credentials_gateway.server.access) == given


async def test_a_token_that_is_taken_back_or_too_small_is_replaced_by_the_next_call(
    credentials_gateway: ClientCredentialsGateway,
) -> None:
    await credentials_gateway.gateway.post(
        "/v1/secrets", {"name": "orders/client", "value": SECRET}, token=credentials_gateway.admin_token
    )
    assert (await credentials_gateway.probe()).status_code == 200
    for grant, _ in credentials_gateway.server.access.values():
        grant.valid = False
    assert (await credentials_gateway.call_tool("orders.get_order")).status_code == 424
    assert (await credentials_gateway.call_tool("orders.get_order")).status_code == 200
    refused = await credentials_gateway.call_tool("orders.cancel_order", "once")
    assert refused.status_code == 424, refused.text
    assert (await credentials_gateway.call_tool("orders.cancel_order", "once")).status_code == 200
    assert credentials_gateway.server.tool_calls == [("gateway", "get_order"), ("gateway", "cancel_order")]


async def test_a_wrong_client_secret_is_reported_without_its_value(
    credentials_gateway: ClientCredentialsGateway,
) -> None:
    wrong = "another secret, that nobody knows"
    await credentials_gateway.gateway.post(
        "/v1/secrets", {"name": "orders/client", "value": wrong}, token=credentials_gateway.admin_token
    )
    told = await credentials_gateway.probe()
    assert told.status_code == 502
    assert "invalid_client" in told.text
    assert wrong not in told.text
