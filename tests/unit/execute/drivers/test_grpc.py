"""Test how methods of gRPC services are called: their connections, their deadlines and what they answer."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.struct_pb2 import Struct

from deputize.catalog.importers.grpc.contracts import build_grpc_service
from deputize.catalog.importers.grpc.descriptor_set import parse_descriptor_set
from deputize.core.contract.tools import GrpcTool, ToolContext
from deputize.core.errors import OutcomeUnknown, ResourceLimitExceeded, UpstreamTimeout
from deputize.core.json_values import has_more_values
from deputize.execute.drivers.grpc import GrpcDriver, has_more_fields, send_request
from deputize.execute.drivers.grpc_channels import ServiceChannel
from deputize.execute.egress import HostResolver, resolve_host
from deputize.execute.upstreams.faults import UpstreamNotAtFault
from tests.support.grpc_service import (
    NAME,
    PROTO,
    SERVICE,
    GrpcService,
    compile_descriptors,
    make_grpc_settings,
    open_grpc_service,
)

pytestmark = pytest.mark.requirement("EXE-1")
CONTEXT = ToolContext(
    call_id="c", tenant="t", user="u", agent="a", session=None, key="k", attempt=1, seconds_left=30, traceparent=None
)


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[GrpcService]:
    async with open_grpc_service(compile_descriptors(tmp_path)) as running:
        yield running


class Caller:
    """Calls one method of a service, without a gateway."""

    def __init__(
        self, folder: Path, url: str, method: str, *, text: str = PROTO, resolver: HostResolver = resolve_host
    ) -> None:
        document = compile_descriptors(folder, text)
        settings = make_grpc_settings(document, url=url)
        contract = build_grpc_service(settings, parse_descriptor_set(document.read_bytes())).contracts[
            f"{SERVICE}/{method}"
        ]
        self.channel = ServiceChannel(settings, resolver)
        self._driver = GrpcDriver({("t", NAME): (settings, self.channel)})
        self.tool: GrpcTool = self._driver.find_tool(contract)

    async def call(self, seconds: float = 30, **arguments: Any) -> dict[str, Any]:
        return await self._driver.run(self.tool, arguments, CONTEXT, seconds)


async def test_addresses_in_another_order_are_the_same_connection(tmp_path: Path, service: GrpcService) -> None:
    answers = [["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "127.0.0.1"], ["127.0.0.1"]]

    async def resolve(host: str, port: int) -> list[str]:
        return answers.pop(0)

    channel = Caller(tmp_path, service.url, "GetParcel", resolver=resolve).channel
    first, second, third = [await channel.open(30) for _ in range(3)]
    assert first is second
    assert third is not first
    await channel.aclose()


async def test_a_request_on_a_replaced_connection_was_not_sent(tmp_path: Path, service: GrpcService) -> None:
    caller = Caller(tmp_path, service.url, "DeleteParcel")
    channel = await caller.channel.open(30)
    await channel.close(None)
    with pytest.raises(UpstreamNotAtFault) as lost:
        send_request(caller.tool, channel, b"", [], 30)
    assert lost.value.nothing_happened
    await caller.channel.aclose()


async def test_calls_that_wait_while_the_addresses_change_fail_without_blame(tmp_path: Path) -> None:
    # Accepts connections and never speaks, so that whoever connects waits.
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    addresses, is_resolved = ["127.0.0.1"], asyncio.Event()

    async def resolve(host: str, port: int) -> list[str]:
        is_resolved.set()
        return list(addresses)

    channel = Caller(tmp_path, f"http://localhost:{port}", "DeleteParcel", resolver=resolve).channel
    waiting = asyncio.create_task(channel.open(30))
    await is_resolved.wait()
    addresses[:] = ["127.0.0.1", "127.0.0.2"]
    other = asyncio.create_task(channel.open(30))
    with pytest.raises(UpstreamNotAtFault) as replaced:
        await waiting
    assert replaced.value.nothing_happened
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
    await channel.aclose()
    server.close()


async def test_nothing_is_sent_when_the_time_is_over(tmp_path: Path, service: GrpcService) -> None:
    pauses = [0.0, 0.2]

    async def resolve(host: str, port: int) -> list[str]:
        # A busy event loop: the time ends without anyone waiting.
        time.sleep(pauses.pop(0))
        return ["127.0.0.1"]

    caller = Caller(tmp_path, service.url, "DeleteParcel", resolver=resolve)
    await caller.call(id="1")
    for seconds in (0.1, 0.0):
        with pytest.raises(UpstreamTimeout) as late:
            await caller.call(seconds, id="2")
        assert late.value.nothing_happened
    assert [each.message for each in service.requests] == [{"id": "1"}]
    await caller.channel.aclose()


WIDE = PROTO.replace(
    "message DeleteParcelResponse {}",
    f"message Wide {{ {' '.join(f'int32 f{n} = {n};' for n in range(1, 51))} }}\n"
    "message DeleteParcelResponse { repeated Wide wide = 1; }",
).replace("returns (Parcel) {", "returns (DeleteParcelResponse) {")


async def test_a_small_answer_does_not_become_a_large_result(tmp_path: Path, service: GrpcService) -> None:
    for method, problem in (("GetParcel", ResourceLimitExceeded), ("DeleteParcel", OutcomeUnknown)):
        caller = Caller(tmp_path, service.url, method, text=WIDE)
        for count in (8_000, 100_000):
            service.answers = [b"\x0a\x00" * count]
            with pytest.raises(problem, match="more than 100,000 values"):
                await caller.call(id="1")
        service.answers = [b"\x0a\x00" * 1_000]
        assert (await caller.call(id="1"))["wide"][999] == {f"f{n}": 0 for n in range(1, 51)}
        await caller.channel.aclose()


def test_the_values_of_a_message_are_counted_as_those_of_its_result(tmp_path: Path) -> None:
    value = {
        "id": "1",
        "stamps": {"a": 1},
        "notes": ["x", "y"],
        "address": {"forward_to": {}},
        "sent_at": "2026-01-01T00:00:00Z",
    }
    descriptor = load_parcel(tmp_path)
    message = json_format.ParseDict(value, message_factory.GetMessageClass(descriptor)())
    result = json_format.MessageToDict(message, always_print_fields_with_no_presence=True)
    nested = json_format.ParseDict({"a": [1, {"b": None}], "c": "x"}, Struct())
    for each, shown in ((message, result), (nested, {"a": [1, {"b": None}], "c": "x"})):
        counts = [count for count in range(30) if not has_more_fields(each, count)]
        assert counts == [count for count in range(30) if not has_more_values(shown, count)]


def load_parcel(folder: Path) -> Descriptor:
    pool = DescriptorPool()
    for each in FileDescriptorSet.FromString(compile_descriptors(folder).read_bytes()).file:
        pool.Add(each)
    return pool.FindMessageTypeByName("parcels.v1.Parcel")


async def test_no_proxy_of_the_environment_is_used(
    tmp_path: Path, service: GrpcService, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections: list[str] = []

    def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append("connected")
        writer.close()

    proxy = await asyncio.start_server(refuse, "127.0.0.1", 0)
    address = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    monkeypatch.setenv("GRPC_ADDRESS_HTTP_PROXY", address)
    monkeypatch.setenv("GRPC_ADDRESS_HTTP_PROXY_ENABLED_ADDRESSES", "127.0.0.0/8")
    monkeypatch.setenv("http_proxy", f"http://{address}")
    caller = Caller(tmp_path, service.url, "GetParcel")
    assert (await caller.call(id="1"))["notes"] == []
    assert not connections
    await caller.channel.aclose()
    proxy.close()
