"""Methods of gRPC services as governed tools: registered from a pinned descriptor set, called through the lifecycle."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
import pytest_asyncio

from deputize.core.errors import EgressDenied, UpstreamUnavailable
from deputize.core.settings import ServiceSettings, Settings
from deputize.execute.drivers.grpc_channels import ServiceChannel
from tests.integration.conftest import ADMIN, HttpGateway, serve_gateway
from tests.support.grpc_service import (
    NAME,
    PROTO,
    GrpcService,
    compile_descriptors,
    make_grpc_settings,
    open_grpc_service,
)

pytestmark = [pytest.mark.requirement("EXE-1"), pytest.mark.asyncio(loop_scope="session")]
SECRET = "correct-horse-battery-staple"
GET, SEND, DELETE = (f"{NAME}.{name}_parcel" for name in ("get", "send", "delete"))
PARCEL: dict[str, Any] = {"id": "7", "grams": "9007199254740993", "size": "LARGE", "stamps": {"x": 1}, "seal": "AAE="}


@pytest_asyncio.fixture(loop_scope="session")
async def service(tmp_path: Path) -> AsyncIterator[GrpcService]:
    async with open_grpc_service(compile_descriptors(tmp_path)) as running:
        yield running


@asynccontextmanager
async def open_services(dsn: str, folder: Path, *services: ServiceSettings) -> AsyncIterator[HttpGateway]:
    def change(settings: Settings) -> Settings:
        return settings.model_copy(update={"services": services})

    async with serve_gateway(dsn, folder, change=change, gateway_options={"tools": ()}) as gateway:
        stored = await gateway.post("/v1/secrets", {"name": NAME, "value": SECRET}, token=get_token(gateway))
        assert stored.status_code in (200, 201), stored.text
        yield gateway


def get_token(gateway: HttpGateway) -> str:
    return gateway.token("root", scopes=(f"{NAME}:write", ADMIN))


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(fresh_database: str, tmp_path: Path, service: GrpcService) -> AsyncIterator[HttpGateway]:
    settings = make_grpc_settings(
        tmp_path / "parcels.binpb", url=service.url, credential="vault", secret=NAME, security="bearer"
    )
    async with open_services(fresh_database, tmp_path, settings) as opened:
        yield opened


async def call(gateway: HttpGateway, tool: str, **arguments: Any) -> httpx2.Response:
    key = None if tool == GET else f"key-{tool}-{arguments.get('id')}"
    return await gateway.call(tool, arguments, token=get_token(gateway), key=key)


async def test_a_read_and_a_write_reach_the_service(gateway: HttpGateway, service: GrpcService) -> None:
    service.answers = [PARCEL, PARCEL]
    read = (await call(gateway, GET, id="7")).json()
    assert read["result"] == {
        **PARCEL, "notes": [],
    }  # fmt: skip
    sent = (await call(gateway, SEND, **PARCEL)).json()
    assert sent["state"] == "succeeded"
    assert [each.method for each in service.requests] == ["GetParcel", "SendParcel"]
    assert service.requests[1].message == PARCEL
    metadata = service.requests[1].metadata
    assert metadata["authorization"] == f"Bearer {SECRET}"
    assert metadata["idempotency-key"] == sent["call_id"]
    assert str(metadata["traceparent"]).split("-")[1] == sent["trace_id"]


async def test_arguments_are_checked_before_anything_is_sent(gateway: HttpGateway, service: GrpcService) -> None:
    wrong = await call(gateway, SEND, size="HUGE")
    both = await call(gateway, SEND, euros=1.5, voucher="x")
    assert wrong.json()["error"]["code"] == "INVALID_INPUT"
    assert both.json()["error"]["slug"] == "semantic-violation"
    assert not service.requests


@pytest.mark.parametrize(
    ("code", "read_slug", "write_slug"),
    [
        (grpc.StatusCode.NOT_FOUND, "tool-failed", "tool-failed"),
        (grpc.StatusCode.INVALID_ARGUMENT, "tool-failed", "tool-failed"),
        (grpc.StatusCode.UNAUTHENTICATED, "credential-expired", "credential-expired"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "upstream-rate-limited", "outcome-unknown"),
        (grpc.StatusCode.INTERNAL, "upstream-unavailable", "outcome-unknown"),
        (grpc.StatusCode.CANCELLED, "upstream-unavailable", "outcome-unknown"),
        (grpc.StatusCode.ABORTED, "tool-failed", "tool-failed"),
    ],
)
async def test_a_status_becomes_the_error_that_it_means(
    gateway: HttpGateway, service: GrpcService, code: grpc.StatusCode, read_slug: str, write_slug: str
) -> None:
    service.answers = [(code, "the words of the service")] * 4
    read = (await call(gateway, GET, id="7")).json()
    service.answers = [(code, "the words of the service")] * 4
    write = (await call(gateway, DELETE, id="7")).json()
    assert (read["error"]["slug"], write["error"]["slug"]) == (read_slug, write_slug)


async def test_an_answer_that_is_garbage_or_too_large_is_no_result(
    fresh_database: str, tmp_path: Path, service: GrpcService
) -> None:
    settings = make_grpc_settings(tmp_path / "parcels.binpb", url=service.url, max_response_bytes=1024)
    async with open_services(fresh_database, tmp_path, settings) as gateway:
        service.answers = [b"\xff\xff\xff"]
        assert (await call(gateway, GET, id="7")).json()["error"]["slug"] == "result-invalid"
        service.answers = [{"id": "x" * 5000}] * 4
        assert (await call(gateway, GET, id="8")).json()["error"]["slug"] == "resource-limit"
        service.answers = [{"id": "9"}]
        assert (await call(gateway, GET, id="9")).json()["result"]["id"] == "9"


async def test_a_write_whose_metadata_is_too_large_is_not_repeated(gateway: HttpGateway, service: GrpcService) -> None:
    # gRPC itself reports it as RESOURCE_EXHAUSTED, after the service has acted.
    for number, length in enumerate((15_500, 40_000)):
        service.requests.clear()
        service.trailing_metadata = (("x-note", "y" * length),)
        answer = (await call(gateway, DELETE, id=str(number))).json()
        assert len(service.requests) == 1
        # What fits is always accepted, not only most of the time.
        assert ("error" in answer) == (length > 16_384), answer
    assert answer["error"]["slug"] == "outcome-unknown"
    assert "larger" in answer["error"]["message"]
    assert (await call(gateway, GET, id="1")).json()["error"]["slug"] == "resource-limit"


async def test_a_write_that_may_be_repeated_is_retried_after_a_rate_limit(
    fresh_database: str, tmp_path: Path, service: GrpcService
) -> None:
    settings = make_grpc_settings(tmp_path / "parcels.binpb", url=service.url, repeatable=("*/DeleteParcel",))
    async with open_services(fresh_database, tmp_path, settings) as gateway:
        service.answers = [(grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down")]
        assert (await call(gateway, DELETE, id="7")).json()["state"] == "succeeded"
        assert len(service.requests) == 2


async def test_a_changed_document_makes_new_versions_and_retires_what_is_gone(
    fresh_database: str, tmp_path: Path, service: GrpcService
) -> None:
    document = compile_descriptors(tmp_path)
    async with open_services(fresh_database, tmp_path, make_grpc_settings(document, url=service.url)) as gateway:
        assert await list_versions(gateway) == {GET: "1.0.0", SEND: "1.0.0", DELETE: "1.0.0"}
    lines = [line for line in PROTO.splitlines() if "rpc DeleteParcel" not in line]
    text = "\n".join(lines).replace(
        "GetParcelRequest { string id = 1; }", "GetParcelRequest { string id = 1; int32 at = 2; }"
    )
    document = compile_descriptors(tmp_path, text)
    async with open_services(fresh_database, tmp_path, make_grpc_settings(document, url=service.url)) as gateway:
        assert await list_versions(gateway) == {GET: "2.0.0", SEND: "1.0.0"}
    settings = make_grpc_settings(compile_descriptors(tmp_path), url=service.url, sha256="0" * 64)
    with pytest.raises(AssertionError):
        async with open_services(fresh_database, tmp_path, settings):
            pass


async def list_versions(gateway: HttpGateway) -> dict[str, str]:
    tools = (await gateway.get("/v1/tools", token=get_token(gateway))).json()["tools"]
    return {each["name"]: each["version"] for each in tools if each["name"].startswith(f"{NAME}.")}


async def test_forbidden_addresses_are_never_connected_to(tmp_path: Path) -> None:
    document = compile_descriptors(tmp_path)
    with_listener = asyncio.Event()
    server = await asyncio.start_server(lambda *_: with_listener.set(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def resolve_to(*addresses: str) -> None:
        settings = make_grpc_settings(document, url=f"https://parcels.example:{port}", public_only=True)

        async def resolver(host: str, port: int) -> tuple[str, ...]:
            return addresses

        channel = ServiceChannel(settings, resolver)
        with pytest.raises(EgressDenied) as refused:
            await channel.open(30)
        assert refused.value.nothing_happened
        await channel.aclose()

    for each in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1"):
        await resolve_to(each)
    await resolve_to("93.184.216.34", "127.0.0.1")
    assert not with_listener.is_set()
    server.close()


async def test_a_host_without_a_service_is_unavailable_and_nothing_happened(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    channel = ServiceChannel(make_grpc_settings(compile_descriptors(tmp_path), url=f"http://127.0.0.1:{port}"))
    for _ in range(3):
        problems = await asyncio.gather(*(channel.open(30) for _ in range(5)), return_exceptions=True)
        assert [type(each) for each in problems] == [UpstreamUnavailable] * 5, problems
        assert all(isinstance(each, UpstreamUnavailable) and each.nothing_happened for each in problems)
    await channel.aclose()
