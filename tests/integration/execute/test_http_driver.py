"""HTTP services of different tenants share no connections, and a contract's network is enforced before one is made."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from deputize.catalog.importers.openapi.contracts import build_service
from deputize.catalog.importers.openapi.document import parse_document
from deputize.composition.runtime import build_http_driver
from deputize.core.clock import Clock
from deputize.core.contract.contract import NetworkPolicy
from deputize.core.contract.tools import ToolContext
from deputize.core.errors import EgressDenied
from deputize.core.settings import ServiceSettings, Settings
from deputize.execute.drivers.http import HttpDriver
from tests.support.openapi_service import make_document, make_service, open_service

pytestmark = [pytest.mark.requirement("EXE-1"), pytest.mark.asyncio(loop_scope="session")]
# As many as all services had together when they shared their connections.
HANGING_CALLS = 100


class HangingService:
    """An HTTP service that takes requests and answers none."""

    def __init__(self) -> None:
        self.url = ""
        self.connections = 0
        self.is_full = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.connections == HANGING_CALLS:
            self.is_full.set()
        with contextlib.suppress(ConnectionError):
            await reader.read(-1)
        writer.close()


@contextlib.asynccontextmanager
async def open_hanging_service() -> AsyncIterator[HangingService]:
    service = HangingService()
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0, backlog=HANGING_CALLS)
    service.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield service
    finally:
        server.close()


def make_tenant_service(tenant: str, url: str) -> ServiceSettings:
    return make_service(tenant=tenant, url=url, credential="none", secret=None, security=None)


async def call(driver: HttpDriver, service: ServiceSettings, **changes: object) -> Any:
    document = parse_document(orjson.dumps(make_document(security=[])))
    context = ToolContext(
        call_id="call-1", tenant=str(service.tenant), user="ana", agent="bot", session=None, key="call-1", attempt=1,
        seconds_left=60.0, traceparent=None,
    )  # fmt: skip
    contract = build_service(service, document).contracts["getOrder"]
    tool = driver.find_tool(contract.model_copy(update=changes))
    return await driver.run(tool, {"id": "7"}, context, 60.0)


async def test_a_service_that_hangs_takes_no_connection_from_another_tenant() -> None:
    async with (
        open_hanging_service() as hanging,
        open_service() as working,
        contextlib.AsyncExitStack() as stack,
    ):
        first, second = make_tenant_service("first", hanging.url), make_tenant_service("second", working.url)
        settings = Settings().model_copy(update={"services": (first, second)})
        driver = build_http_driver(settings, Clock(), stack)
        calls = [asyncio.create_task(call(driver, first)) for _ in range(HANGING_CALLS)]
        try:
            await asyncio.wait_for(hanging.is_full.wait(), 60)
            assert (await call(driver, second))["status"] == 200
            assert not any(each.done() for each in calls)
        finally:
            for each in calls:
                each.cancel()
            await asyncio.gather(*calls, return_exceptions=True)


async def test_a_service_outside_the_network_of_the_contract_is_not_connected_to() -> None:
    async with open_hanging_service() as hanging, contextlib.AsyncExitStack() as stack:
        service = make_tenant_service("first", hanging.url)
        driver = build_http_driver(Settings().model_copy(update={"services": (service,)}), Clock(), stack)
        with pytest.raises(EgressDenied, match=r"does not let it reach 127\.0\.0\.1") as refused:
            await call(driver, service, network=NetworkPolicy(allowed_domains=("shop.example.com",)))
        assert refused.value.nothing_happened
        assert hanging.connections == 0
