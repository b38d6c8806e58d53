"""`deputize dev`: everything a project needs on one machine, started with one command and stopped with Ctrl-C.

A PostgreSQL of its own, the schema, keys, a token, the tools, the API and the metrics. Below: `store/local.py`
for the database, `doors/server.py` for listening.
"""

import asyncio
import os
import signal
import sys
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop
from pydantic import SecretStr

from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Settings
from deputize.doors.cli import database
from deputize.doors.cli.codes_told import CodesTold
from deputize.doors.cli.development import (
    alone,
    announced,
    any_port,
    ensure_token,
    free_port,
    is_free,
    make_folder,
    show_refusals,
)
from deputize.doors.cli.loading import Loaded, OpenGateway, load, opened
from deputize.doors.cli.logs import configure_logs
from deputize.doors.cli.output import GO, counted, mark, printer
from deputize.doors.cli.project import Running
from deputize.doors.cli.rules_told import rules_told
from deputize.doors.cli.servers_told import servers_told
from deputize.doors.server import serve
from deputize.govern.identity.development import development_issuer
from deputize.lifecycle.gateway import Gateway
from deputize.store.local import LocalPostgres, LocalPostgresError
from deputize.store.migrate import newest_revision

_EFFECTS = ("read", "write", "destructive")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_DRAIN_SECONDS = 1.0


def run(open_gateway: OpenGateway, settings: Settings, port: int | None) -> None:
    """Start in order, serve, stop in reverse, whatever happens in between."""
    make_folder(settings.folder)
    configure_logs(settings.telemetry)
    with alone(settings.folder), _stopping_is_orderly(settings.folder):
        _require_free(settings, port)
        with _database(settings) as dsn:
            settings = _with_database(settings, dsn)
            _migrate(dsn)
            loaded = load(settings, Path.cwd())
            # Chosen last: while the database started, somebody may have taken a port that was free before.
            settings = _with_address(_with_ports(_with_identity(settings, loaded), port))
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_serve(open_gateway, settings, loaded))


@contextmanager
def _stopping_is_orderly(folder: Path) -> Iterator[None]:
    """SIGTERM ends like Ctrl-C, with everything that was started ended before the last line is printed."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        # It may land between the making of a coroutine and its first step, or inside the making of an event loop: of
        # what is thrown away half made nobody needs to be told.
        warnings.simplefilter("ignore", RuntimeWarning)
        sys.unraisablehook = lambda _: None
        raise KeyboardInterrupt

    for each in _SIGNALS:
        signal.signal(each, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        _event("stopped", {}, "stopped before it was ready; nothing is left running")
    else:
        _event("stopped", {}, f"stopped; keys and data stay in {folder} for the next time")


@contextmanager
def _database(settings: Settings) -> Iterator[str]:
    """The database the settings name, or a real one of this project's own, ended with the gateway."""
    configured = database.direct_dsn(settings)
    if configured is not None:
        place = database.address(configured)
        database.revision_of(configured)
        _event("postgres", {"address": place, "local": False}, f"PostgreSQL at {place}")
        yield configured
        return
    server = LocalPostgres(settings.folder)
    with ExitStack() as stack:
        stack.callback(_end, server)
        with printer.progress("starting PostgreSQL …"):
            try:
                server.start()
            except LocalPostgresError as error:
                raise Misconfigured(str(error)) from error
        version = server.sql("show server_version").partition(" ")[0]
        facts = {"version": version, "local": True, "pid": server.pid, "adopted": server.adopted}
        told = f"PostgreSQL {version.partition('.')[0]} ready (local, ./{settings.folder})"
        _event("postgres", facts, told + (", left over from last time" if server.adopted else ""))
        yield server.dsn


def _end(server: LocalPostgres) -> None:
    """The lock of this folder is ours, so the server is too, even one that an earlier process left behind."""
    _ignore_signals()
    with printer.progress("stopping PostgreSQL …"):
        server.stop()


def _migrate(dsn: str) -> None:
    before, newest = database.revision_of(dsn), newest_revision()
    if before != newest:
        with printer.progress("preparing the schema …"):
            database.upgrade(dsn)
        told = f"schema {newest} made" if before is None else f"schema migrated: {before} → {newest}"
        _event("schema", {"from": before, "to": newest}, told)


def _require_free(settings: Settings, port: int | None) -> None:
    """A port that was asked for is taken or refused, before anything is started."""
    if port and not is_free(settings.server.host, port):
        raise Misconfigured(
            f"Port {port} is taken: end what listens there, or choose another with --port; --port 0 takes any."
        )


def _with_ports(settings: Settings, port: int | None) -> Settings:
    """A usual port that is taken gives way to the next free one, and says so."""
    server = settings.server
    chosen = free_port(server.host, server.port) if port is None else port
    if port is None and chosen != server.port:
        printer.warn(f"port {server.port} is taken, so {chosen} is used; --port chooses another")
    chosen = chosen or any_port(server.host)
    metrics = free_port(server.metrics_host, server.metrics_port, avoid=chosen)
    changed = server.model_copy(update={"port": chosen, "metrics_port": metrics})
    return settings.model_copy(update={"server": changed})


def _with_address(settings: Settings) -> Settings:
    """Tokens lent here name this very gateway, and policies know that nothing here is meant for good."""
    host = "127.0.0.1" if settings.server.host in ("0.0.0.0", "::", "") else settings.server.host
    address = f"http://[{host}]" if ":" in host else f"http://{host}"
    identity = settings.identity.model_copy(update={"public_url": f"{address}:{settings.server.port}"})
    return settings.model_copy(update={"identity": identity, "environment": "development"})


def _with_database(settings: Settings, dsn: str) -> Settings:
    if settings.database.url is not None:
        return settings
    return settings.model_copy(update={"database": settings.database.model_copy(update={"url": SecretStr(dsn)})})


def _with_identity(settings: Settings, loaded: Loaded) -> Settings:
    """The development issuer beside those of the settings, and a token of it for whoever sits here."""
    token, fresh = ensure_token(settings, loaded.tools)
    file = settings.folder / "token"
    if fresh:
        facts = {"token": token, "file": str(file)}
        _event("token", facts, f"signing key and dev token made (shown once, kept in {file})")
        printer.line(f"  {token}")
    issuers = (*settings.identity.issuers, development_issuer(settings.folder))
    return settings.model_copy(update={"identity": settings.identity.model_copy(update={"issuers": issuers})})


async def _serve(open_gateway: OpenGateway, settings: Settings, loaded: Loaded) -> None:
    stop, codes = asyncio.Event(), CodesTold()
    servers: list[dict[str, Any]] = []
    # From here on a signal is an event: one that comes while the gateway is being opened must not be lost.
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with ExitStack() as stack:

        def ready(url: str, metrics_url: str) -> None:
            if not stop.is_set():
                _tell_tools(loaded, settings)
                _tell_servers(servers)
                stack.enter_context(announced(settings.folder, Running(url=url, pid=os.getpid())))
                _tell_ready(url, metrics_url, loaded)
                codes.ready()

        await serve(lambda: _opened(open_gateway, settings, loaded, codes, servers), settings, ready, stop=stop)


@asynccontextmanager
async def _opened(
    open_gateway: OpenGateway, settings: Settings, loaded: Loaded, codes: CodesTold, servers: list[dict[str, Any]]
) -> AsyncIterator[Gateway]:
    # Whoever presses Ctrl-C here does not want to wait for a run: it goes on when the project is started again.
    runs = settings.runs.model_copy(update={"drain_seconds": min(settings.runs.drain_seconds, _DRAIN_SECONDS)})
    settings = settings.model_copy(update={"runs": runs})
    async with opened(open_gateway, settings, loaded, development=True, worker=True, tell_code=codes) as gateway:
        try:
            servers.extend(await gateway.servers.of_the_process())
            yield gateway
        finally:
            _ignore_signals()


def _ignore_signals() -> None:
    """Once the end has begun, nothing cuts it short: a database left behind is worse than a second of waiting."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _tell_tools(loaded: Loaded, settings: Settings) -> None:
    by_file: dict[str, Counter[str]] = {}
    for tool in loaded.tools:
        by_file.setdefault(loaded.file_of(tool.contract), Counter())[tool.contract.effects.value] += 1
    for file, effects in by_file.items():
        kinds = ", ".join(f"{effects[kind]} {kind}" for kind in _EFFECTS if effects[kind])
        _event("tools", {"file": file, **effects}, f"{counted(effects.total(), 'tool')} from {file}: {kinds}")
    for hook in loaded.hooks:
        facts = {"name": hook.name, "moment": hook.moment, "tools": hook.tools, "file": hook.file}
        _event("hook", facts, f"hook {hook.name} from {hook.file}: {hook.moment} {hook.tools}")
    for name, known, told in rules_told(settings):
        _event(name, known, told)
    if not by_file and not settings.servers:
        printer.warn("no tools yet: write a function with @tool in tools/, or see deputize init in an empty folder")
    if printer.as_json:
        for each in loaded.refusals:
            printer.json({"event": "refused", "what": each.what, "file": each.file, "reasons": each.reasons})
    show_refusals(loaded.refusals)


def _tell_servers(servers: list[dict[str, Any]]) -> None:
    for well, (name, facts, told) in servers_told(servers):
        if well:
            _event(name, facts, told)
            continue
        if printer.as_json:
            printer.json({"event": name, **facts})
        printer.warn(told)


def _tell_ready(url: str, metrics_url: str, loaded: Loaded) -> None:
    facts = {
        "url": url,
        "rest": f"{url}/v1",
        "mcp": f"{url}/mcp",
        "docs": f"{url}/docs",
        "metrics": f"{metrics_url}/metrics",
        "pid": os.getpid(),
    }
    if printer.as_json:
        printer.json({"event": "ready", **facts})
        return
    go = mark(GO, sys.stdout)
    printer.line(f"{go} REST {facts['rest']}   JSON-RPC {url}/rpc   docs {facts['docs']}   metrics {facts['metrics']}")
    printer.line(f"{go} MCP  {facts['mcp']}   for clients that start programs: deputize mcp")
    if any(tool.contract.full_name == "hello.greet" for tool in loaded.tools):
        printer.line("  try in a second terminal, in this folder: deputize call hello.greet name=Ana")
    printer.line("  Ctrl-C stops everything")


def _event(name: str, facts: dict[str, Any], told: str) -> None:
    if printer.as_json:
        printer.json({"event": name, **facts})
    printer.good(told)
