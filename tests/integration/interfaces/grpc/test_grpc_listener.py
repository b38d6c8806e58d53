"""The gRPC listener: its limits, TLS, and an orderly end."""

import asyncio
import contextlib
import datetime
import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from deputize import tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.config_error import ConfigError
from deputize.core.settings import GrpcSettings, Settings
from deputize.interfaces.grpc import deputize_v1_pb2 as messages
from deputize.interfaces.grpc import listener
from tests.integration.conftest import serve_gateway
from tests.support import shop_tools
from tests.support.gateway_lab import wait_until
from tests.support.grpc_client import GrpcClient, open_client, read_problem

# Of a client that takes little of what it does not read.
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold the master key of the module's database."""
    return tmp_path_factory.mktemp("grpc")


@tool(effects="read", namespace="grpclab", timeout=60)
async def answer_at_length() -> str:
    """Answer with more than a connection buffers for a client that reads nothing."""
    return "x" * 900_000


def use_grpc(**fields: Any) -> Callable[[Settings], Settings]:
    return lambda settings: settings.model_copy(update={"grpc": GrpcSettings(port=0, **fields)})


async def fail(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


async def test_without_a_port_nothing_listens(module_database: str, folder: Path) -> None:
    async with serve_gateway(module_database, folder) as gateway:
        assert gateway.grpc_address is None


async def test_a_port_in_use_is_one_sentence_with_the_way_out(module_database: str, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"Cannot listen for gRPC on 127.0.0.1:{port}: stop what listens there"):
            async with serve_gateway(
                module_database,
                folder,
                change=lambda settings: settings.model_copy(update={"grpc": GrpcSettings(port=port)}),
            ):
                pass


async def test_large_compressed_and_missing_messages_are_refused(module_database: str, folder: Path) -> None:
    async with serve_gateway(
        module_database, folder, change=use_grpc(), max_body_bytes=4096, body_timeout_seconds=3
    ) as gateway:
        assert gateway.grpc_address is not None
        token = gateway.token()
        async with open_client(gateway.grpc_address, token) as client:
            large = await fail(client.call("shop.get_user", {"id": 1, "note": "x" * 5000}))
            assert large.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            # A message of zeros: a few bytes that would decompress to megabytes.
            bomb = messages.CallRequest(tool="shop.get_user", arguments=b" " * 3_000_000)
            refused = await fail(client.start("Call", bomb, compression=grpc.Compression.Gzip))
            assert refused.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED)
            send = client.channel.stream_unary("/deputize.v1.Deputize/Call", None, None)
            metadata = [("authorization", f"Bearer {token}")]
            silent = send(metadata=metadata, timeout=90)
            assert "took longer than 3 s" in str((await fail(silent)).details())
            empty = send(iter(()), metadata=metadata, timeout=90)
            assert read_problem(await fail(empty)).slug == "parse-failed"
            # A caller who is not known is refused before the message is read.
            unknown = send(metadata=[], timeout=90)
            assert (await fail(unknown)).code() is grpc.StatusCode.UNAUTHENTICATED
            assert (await client.call("shop.get_user", {"id": 1})).state == "succeeded"


async def test_a_caller_has_no_more_requests_than_over_rest(module_database: str, folder: Path) -> None:
    async with serve_gateway(
        module_database, folder, change=use_grpc(max_streams=2), max_requests_per_caller=1
    ) as gateway:
        assert gateway.grpc_address is not None
        async with open_client(gateway.grpc_address, gateway.token()) as client:
            call = start_slow_call(client, "grpc-slots")
            await wait_for_start("grpc-slots")
            over_rest = await gateway.call("shop.get_user", {"id": 1})
            assert over_rest.status_code == 429
            refused = await fail(client.call("shop.get_user", {"id": 1}))
            assert read_problem(refused).slug == over_rest.json()["error"]["slug"]
            shop_tools.release_events["grpc-slots"].set()
            assert (await call).state == "succeeded"
            assert (await client.call("shop.get_user", {"id": 1})).state == "succeeded"


async def test_calls_in_progress_are_answered_when_the_gateway_stops(module_database: str, folder: Path) -> None:
    async with serve_gateway(module_database, folder, change=use_grpc()) as gateway:
        assert gateway.grpc_address is not None
        async with (
            open_client(gateway.grpc_address, gateway.token()) as client,
            open_client(gateway.grpc_address, gateway.token()) as late_client,
        ):
            queued = await client.call("shop.rename_user", {"id": 6, "name": "Al"}, key="grpc-stop", mode="async")
            events = aiter(client.start("FollowCall", messages.FollowCallRequest(call_id=queued.call_id)))
            await anext(events)
            call = start_slow_call(client, "grpc-stop")
            await wait_for_start("grpc-stop")
            gateway.stop.set()
            ended = await fail(anext(events))
            assert ended.code() is grpc.StatusCode.UNAVAILABLE
            refused = await fail(late_client.call("shop.get_user", {"id": 1}))
            assert refused.code() is grpc.StatusCode.UNAVAILABLE
            shop_tools.release_events["grpc-stop"].set()
            assert orjson.loads((await call).envelope)["result"] == "grpc-stop"


async def test_a_followed_call_does_not_outlive_the_token(module_database: str, folder: Path) -> None:
    def change(settings: Settings) -> Settings:
        identity = settings.identity.model_copy(update={"leeway_seconds": 60})
        return use_grpc()(settings).model_copy(update={"identity": identity})

    async with serve_gateway(module_database, folder, change=change) as gateway:
        assert gateway.grpc_address is not None
        # Accepted only because clocks may differ: it has expired when the call is looked at for the second time.
        token = gateway.token(lifetime=-1)
        async with asyncio.timeout(90), open_client(gateway.grpc_address, token) as client:
            queued = await gateway.call("shop.rename_user", {"id": 6, "name": "Al"}, key="grpc-expiry", mode="async")
            call_id = queued.json()["call_id"]
            events = aiter(client.start("FollowCall", messages.FollowCallRequest(call_id=call_id)))
            assert (await anext(events)).event == "tool.invocation.queued"
            assert read_problem(await fail(anext(events))).slug == "token-expired"
            over_rest = await gateway.get(f"/v1/calls/{call_id}/events", token=token)
            assert "token-expired" in over_rest.text


async def test_a_client_that_reads_nothing_does_not_keep_the_gateway_from_stopping(
    module_database: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_ANSWER_SECONDS", 0.5)
    options = {"tools": [*shop_tools.TOOLS, getattr(answer_at_length, ATTRIBUTE)]}
    async with contextlib.AsyncExitStack() as clients:
        async with (
            asyncio.timeout(60),
            serve_gateway(module_database, folder, change=use_grpc(), gateway_options=options) as gateway,
        ):
            assert gateway.grpc_address is not None
            client = await clients.enter_async_context(
                open_client(gateway.grpc_address, gateway.token(), options=SMALL_WINDOW)
            )
            request = messages.CallRequest(tool="grpclab.answer_at_length")
            unread = client.start("CallWithProgress", request, timeout=None)
            await unread.initial_metadata()
        # The gateway has stopped, and the client is still there.
        unread.cancel()


async def test_a_client_that_reads_nothing_takes_from_its_own_caller(module_database: str, folder: Path) -> None:
    options = {"tools": [*shop_tools.TOOLS, getattr(answer_at_length, ATTRIBUTE)]}
    async with serve_gateway(
        module_database, folder, change=use_grpc(), gateway_options=options, max_requests_per_caller=1
    ) as gateway:
        assert gateway.grpc_address is not None
        async with open_client(gateway.grpc_address, gateway.token(), options=SMALL_WINDOW) as client:
            unread = client.start("CallWithProgress", messages.CallRequest(tool="grpclab.answer_at_length"))
            await unread.initial_metadata()
            refused = await gateway.call("shop.get_user", {"id": 1})
            assert (refused.status_code, refused.json()["error"]["slug"]) == (429, "too-many-at-once")
            unread.cancel()

            async def has_slot_again() -> bool:
                return (await gateway.call("shop.get_user", {"id": 1})).status_code == 200

            await wait_until(has_slot_again)


async def test_tls_ends_at_the_gateway(module_database: str, folder: Path) -> None:
    certificate = write_certificate(folder)
    settings = use_grpc(certificate=folder / "server.pem", key=folder / "server.key")
    async with serve_gateway(module_database, folder, change=settings) as gateway:
        assert gateway.grpc_address is not None
        credentials = grpc.ssl_channel_credentials(certificate)
        async with grpc.aio.secure_channel(gateway.grpc_address, credentials) as channel:
            assert (await GrpcClient(channel, gateway.token()).call("shop.get_user", {"id": 1})).state == "succeeded"
        async with open_client(gateway.grpc_address, gateway.token()) as client:
            assert (await fail(client.call("shop.get_user", {"id": 1}))).code() is grpc.StatusCode.UNAVAILABLE


def start_slow_call(client: GrpcClient, name: str) -> Any:
    shop_tools.release_events[name] = asyncio.Event()
    shop_tools.start_events[name] = asyncio.Event()
    request = messages.CallRequest(tool="shop.slow_read", arguments=orjson.dumps({"name": name}))
    return client.start("Call", request)


async def wait_for_start(name: str) -> None:
    async with asyncio.timeout(90):
        await shop_tools.start_events[name].wait()


def write_certificate(folder: Path) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    alternatives = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(alternatives, critical=False)
        .sign(key, hashes.SHA256())
    ).public_bytes(serialization.Encoding.PEM)
    (folder / "server.pem").write_bytes(certificate)
    (folder / "server.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate
