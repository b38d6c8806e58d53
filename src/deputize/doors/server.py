"""Listens: the API on one port, `/metrics` on another, both in one event loop, until told to stop.

Stopping is orderly: no new connections, streams end, calls in flight come to their end and are answered, and only
then is the gateway closed. A second interrupt does not wait. Above: the command line. Below: uvicorn and `asgi.py`.
"""

import asyncio
import contextlib
import errno
import gc
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence

import uvicorn

from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Settings
from deputize.doors.asgi import OpenGateway, build
from deputize.doors.metrics import metrics_app
from deputize.doors.wire import ASGIApp
from deputize.lifecycle.gateway import Gateway

OnReady = Callable[[str, str], Awaitable[None] | None]
_BACKLOG = 2048
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Listener(uvicorn.Server):
    """Leaves signals to `serve`, since two servers cannot both own them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    open_gateway: OpenGateway, settings: Settings, on_ready: OnReady, *, stop: asyncio.Event | None = None
) -> None:
    """Runs until a signal, or until `stop` for a program that minds its own signals. `on_ready` hears the addresses
    of the API and of the metrics, once the first request would be answered.
    """
    server = settings.server
    signals, stop = _SIGNALS if stop is None else (), stop or asyncio.Event()
    with (
        _bound(server.host, server.port, "port") as api_socket,
        _bound(server.metrics_host, server.metrics_port, "metrics_port") as metrics_socket,
    ):
        api = build(open_gateway)
        async with api.opened():
            listeners = [_listener(api), _listener(metrics_app(api.gateway))]
            with _heeding(signals, stop, listeners):
                serving = [
                    asyncio.create_task(listener.serve(sockets=[bound]), name=f"listener-{_url(bound)}")
                    for listener, bound in zip(listeners, (api_socket, metrics_socket), strict=True)
                ]
                await _started(listeners, serving)
                _settle_memory()
                told = on_ready(_url(api_socket), _url(metrics_socket))
                if told is not None:
                    await told
                stopping = asyncio.create_task(stop.wait())
                await asyncio.wait([stopping, *serving], return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                api.closing.set()
                for listener in listeners:
                    listener.should_exit = True
                await asyncio.gather(*serving)


async def attend(
    open_gateway: OpenGateway,
    settings: Settings,
    on_ready: Callable[[Gateway, str], None],
    on_stop: Callable[[Gateway], None],
    *,
    stop: asyncio.Event,
) -> None:
    """For a process that serves no API: opens the gateway, tells on one listener how it is, and waits for `stop`. While
    the gateway closes, it still tells.
    """
    server = settings.server
    with _bound(server.metrics_host, server.metrics_port, "metrics_port") as bound:
        async with contextlib.AsyncExitStack() as stack:
            gateway = await stack.enter_async_context(open_gateway())
            listener = _listener(metrics_app(lambda: gateway, health=True))
            serving = asyncio.create_task(listener.serve(sockets=[bound]), name="listener")
            await _started([listener], [serving])
            _settle_memory()
            on_ready(gateway, _url(bound))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait([stopping, serving], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            on_stop(gateway)
        listener.should_exit = True
        await serving


def _settle_memory() -> None:
    """What start-up made stays for good, so the collector need not look at it again; what calls make dies by itself,
    so it need not look often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _listener(app: ASGIApp) -> _Listener:
    return _Listener(
        uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            # Every call has a deadline of its own, so waiting for the last one ends by itself.
            timeout_graceful_shutdown=None,
        )
    )


@contextlib.contextmanager
def _bound(host: str, port: int, setting: str) -> Iterator[socket.socket]:
    """A socket that already has its port, so that a port in use is found before anything else is started."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise Misconfigured(_why_not(error, host, port, setting)) from error
    with bound:
        yield bound


def _why_not(error: OSError, host: str, port: int, setting: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} on {host} is in use: stop what listens there, or set {setting} under [server] in "
            f"deputize.toml to another one (0 picks a free one)."
        )
    if error.errno == errno.EACCES:
        return f"Port {port} on {host} needs privileges: set {setting} under [server] in deputize.toml above 1023."
    host_setting = setting.replace("port", "host")
    return f"Cannot listen on {host}:{port} ({error.strerror or error}): check {host_setting} under [server]."


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _started(listeners: list[_Listener], serving: list["asyncio.Task[None]"]) -> None:
    while not all(listener.started for listener in listeners):
        for task in serving:
            if task.done():
                await task
        await asyncio.sleep(0.005)


@contextlib.contextmanager
def _heeding(signals: Sequence[signal.Signals], stop: asyncio.Event, listeners: list[_Listener]) -> Iterator[None]:
    """The first signal asks for an orderly end, the second for an end now."""

    def heard() -> None:
        if stop.is_set():
            for listener in listeners:
                listener.force_exit = True
        stop.set()

    loop = asyncio.get_running_loop()
    for each in signals:
        loop.add_signal_handler(each, heard)
    try:
        yield
    finally:
        for each in signals:
            loop.remove_signal_handler(each)
