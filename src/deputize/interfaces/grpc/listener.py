"""Listen for gRPC: start the server, dispatch each RPC to its method, and end it in order.

gRPC's own core reads from connections, in its own threads, so limits like those of `connections.py` are its options.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

from deputize.core.config_error import ConfigError
from deputize.core.errors import Problem
from deputize.core.settings import GrpcSettings, ServerSettings, Settings
from deputize.interfaces.asgi_http import hide_internal_error, read_trace_id
from deputize.interfaces.call_request import MAX_DEADLINE_MS
from deputize.interfaces.grpc.deputize_v1_pb2 import DESCRIPTOR
from deputize.interfaces.grpc.methods import GrpcMethods, Method
from deputize.interfaces.grpc.request_fields import parse_metadata
from deputize.interfaces.grpc.rpc import Rpc
from deputize.interfaces.grpc.status import FailedRpc, describe_problem
from deputize.operations.gateway import Gateway

SERVICE_NAME: Final[str] = DESCRIPTOR.services_by_name["Deputize"].full_name
# Only identity: decompressing what a caller sends is work that no call needs.
_NO_COMPRESSION: Final = 1
# Every call has its own deadline, so waiting for the last one ends.
_GRACE_SECONDS: Final = 86_400.0
# How long clients have to read their answers when the gateway stops.
_ANSWER_SECONDS: Final = 30.0
_MAX_PING_STRIKES: Final = 2
_KEEPALIVE_MS: Final = 60_000
_KEEPALIVE_TIMEOUT_MS: Final = 20_000
# Clients open another connection then; RPCs in progress may end on the old one.
_MAX_CONNECTION_AGE_MS: Final = 1_800_000

log = structlog.get_logger("deputize.interfaces")
_Handler = Callable[[Any, Any], Awaitable[None]]


class GrpcListener:
    """The gRPC server of one gateway."""

    def __init__(self, settings: Settings, get_gateway: Callable[[], Gateway], shutdown: asyncio.Event) -> None:
        self._settings = settings
        self._get_gateway = get_gateway
        self._methods = GrpcMethods(shutdown)
        self._server = grpc.aio.server(
            options=_build_options(settings.server, settings.grpc),
            maximum_concurrent_rpcs=settings.server.max_requests,
        )
        handlers: dict[str, Any] = {
            name: grpc.stream_stream_rpc_method_handler(self._make_handler(method))
            for name, method in self._methods.by_name.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
        self._address = ""
        self._stop_tasks: set[asyncio.Task[None]] = set()

    def bind(self) -> None:
        """Bind the port of the settings."""
        settings = self._settings.grpc
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        credentials = _load_credentials(settings)
        try:
            if credentials is None:
                port = self._server.add_insecure_port(f"{host}:{settings.port}")
            else:
                port = self._server.add_secure_port(f"{host}:{settings.port}", credentials)
        except RuntimeError as error:
            raise ConfigError(
                f"Cannot listen for gRPC on {host}:{settings.port}: stop what listens there, or set port under [grpc] "
                "in deputize.toml to another one (0 picks a free one)."
            ) from error
        self._address = f"{host}:{port}"

    async def start(self) -> str:
        """Start to serve; return the address, with the port that was picked if the settings leave it open."""
        await self._server.start()
        return self._address

    async def stop(self) -> None:
        """Accept no new RPCs, and wait until those in progress and their calls have ended."""
        stop_task = asyncio.create_task(self._server.stop(_GRACE_SECONDS), name="grpc-end")
        while not stop_task.done():
            await self._methods.wait_for_calls()
            # What is left is read by clients, or not: one that does not read must not keep the gateway from stopping.
            await asyncio.wait({stop_task}, timeout=_ANSWER_SECONDS)
            if not self._methods.has_calls:
                await self.stop_now()
        await stop_task
        await self._methods.wait_for_calls()

    async def stop_now(self) -> None:
        """End everything that is still in progress."""
        await self._server.stop(None)

    def force_exit(self) -> None:
        """Let `stop` end the RPCs in progress now."""
        task = asyncio.create_task(self.stop_now(), name="grpc-stop")
        self._stop_tasks.add(task)
        task.add_done_callback(self._stop_tasks.discard)

    def _make_handler(self, method: Method) -> _Handler:
        async def handle_rpc(_: Any, context: Any) -> None:
            failure = await self._serve_rpc(method, context)
            if failure is not None:
                await context.abort(failure.code, failure.message, failure.metadata)

        return handle_rpc

    async def _serve_rpc(self, method: Method, context: Any) -> FailedRpc | None:
        pairs = tuple(context.invocation_metadata() or ())
        trace_id = _read_trace_id(pairs)
        metadata_url = None
        try:
            gateway = self._get_gateway()
            metadata_url = gateway.metadata_url
            rpc = Rpc(
                context=context,
                metadata=parse_metadata(pairs),
                trace_id=trace_id,
                body_timeout_seconds=self._settings.server.body_timeout_seconds,
            )
            return await method(gateway, rpc)
        except Problem as problem:
            return describe_problem(problem, trace_id, metadata_url)
        except grpc.aio.BaseError as error:
            # Nothing can be read from the client or sent to it: it has left, as gRPC tells by this error otherwise.
            raise asyncio.CancelledError from error
        except Exception as error:  # noqa: BLE001 -- the outermost handler: logs an unexpected error and hides it
            shown_problem = hide_internal_error(error, trace_id)
            has_left = context.cancelled() or context.done()
            return None if has_left else describe_problem(shown_problem, trace_id)


def _read_trace_id(pairs: tuple[tuple[str, str | bytes], ...]) -> str:
    headers = [
        (b"traceparent", value.encode("latin-1", "replace"))
        for key, value in pairs
        if key == "traceparent" and isinstance(value, str)
    ]
    return read_trace_id({"headers": headers})


def _build_options(server: ServerSettings, settings: GrpcSettings) -> list[tuple[str, int]]:
    """Build the limits on connections, RPCs and messages."""
    return [
        # A port that another process listens on is refused instead of shared.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", server.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", settings.max_streams),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.max_metadata_size", server.max_head_bytes),
        ("grpc.absolute_max_metadata_size", server.max_head_bytes),
        ("grpc.max_connection_idle_ms", server.idle_timeout_seconds * 1000),
        ("grpc.server_handshake_timeout_ms", int(server.header_timeout_seconds * 1000)),
        # A client that vanished, or reads nothing, does not keep its connection for ever.
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.max_connection_age_ms", _MAX_CONNECTION_AGE_MS),
        ("grpc.max_connection_age_grace_ms", MAX_DEADLINE_MS),
        ("grpc.http2.max_ping_strikes", _MAX_PING_STRIKES),
        ("grpc.compression_enabled_algorithms_bitset", _NO_COMPRESSION),
    ]


def _load_credentials(settings: GrpcSettings) -> "grpc.ServerCredentials | None":
    if settings.certificate is None or settings.key is None:
        return None
    pair = (_read_file(settings.key, "key"), _read_file(settings.certificate, "certificate"))
    return grpc.ssl_server_credentials([pair])


def _read_file(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}): set {setting} under [grpc] in deputize.toml to a PEM file that "
            "the gateway can read."
        ) from error
