"""One call through every interface and every driver, with one trace id and a deadline that only shrinks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest
import pytest_asyncio

from deputize import ToolContext, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.hooks import HookCall, LoadedHook
from deputize.core.mcp.constants import DEADLINE_MS, META_PREFIX, TRACEPARENT
from deputize.core.settings import GrpcSettings, Settings
from tests.integration.conftest import HttpGateway, serve_gateway
from tests.support import grpc_service, openapi_service, upstream_gateway
from tests.support.grpc_client import GrpcClient, open_client, read_problem
from tests.support.grpc_service import GrpcService, compile_descriptors, open_grpc_service
from tests.support.mcp_client import McpClient
from tests.support.mcp_servers.upstream import Upstream, make_definition, run_upstream
from tests.support.openapi_service import OpenApiService, open_service

pytestmark = pytest.mark.requirement("INV-1", "INV-3", "OBS-1", "EXE-1")
# Below the timeout class of every tool here, so that the caller's deadline is the one that counts.
CALLER_MS = 4_500
DELAY_MS = 50
SERVICE_NAME = "stock"
_SLOW_MACHINE = ("deadline-exceeded", "tool-timeout", "upstream-timeout", "outcome-unknown")


@dataclass
class Arrival:
    """What the place that executes a call was told about it."""

    trace_id: str
    remaining_ms: float


python_arrivals: list[Arrival] = []


async def delay_call(call: HookCall) -> None:
    """Let the deadline of a call shrink by a known time before its tool is started."""
    await asyncio.sleep(DELAY_MS / 1000)


DELAY = LoadedHook(name="delay", moment="before", function=delay_call, is_async=True, tools="*", seconds=60)


@tool(effects="read", namespace="ways")
async def look(context: ToolContext) -> str:
    """Keep what this call was told about its trace and its deadline."""
    python_arrivals.append(make_arrival(context.traceparent, context.seconds_left * 1000))
    return "seen"


def make_arrival(traceparent: Any, remaining_ms: Any) -> Arrival:
    return Arrival(trace_id=str(traceparent).split("-")[1], remaining_ms=float(remaining_ms))


@dataclass
class Ways:
    """A gateway with everything that it can call."""

    gateway: HttpGateway
    upstream: Upstream
    service: OpenApiService
    grpc_service: GrpcService
    client: GrpcClient
    numbers: list[int] = field(default_factory=list)

    def list_arrivals(self, driver: str) -> list[Arrival]:
        match driver:
            case "python":
                return python_arrivals
            case "mcp":
                return [make_arrival(each[TRACEPARENT], each[DEADLINE_MS]) for each in self.upstream.call_metas]
            case "grpc":
                rpcs = self.grpc_service.requests
                return [make_arrival(each.metadata["traceparent"], each.remaining_seconds * 1000) for each in rpcs]
            case _:
                headers = [each.headers for each in self.service.requests]
                return [make_arrival(each["traceparent"], each["deputize-deadline-ms"]) for each in headers]

    async def call_rest(self, name: str, arguments: dict[str, Any], traceparent: str) -> Any:
        headers = {"traceparent": traceparent}
        return (await self.gateway.call(name, arguments, headers=headers, deadline_ms=CALLER_MS)).json()

    async def call_rpc(self, name: str, arguments: dict[str, Any], traceparent: str) -> Any:
        fields = {"tool": name, "arguments": arguments, "traceparent": traceparent, "deadline_ms": CALLER_MS}
        answer = await self.gateway.call_rpc("calls.create", fields)
        return answer["result"] if "result" in answer else answer["error"]["data"]

    async def call_mcp(self, name: str, arguments: dict[str, Any], traceparent: str) -> Any:
        meta = {TRACEPARENT: traceparent, DEADLINE_MS: CALLER_MS}
        answer = await McpClient(self.gateway).call_tool(name.replace(".", "__"), arguments, meta=meta)
        if "error" in answer.last_message:
            return answer.error["data"]
        made = answer.result["_meta"][META_PREFIX + "call"]
        failure = (answer.result.get("structuredContent") or {}).get("error")
        return {**made, "call_id": made["id"], "error": failure}

    async def call_grpc(self, name: str, arguments: dict[str, Any], traceparent: str) -> Any:
        metadata = [("traceparent", traceparent)]
        try:
            response = await self.client.call(name, arguments, metadata=metadata, timeout=CALLER_MS / 1000)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return {"error": {"slug": "deadline-exceeded"}}
            return {"error": {"slug": read_problem(error).slug}}
        return orjson.loads(response.envelope)


Call = Callable[[Ways, str, dict[str, Any], str], Awaitable[Any]]
INTERFACES: dict[str, Call] = {
    "rest": Ways.call_rest,
    "json-rpc": Ways.call_rpc,
    "mcp": Ways.call_mcp,
    "grpc": Ways.call_grpc,
}
DRIVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "python": ("ways.look", {}),
    "mcp": (f"{upstream_gateway.NAME}.get_cargo", {"name": "Ana"}),
    "openapi": (f"{SERVICE_NAME}.get_order", {"id": "1"}),
    "grpc": (f"{grpc_service.NAME}.get_parcel", {"id": "1"}),
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ways(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ways]:
    folder = tmp_path_factory.mktemp("ways")
    with run_upstream() as upstream:
        # Not the name of a tool of the service beside it, which would be held for review as a lookalike.
        upstream.tools = [make_definition("get_cargo")]
        descriptors = compile_descriptors(folder)
        async with open_service() as service, open_grpc_service(descriptors) as rpc_service:
            change = make_settings(folder, upstream, service, (descriptors, rpc_service))
            tools = [getattr(look, ATTRIBUTE)]
            async with serve_gateway(
                module_database, folder, change=change, hooks=[DELAY], gateway_options={"tools": tools}
            ) as gateway:
                assert gateway.grpc_address is not None
                async with open_client(gateway.grpc_address, gateway.token()) as client:
                    yield Ways(gateway, upstream, service, rpc_service, client)


def make_settings(
    folder: Path, upstream: Upstream, service: OpenApiService, rpc: tuple[Path, GrpcService]
) -> Callable[[Settings], Settings]:
    document = folder / "stock.json"
    document.write_bytes(orjson.dumps(openapi_service.make_document(security=[])))
    services = (
        openapi_service.make_service(
            document, name=SERVICE_NAME, url=service.url, credential="none", secret=None, security=None, slow=()
        ),
        grpc_service.make_grpc_settings(rpc[0], url=rpc[1].url, slow=()),
    )
    servers = (upstream_gateway.server_settings(upstream, slow=()),)
    update = {"grpc": GrpcSettings(port=0), "services": services, "servers": servers}
    return lambda settings: settings.model_copy(update=update)


@pytest.mark.parametrize(("interface", "driver"), list(product(INTERFACES, DRIVERS)))
async def test_every_way_keeps_the_trace_and_shrinks_the_deadline(ways: Ways, interface: str, driver: str) -> None:
    name, arguments = DRIVERS[driver]
    async with asyncio.timeout(120):
        while True:
            ways.numbers.append(len(ways.numbers) + 1)
            trace_id = f"{ways.numbers[-1]:032x}"
            answer = await INTERFACES[interface](ways, name, arguments, f"00-{trace_id}-00f067aa0ba902b7-01")
            if answer.get("state") == "succeeded":
                break
            # A machine that has other things to do may need longer than the call's deadline.
            assert answer["error"]["slug"] in _SLOW_MACHINE, answer
    assert answer["trace_id"] == trace_id
    [arrival] = [each for each in ways.list_arrivals(driver) if each.trace_id == trace_id]
    # The hook alone took so long: a deadline that began anew in any phase would be later.
    assert 0 < arrival.remaining_ms <= CALLER_MS - DELAY_MS
    entries = (await ways.gateway.get(f"/v1/calls/{answer['call_id']}/audit")).json()["entries"]
    assert {each["entry"]["trace"] for each in entries} == {trace_id}
