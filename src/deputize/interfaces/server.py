"""Listen with uvicorn: the API on one port and `/metrics` on another, in one event loop.

Stopping is orderly: at SIGTERM the gateway turns unready and serves on for a drain time, in which load balancers
notice; then there are no new connections, streams end, calls in flight finish and are answered; only then does the
gateway close, first the worker in it, which finishes its runs, and health is answered to the end. An interrupt (Ctrl-C)
skips the drain time, and a second signal stops at once.
"""

import asyncio
import contextlib
import errno
import gc
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
import uvicorn

from deputize.core.config_error import ConfigError
from deputize.core.event_loop.timed_wait import wait_for_event
from deputize.core.settings import ServerSettings, Settings
from deputize.interfaces.asgi import OpenGateway, build_api
from deputize.interfaces.asgi_http import ASGIApp
from deputize.interfaces.connections import ConnectionLimiter, make_connection_class
from deputize.interfaces.grpc.factory import open_grpc_listener
from deputize.interfaces.metrics import build_metrics_app
from deputize.operations.gateway import Gateway

if TYPE_CHECKING:
    from deputize.interfaces.grpc.listener import GrpcListener

_BACKLOG = 2048
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Descriptors for everything that is not a connection to the API: databases, upstreams, files, the metrics listener; and
# two for each connection of programs in sandboxes.
_RESERVED_DESCRIPTORS = 1024
_METRICS_CONNECTIONS = 64
# How many ports are tried for metrics whose port the settings leave open.
PORT_ATTEMPTS = 20

log = structlog.get_logger("deputize.interfaces")


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenUrls:
    """Where a gateway listens: the URLs of the API and of the metrics, and the address of gRPC if it is on."""

    api: str
    metrics: str
    grpc: str | None = None


OnReady = Callable[[ListenUrls], None]


class PortError(ConfigError):
    """A port that cannot be listened on, and whether something else listens there."""

    def __init__(self, message: str, *, is_in_use: bool) -> None:
        super().__init__(message)
        self.is_in_use = is_in_use


class _Listener(uvicorn.Server):
    """A uvicorn server that leaves signals to `serve`, since two servers cannot both handle them."""

    def __init__(self, config: uvicorn.Config, limiter: ConnectionLimiter) -> None:
        super().__init__(config)
        self._limiter = limiter

    def start_drain(self) -> None:
        """Make clients open their next connections elsewhere."""
        self._limiter.start_drain()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        async with self._limiter.end_late_connections(self.server_state.connections):
            await super().serve(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    open_gateway: OpenGateway, settings: Settings, on_ready: OnReady, *, stop: asyncio.Event | None = None
) -> None:
    """Serve until a signal, or until `stop` is set by a program that handles signals itself and wants no drain time.

    `on_ready` gets the URLs once all listeners accept requests. At the end the API and gRPC stop first, then the
    gateway with the worker inside it, then the metrics and health.
    """
    server = settings.server
    signals, stop = _SIGNALS if stop is None else (), stop or asyncio.Event()
    with (
        _bind_socket(server.host, server.port, "port") as api_socket,
        _bind_metrics_socket(server, 1 if server.metrics_port is not None else PORT_ATTEMPTS) as metrics_socket,
        contextlib.ExitStack() as signal_stack,
    ):
        api = build_api(open_gateway)
        metrics_listener = _make_metrics_listener(build_metrics_app(api.get_gateway), server)
        async with (
            open_grpc_listener(settings, api.get_gateway, api.shutdown) as grpc_listener,
            _stop_last(metrics_listener) as metrics_tasks,
            api.open_gateway() as gateway,
        ):
            listeners = [
                _make_listener(api, _reserve_descriptors(settings), api.count_refused_connection),
                metrics_listener,
            ]
            shutdown = _Shutdown(stop=stop, listeners=listeners, grpc_listener=grpc_listener, gateway=gateway)
            signal_stack.enter_context(_handle_signals(signals, shutdown))
            server_tasks = [
                asyncio.create_task(
                    listener.serve(sockets=[listen_socket]), name=f"listener-{_format_url(listen_socket)}"
                )
                for listener, listen_socket in zip(listeners, (api_socket, metrics_socket), strict=True)
            ]
            metrics_tasks.append(server_tasks[1])
            await _wait_until_started(listeners, server_tasks)
            grpc_address = None if grpc_listener is None else await grpc_listener.start()
            _tune_garbage_collector()
            urls = ListenUrls(api=_format_url(api_socket), metrics=_format_url(metrics_socket), grpc=grpc_address)
            on_ready(urls)
            stop_task = asyncio.create_task(stop.wait())
            await asyncio.wait([stop_task, *server_tasks], return_when=asyncio.FIRST_COMPLETED)
            stop_task.cancel()
            if signals and stop.is_set():
                await _drain(gateway, listeners, shutdown.skip_drain, server.drain_seconds)
            api.shutdown.set()
            listeners[0].should_exit = True
            await asyncio.gather(server_tasks[0], *(() if grpc_listener is None else (grpc_listener.stop(),)))
            # The gateway closes from here on, its worker first; health is answered until that is done.
            shutdown.is_closing = True


@contextlib.asynccontextmanager
async def _stop_last(listener: "_Listener") -> AsyncIterator[list["asyncio.Task[None]"]]:
    """Stop a listener after everything inside the block has been closed, so that it answers until then."""
    tasks: list[asyncio.Task[None]] = []
    try:
        yield tasks
    finally:
        listener.should_exit = True
        await asyncio.gather(*tasks)


async def serve_health(
    open_gateway: OpenGateway,
    settings: Settings,
    on_ready: Callable[[Gateway, str], None],
    on_stop: Callable[[Gateway], None],
    *,
    stop: asyncio.Event,
    attempts: int = 1,
) -> None:
    """Serve only health and metrics, for a worker: open the gateway and wait for `stop`.

    The listener still answers while the gateway closes. It takes the first free one of `attempts` ports.
    """
    server = settings.server
    with _bind_metrics_socket(server, attempts) as listen_socket:
        async with contextlib.AsyncExitStack() as stack:
            gateway = await stack.enter_async_context(open_gateway())
            listener = _make_metrics_listener(build_metrics_app(lambda: gateway), server)
            server_task = asyncio.create_task(listener.serve(sockets=[listen_socket]), name="listener")
            await _wait_until_started([listener], [server_task])
            _tune_garbage_collector()
            on_ready(gateway, _format_url(listen_socket))
            stop_task = asyncio.create_task(stop.wait())
            await asyncio.wait([stop_task, server_task], return_when=asyncio.FIRST_COMPLETED)
            stop_task.cancel()
            gateway.health.start_drain()
            on_stop(gateway)
        listener.should_exit = True
        await server_task


async def _drain(
    gateway: Gateway, listeners: Sequence[_Listener], skip_drain: asyncio.Event, drain_seconds: float
) -> None:
    """Turn unready and serve on for a while: until load balancers have noticed, they still send requests."""
    gateway.health.start_drain()
    if skip_drain.is_set() or not drain_seconds:
        return
    for listener in listeners:
        listener.start_drain()
    log.info("draining", seconds=drain_seconds)
    await wait_for_event(skip_drain, drain_seconds)


def _tune_garbage_collector() -> None:
    """Exempt start-up objects from collection, and collect rarely: what a call allocates is freed by itself."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _reserve_descriptors(settings: Settings) -> ServerSettings:
    """Make room for the connections that the settings allow, or allow fewer: running out of descriptors stops all."""
    server, grpc = settings.server, settings.grpc
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved_descriptors = _RESERVED_DESCRIPTORS + (grpc.max_connections if grpc.port is not None else 0)
    needed_descriptors = server.max_connections + reserved_descriptors
    if soft != resource.RLIM_INFINITY and soft < needed_descriptors:
        soft = needed_descriptors if hard == resource.RLIM_INFINITY else min(needed_descriptors, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed_descriptors:
        return server
    max_connections = max(soft - reserved_descriptors, soft // 2 if grpc.port is None else soft // 4)
    log.warning("fewer-connections", max_connections=max_connections, reason=f"the limit of open files is {soft}")
    return server.model_copy(update={"max_connections": max_connections})


def _make_metrics_listener(app: ASGIApp, server: ServerSettings) -> _Listener:
    """Make a listener that a flood of the API does not reach, with its own limit on connections."""
    return _make_listener(app, server.model_copy(update={"max_connections": _METRICS_CONNECTIONS}))


def _make_listener(
    app: ASGIApp, server: ServerSettings, count_refusal: Callable[[str], None] = lambda reason: None
) -> _Listener:
    limiter = ConnectionLimiter(server, count_refusal=count_refusal)
    return _Listener(
        uvicorn.Config(
            app,
            http=make_connection_class(limiter),
            timeout_keep_alive=server.idle_timeout_seconds,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            # Every call has its own deadline, so waiting for the last one ends.
            timeout_graceful_shutdown=None,
        ),
        limiter,
    )


@contextlib.contextmanager
def _bind_socket(host: str, port: int, setting: str) -> Iterator[socket.socket]:
    """Bind a socket before anything else starts, so that a port in use is reported first."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listen_socket = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise PortError(_explain_bind_error(error, host, port, setting), is_in_use=_is_in_use(error)) from error
    with listen_socket:
        yield listen_socket


@contextlib.contextmanager
def _bind_metrics_socket(server: ServerSettings, attempts: int) -> Iterator[socket.socket]:
    """Bind the socket of the metrics; with several attempts, the first port that is free."""
    first = server.get_metrics_port()
    with contextlib.ExitStack() as stack:
        for port in range(first, first + (attempts if first else 1)):
            try:
                listen_socket = stack.enter_context(_bind_socket(server.metrics_host, port, "metrics_port"))
                break
            except PortError as error:
                if not error.is_in_use or port == min(first + attempts - 1, 65_535):
                    raise
        yield listen_socket


def _is_in_use(error: OSError) -> bool:
    return error.errno == errno.EADDRINUSE


def _explain_bind_error(error: OSError, host: str, port: int, setting: str) -> str:
    if _is_in_use(error):
        return (
            f"Port {port} on {host} is in use: stop what listens there, or set {setting} under [server] in "
            f"deputize.toml to another one (0 picks a free one)."
        )
    if error.errno == errno.EACCES:
        return f"Port {port} on {host} needs privileges: set {setting} under [server] in deputize.toml above 1023."
    host_setting = setting.replace("port", "host")
    return f"Cannot listen on {host}:{port} ({error.strerror or error}): check {host_setting} under [server]."


def _format_url(listen_socket: socket.socket) -> str:
    host, port = listen_socket.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _wait_until_started(listeners: list[_Listener], server_tasks: list["asyncio.Task[None]"]) -> None:
    while not all(listener.started for listener in listeners):
        for task in server_tasks:
            if task.done():
                await task
        await asyncio.sleep(0.005)


@dataclass(kw_only=True)
class _Shutdown:
    """How far the end of this process has come, for the signals that arrive meanwhile."""

    stop: asyncio.Event
    listeners: Sequence[_Listener]
    grpc_listener: "GrpcListener | None"
    gateway: Gateway
    skip_drain: asyncio.Event = field(default_factory=asyncio.Event)
    is_closing: bool = False

    def handle_signal(self, number: signal.Signals) -> None:
        """Stop in order at the first signal, and at once at the second."""
        if self.is_closing:
            log.warning("stopped_at_once", reason="another signal; other workers take over the unfinished calls")
            # Leases expire by themselves, as after a crash.
            os._exit(1)
        if self.stop.is_set():
            self.gateway.skip_run_drain()
            for listener in self.listeners:
                listener.force_exit = True
            if self.grpc_listener is not None:
                self.grpc_listener.force_exit()
        if self.stop.is_set() or number == signal.SIGINT:
            self.skip_drain.set()
        self.stop.set()


@contextlib.contextmanager
def _handle_signals(signals: Sequence[signal.Signals], shutdown: _Shutdown) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for each in signals:
        loop.add_signal_handler(each, shutdown.handle_signal, each)
    try:
        yield
    finally:
        for each in signals:
            loop.remove_signal_handler(each)
