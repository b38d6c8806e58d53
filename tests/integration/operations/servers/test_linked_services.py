"""People link their own accounts at an HTTP service, and calls for them are made with those and no others."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio

from tests.support.console_gateway import open_console_gateway
from tests.support.linking_gateway import PAGE, LinkingGateway, account_link, parse_refusal
from tests.support.mcp_servers.protected_server import run_protected_server
from tests.support.openapi_service import OpenApiService, make_document, make_service, open_service

pytestmark = pytest.mark.requirement("REG-2", "EXE-1")
GET = "orders.get_order"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service() -> AsyncIterator[OpenApiService]:
    async with open_service() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def linking_gateway(
    module_database: str, tmp_path_factory: pytest.TempPathFactory, service: OpenApiService
) -> AsyncIterator[LinkingGateway]:
    folder: Path = tmp_path_factory.mktemp("linked-services")
    document = folder / "orders.json"
    document.write_text(json.dumps(make_document()))
    with run_protected_server() as issuer:
        settings = make_service(
            document, url=service.url, credential="link", secret=None, issuer=issuer.issuer, link_scopes=["orders:read"]
        )
        async with open_console_gateway(module_database, folder, services=[settings]) as console:
            yield LinkingGateway(console=console, server=issuer)


async def call(gateway: LinkingGateway, person: str, **more: Any) -> Any:
    http = gateway.console.gateway
    return await http.call(GET, {"id": "7"}, token=http.token(person, scopes=["orders:write"], **more))


def hide_resource_metadata(service: OpenApiService) -> None:
    """Answer like most services, which do not name their authorization server."""
    for _ in range(2):
        service.answer(404)


async def test_a_user_without_a_link_is_told_where_to_link_and_nothing_is_sent(
    linking_gateway: LinkingGateway, service: OpenApiService
) -> None:
    service.requests.clear()
    refusal = parse_refusal(await call(linking_gateway, "bo"))
    assert refusal["slug"] == "link-needed"
    assert refusal["details"] == {"server": "orders", "url": f"{linking_gateway.console.url}{PAGE}"}
    assert service.requests == []


async def test_a_call_uses_the_linked_account_of_its_user(
    linking_gateway: LinkingGateway, service: OpenApiService
) -> None:
    hide_resource_metadata(service)
    async with account_link(linking_gateway, "ana", "ana@orders"):
        service.requests.clear()
        assert (await call(linking_gateway, "ana")).status_code == 200
        assert (await call(linking_gateway, "ana", agent="billing-bot")).status_code == 200
        tokens = [each.headers["authorization"].removeprefix("Bearer ") for each in service.requests]
        grants = [linking_gateway.server.access[each][0] for each in tokens]
        assert [each.account for each in grants] == ["ana@orders", "ana@orders"]
        assert {each.resource for each in grants} == {service.url}
        assert parse_refusal(await call(linking_gateway, "bo"))["slug"] == "link-needed"
        # The service requires more than was consented to: the person can link again, with that.
        service.answer(403, www_authenticate='Bearer error="insufficient_scope", scope="orders:write"')
        refusal = parse_refusal(await call(linking_gateway, "ana"))
        assert (refusal["slug"], refusal["details"]["scopes"]) == ("link-needed", ["orders:write"])
    assert parse_refusal(await call(linking_gateway, "ana"))["slug"] == "link-needed"


async def test_only_the_scopes_in_the_settings_are_asked_for(
    linking_gateway: LinkingGateway, service: OpenApiService
) -> None:
    hide_resource_metadata(service)
    async with linking_gateway.console.open_browser("lea") as browser:
        query = parse_qs(urlsplit(await linking_gateway.begin_linking(browser)).query)
    assert query["scope"] == ["orders:read offline_access"]
    assert query["resource"] == [service.url]
