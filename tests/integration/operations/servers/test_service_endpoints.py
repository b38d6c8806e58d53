"""A service with further URLs is called there while its first one fails, and a write is never sent to two of them."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from deputize.core.settings import ServiceSettings
from tests.integration.conftest import HttpGateway
from tests.integration.operations.servers.test_services import (
    CHANGE,
    CREATE,
    DELETE,
    GET,
    SECRET,
    call,
    get_token,
    open_services,
    write_document,
)
from tests.support.gateway_lab import wait_until
from tests.support.openapi_service import NAME, OpenApiService, make_document, make_service, open_service

pytestmark = pytest.mark.requirement("EXE-1", "RES-1")


@pytest_asyncio.fixture(loop_scope="session")
async def second() -> AsyncIterator[OpenApiService]:
    async with open_service() as running:
        yield running


@pytest.fixture
def dead_url() -> str:
    """A URL where nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(
    fresh_database: str, tmp_path: Path, second: OpenApiService, dead_url: str
) -> AsyncIterator[HttpGateway]:
    settings = make_service(write_document(tmp_path), url=dead_url, further_urls=[second.url])
    async with open_services(fresh_database, tmp_path, settings) as opened:
        yield opened


async def wait_for_open_circuits(gateway: HttpGateway, *names: str) -> None:
    async def are_open() -> bool:
        answer = await gateway.get("/v1/circuits", token=get_token(gateway))
        return {each["service"] for each in answer.json()["circuits"] if each["state"] == "open"} == set(names)

    await wait_until(are_open)


async def test_a_url_that_cannot_be_connected_to_is_passed_over_and_paused_alone(
    gateway: HttpGateway, second: OpenApiService
) -> None:
    for number in range(6):
        answer = await call(gateway, GET, id=str(number))
        assert answer.status_code == 200, answer.text
    assert [each.headers["authorization"] for each in second.requests] == [f"Bearer {SECRET}"] * 6
    await wait_for_open_circuits(gateway, NAME)
    changed = await call(gateway, CHANGE, "unsent", id="7", body={"item": "tea"})
    assert changed.status_code == 200, changed.text
    assert (len(second.requests), second.requests[-1].method) == (7, "PATCH")


async def test_each_url_has_a_circuit_and_the_tool_is_paused_when_all_are(
    gateway: HttpGateway, second: OpenApiService
) -> None:
    for number in range(5):
        second.answer(500)
        assert (await call(gateway, DELETE, f"{number}", id="7")).json()["error"]["slug"] == "outcome-unknown"
    assert len(second.requests) == 5
    refused = await call(gateway, GET, id="7")
    assert refused.json()["error"]["slug"] == "circuit-open", refused.text
    assert len(second.requests) == 5
    await wait_for_open_circuits(gateway, NAME, f"{NAME} at {urlsplit(second.url).netloc}")


async def test_a_write_that_may_have_reached_a_url_is_not_sent_to_another(
    fresh_database: str, tmp_path: Path, second: OpenApiService
) -> None:
    async with open_service() as first:
        settings = make_service(write_document(tmp_path), url=first.url, further_urls=[second.url])
        async with open_services(fresh_database, tmp_path, settings) as gateway:
            first.lose_answer()
            lost = await call(gateway, CHANGE, "lost", id="7", body={"item": "tea"})
            assert lost.json()["error"]["slug"] == "outcome-unknown", lost.text
            first.lose_answer()
            await call(gateway, GET, id="7")
    assert (len(first.requests) >= 2, second.requests) == (True, [])


async def test_a_write_that_may_be_repeated_stays_at_the_first_url(
    gateway: HttpGateway, second: OpenApiService
) -> None:
    answer = await call(gateway, CREATE, "stays", body={"item": "tea"})
    assert answer.json()["error"]["slug"] == "upstream-unavailable", answer.text
    assert second.requests == []


async def test_a_further_url_at_a_forbidden_address_is_not_connected_to(
    fresh_database: str, tmp_path: Path, dead_url: str
) -> None:
    settings = make_service(
        write_document(tmp_path, make_document(security=[])), url=dead_url, credential="none", secret=None,
        security=None, further_urls=["http://169.254.169.254/v1"],
    )  # fmt: skip
    async with open_services(fresh_database, tmp_path, settings) as gateway:
        answer = await call(gateway, GET, id="7")
        assert answer.json()["error"]["slug"] == "egress-denied", answer.text


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"further_urls": ["https://a.example", "https://b.example", "https://c.example"]}, "at most 2"),
        ({"further_urls": ["https://ORDERS.example/v2"]}, "a host or port of its own"),
        ({"further_urls": ["http://far.example/v1"]}, "over https only"),
        ({"further_urls": ["https://u:p@far.example/v1"]}, "without user name"),
        ({"kind": "grpc", "url": "https://a.example", "security": "bearer", "further_urls": ["https://b.example"]},
         "for HTTP services"),
    ],
)  # fmt: skip
def test_further_urls_have_the_rules_of_the_first(more: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ServiceSettings.model_validate({**make_service().model_dump(), **more})
