"""Listen with uvicorn: the API on one port and `/metrics` on another, in one event loop.

Stopping is orderly: at SIGTERM the gateway turns unready and serves on for a drain time, in which load balancers
notice; then there are no new connections, streams end, calls in flight finish and are answered, and only then does the
gateway close. An interrupt (Ctrl-C) skips the drain time, and a second signal stops at once.
"""

import asyncio
import contextlib
import errno
import gc
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence

import structlog
import uvicorn

from deputize.core.config_error import ConfigError
from deputize.core.event_loop.timed_wait import wait_for_event
from deputize.core.settings import ServerSettings, Settings
from deputize.interfaces.asgi import OpenGateway, build_api
from deputize.interfaces.asgi_http import ASGIApp
from deputize.interfaces.connections import ConnectionLimiter, make_connection_class
from deputize.interfaces.metrics import build_metrics_app
from deputize.operations.gateway import Gateway

OnReady = Callable[[str, str], Awaitable[None] | None]
_BACKLOG = 2048
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Descriptors for everything that is not a connection to the API: databases, upstreams, files, the metrics listener.
_RESERVED_DESCRIPTORS = 512
_METRICS_CONNECTIONS = 64

log = structlog.get_logger("deputize.interfaces")


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

    `on_ready` gets the URLs of the API and of the metrics once both accept requests.
    """
    server = settings.server
    signals, stop = _SIGNALS if stop is None else (), stop or asyncio.Event()
    with (
        _bind_socket(server.host, server.port, "port") as api_socket,
        _bind_socket(server.metrics_host, server.metrics_port, "metrics_port") as metrics_socket,
    ):
        api = build_api(open_gateway)
        async with api.open_gateway() as gateway:
            listeners = [
                _make_listener(api, _reserve_descriptors(server), api.count_refused_connection),
                _make_metrics_listener(build_metrics_app(api.get_gateway), server),
            ]
            skip_drain = asyncio.Event()
            with _handle_signals(signals, stop, skip_drain, listeners):
                server_tasks = [
                    asyncio.create_task(
                        listener.serve(sockets=[listen_socket]), name=f"listener-{_format_url(listen_socket)}"
                    )
                    for listener, listen_socket in zip(listeners, (api_socket, metrics_socket), strict=True)
                ]
                await _wait_until_started(listeners, server_tasks)
                _tune_garbage_collector()
                result = on_ready(_format_url(api_socket), _format_url(metrics_socket))
                if result is not None:
                    await result
                stop_task = asyncio.create_task(stop.wait())
                await asyncio.wait([stop_task, *server_tasks], return_when=asyncio.FIRST_COMPLETED)
                stop_task.cancel()
                if signals and stop.is_set():
                    await _drain(gateway, listeners, skip_drain, server.drain_seconds)
                api.shutdown.set()
                for listener in listeners:
                    listener.should_exit = True
                await asyncio.gather(*server_tasks)


async def serve_health(
    open_gateway: OpenGateway,
    settings: Settings,
    on_ready: Callable[[Gateway, str], None],
    on_stop: Callable[[Gateway], None],
    *,
    stop: asyncio.Event,
) -> None:
    """Serve only health and metrics, for a worker: open the gateway and wait for `stop`.

    The listener still answers while the gateway closes.
    """
    server = settings.server
    with _bind_socket(server.metrics_host, server.metrics_port, "metrics_port") as listen_socket:
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


def _reserve_descriptors(server: ServerSettings) -> ServerSettings:
    """Make room for the connections that the settings allow, or allow fewer: running out of descriptors stops all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed_descriptors = server.max_connections + _RESERVED_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed_descriptors:
        soft = needed_descriptors if hard == resource.RLIM_INFINITY else min(needed_descriptors, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed_descriptors:
        return server
    max_connections = max(soft - _RESERVED_DESCRIPTORS, soft // 2)
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
        raise ConfigError(_explain_bind_error(error, host, port, setting)) from error
    with listen_socket:
        yield listen_socket


def _explain_bind_error(error: OSError, host: str, port: int, setting: str) -> str:
    if error.errno == errno.EADDRINUSE:
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


@contextlib.contextmanager
def _handle_signals(
    signals: Sequence[signal.Signals], stop: asyncio.Event, skip_drain: asyncio.Event, listeners: list[_Listener]
) -> Iterator[None]:
    """Stop in order at the first signal, and at once at the second."""

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            for listener in listeners:
                listener.force_exit = True
        if stop.is_set() or number == signal.SIGINT:
            skip_drain.set()
        stop.set()

    loop = asyncio.get_running_loop()
    for each in signals:
        loop.add_signal_handler(each, on_signal, each)
    try:
        yield
    finally:
        for each in signals:
            loop.remove_signal_handler(each)
