"""Calls to a slow HTTP service hold its slots, and calls to other services and by other tenants are answered."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deputize.core.settings import Settings
from tests.integration.conftest import HttpGateway, serve_gateway
from tests.integration.operations.servers.test_services import write_document
from tests.support.gateway_lab import wait_until
from tests.support.openapi_service import NAME, OpenApiService, make_document, make_service, open_service

pytestmark = [pytest.mark.requirement("RES-1"), pytest.mark.asyncio(loop_scope="session")]
SCOPES = (f"{NAME}:write", "stock:write")
LIMITS = {"max_concurrent": 3, "max_waiting": 0}


@pytest_asyncio.fixture(loop_scope="session")
async def service() -> AsyncIterator[OpenApiService]:
    async with open_service() as running:
        yield running
        running.is_fast.set()


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(fresh_database: str, tmp_path: Path, service: OpenApiService) -> AsyncIterator[HttpGateway]:
    document = write_document(tmp_path, make_document(security=[]))
    shared: dict[str, Any] = {"url": service.url, "credential": "none", "secret": None, "security": None}
    services = (
        make_service(document, service_limits=LIMITS, **shared),
        make_service(document, service_limits=LIMITS, tenant="other", **shared),
        make_service(document, **{**shared, "name": "stock"}),
    )

    def change(settings: Settings) -> Settings:
        return settings.model_copy(update={"services": services})

    async with serve_gateway(fresh_database, tmp_path, change=change, gateway_options={"tools": ()}) as opened:
        yield opened
        service.is_fast.set()


async def test_a_slow_service_delays_no_other_service_and_no_other_tenant(
    gateway: HttpGateway, service: OpenApiService
) -> None:
    token, other_token = gateway.token(scopes=SCOPES), gateway.other_token(scopes=SCOPES)
    get_order, get_stock = f"{NAME}.get_order", "stock.get_order"
    slow_calls = [asyncio.create_task(gateway.call(get_order, {"id": "slow"}, token=token)) for _ in range(3)]

    async def are_sent() -> bool:
        return len(service.requests) == 3

    await wait_until(are_sent)
    refused = await gateway.call(get_order, {"id": "7"}, token=token)
    assert (refused.status_code, refused.json()["error"]["slug"]) == (503, "service-busy"), refused.text
    assert int(refused.headers["retry-after"]) >= 1
    for _ in range(20):
        assert (await gateway.call(get_stock, {"id": "7"}, token=token)).status_code == 200
        assert (await gateway.call(get_order, {"id": "7"}, token=other_token)).status_code == 200
    assert len(service.requests) == 43
    service.is_fast.set()
    assert [each.status_code for each in await asyncio.gather(*slow_calls)] == [200] * 3
    assert (await gateway.call(get_order, {"id": "7"}, token=token)).status_code == 200
