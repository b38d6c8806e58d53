"""`deputize work`: carries runs, and serves nothing but its health and its metrics.

On the database and keys of deputize.toml, like `deputize serve`; where none is set, beside the `deputize dev` that runs
in this folder. Above: `main.py`. Below: `doors/server.py` and the worker that `app.py` puts into a gateway.
"""

import asyncio
import os
import signal
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import uvloop
from pydantic import SecretStr

from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Settings
from deputize.doors.cli import database
from deputize.doors.cli.development import free_port
from deputize.doors.cli.loading import Loaded, OpenGateway, load, opened
from deputize.doors.cli.logs import configure_logs
from deputize.doors.cli.output import GO, counted, mark, printer
from deputize.doors.cli.serving import require_all, require_current, strictly_opened
from deputize.doors.server import attend
from deputize.govern.identity.development import development_issuer, refuse_development_issuers
from deputize.lifecycle.gateway import Gateway

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(open_gateway: OpenGateway, settings: Settings, port: int | None) -> None:
    configure_logs(settings.telemetry)
    configured = database.direct_dsn(settings)
    development = configured is None
    dsn = configured or database.local_dsn(settings.folder)
    if dsn is None:
        raise Misconfigured(
            "No database is set: put url under [database] in deputize.toml, or set DEPUTIZE_DATABASE__URL. "
            "In development, deputize dev has a worker inside, and a further one can be started beside it."
        )
    require_current(dsn)
    loaded = load(settings, Path.cwd())
    if development:
        settings = beside_dev(settings, dsn)
    else:
        refuse_development_issuers(settings)
        require_all(loaded)
    settings = _with_port(settings, port, development)
    # Somebody waits for what a gateway answers, and nobody at that moment for a run.
    os.nice(settings.runs.nice)

    def opening() -> AbstractAsyncContextManager[Gateway]:
        if development:
            return opened(open_gateway, settings, loaded, development=True, worker=True)
        return strictly_opened(open_gateway, settings, loaded, dsn, worker=True)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_work(opening, settings, loaded))


def beside_dev(settings: Settings, dsn: str) -> Settings:
    """On the database of the `deputize dev` in this folder, and trusting whom it takes runs from."""
    issuers = (*settings.identity.issuers, development_issuer(settings.folder))
    return settings.model_copy(
        update={
            "database": settings.database.model_copy(update={"url": SecretStr(dsn)}),
            "identity": settings.identity.model_copy(update={"issuers": issuers}),
        }
    )


def _with_port(settings: Settings, port: int | None, development: bool) -> Settings:
    """The usual port is the development gateway's, where one runs."""
    server = settings.server
    chosen = server.metrics_port if port is None else port
    if port is None and development:
        chosen = free_port(server.metrics_host, server.metrics_port)
    return settings.model_copy(update={"server": server.model_copy(update={"metrics_port": chosen})})


async def _work(opening: Any, settings: Settings, loaded: Loaded) -> None:
    stop = asyncio.Event()
    workers: list[Any] = []

    def heard() -> None:
        if stop.is_set():
            _event("left", {}, "left at once; another worker takes over what was carried here once its lease is over")
            # Nothing that could still be waited for is worth more than being obeyed the second time.
            os._exit(1)
        stop.set()

    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, heard)

    def ready(gateway: Gateway, url: str) -> None:
        workers.extend(gateway.workers)
        _tell_ready(settings, loaded, url)

    def stopping(gateway: Gateway) -> None:
        carrying = sum(each.carrying for each in gateway.workers)
        patience = f"; waiting up to {settings.runs.drain_seconds:g} s" if carrying else ""
        _event("stopping", {"carrying": carrying}, f"takes no more; {counted(carrying, 'run')} under way{patience}")

    await attend(opening, settings, ready, stopping, stop=stop)
    _tell_stopped(sum(each.left for each in workers))


def _tell_ready(settings: Settings, loaded: Loaded, url: str) -> None:
    at_once = settings.runs.at_once
    if printer.as_json:
        facts = {"metrics": f"{url}/metrics", "healthz": f"{url}/healthz", "tools": len(loaded.tools)}
        printer.json({"event": "ready", "at_once": at_once, "pid": os.getpid(), **facts})
        return
    printer.good(f"{counted(len(loaded.tools), 'tool')} from files")
    told = f"carrying up to {counted(at_once, 'run')} at once   health {url}/healthz   metrics {url}/metrics"
    printer.line(f"{mark(GO, sys.stdout)} {told}")
    printer.line("  Ctrl-C stops it; calls that are queued wait for another worker")


def _tell_stopped(left: int) -> None:
    if left:
        told = (
            f"stopped; {counted(left, 'run')} had not ended: another worker goes on with what may be done again, "
            "the outcome of anything else is unknown until it is settled"
        )
    else:
        told = "stopped; nothing is left half done, and calls that are queued wait for another worker"
    _event("stopped", {"left": left}, told)


def _event(name: str, facts: dict[str, Any], told: str) -> None:
    if printer.as_json:
        printer.json({"event": name, **facts})
    printer.good(told)
