"""Define `deputize dev`: start everything a project needs on one machine, and stop it all with Ctrl-C.

It starts PostgreSQL, the schema, keys, a token, the tools, the API and the metrics.
"""

import asyncio
import os
import signal
import sys
import threading
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop
from pydantic import SecretStr

from deputize.core.config_error import ConfigError
from deputize.core.settings import ServiceSettings, Settings
from deputize.interfaces.cli.local.database import locate_local_lineage
from deputize.interfaces.cli.local.dev_environment import (
    DEV_ENVIRONMENT,
    DatabaseLock,
    announce_gateway,
    claim_database,
    find_free_port,
    hold_dev_lock,
    is_port_free,
    make_folder,
    pick_free_port,
    publish_agent_token,
)
from deputize.interfaces.cli.local.dev_tokens import add_dev_issuer, ensure_tokens, print_tokens
from deputize.interfaces.cli.local.edit_loop.confirmed_settings import choose_settings, record_settings
from deputize.interfaces.cli.local.edit_loop.edit_messages import print_authority_changes, print_not_watching
from deputize.interfaces.cli.local.edit_loop.loop import EditLoop
from deputize.interfaces.cli.local.local_database import prepare_schema, provide_database
from deputize.interfaces.cli.local.logs import configure_logs
from deputize.interfaces.cli.local.project_file import AGENT_TOKEN_FILE, TOKEN_FILE, TOUR_FILE, DevGateway
from deputize.interfaces.cli.local.project_gateway import OpenGateway, load_project, open_project_gateway
from deputize.interfaces.cli.local.startup_events import StartupEvent, describe_rules, describe_servers
from deputize.interfaces.cli.local.tool_loader import ProjectTools, print_gaps, print_refusals
from deputize.interfaces.cli.render.approval_codes import ApprovalCodePrinter
from deputize.interfaces.cli.render.call_lines import CallLinePrinter
from deputize.interfaces.cli.render.output import GO, format_count, printer, style_sign
from deputize.interfaces.cli.render.tool_errors import ToolErrorPrinter
from deputize.interfaces.server import ListenUrls, serve
from deputize.operations.gateway import Gateway

_EFFECTS = ("read", "write", "destructive")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_DRAIN_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _DevSession:
    """What one development gateway is opened with."""

    open_gateway: OpenGateway
    settings: Settings
    # As the files and the environment say them, before this command added its own.
    file_settings: Settings
    project_tools: ProjectTools
    lock: DatabaseLock
    client_folder: Path | None
    is_quiet: bool
    # Whether what changes authority since the last start waits for a person.
    holds_changes: bool
    # Written into the state folder once the gateway is ready.
    settings_to_record: bytes | None
    # Set together with `stop`, if the gateway shall be started anew.
    restart: threading.Event
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    code_printer: ApprovalCodePrinter = field(default_factory=ApprovalCodePrinter)
    # The rules and servers as they were when the gateway had opened.
    rules: list[StartupEvent] = field(default_factory=list)
    servers: list[dict[str, Any]] = field(default_factory=list)
    console_links: "_ConsoleLinks" = field(default_factory=lambda: _ConsoleLinks())


class _ConsoleLinks:
    """Links that sign in to the console: the first is printed with the addresses, each further one when it is made."""

    def __init__(self) -> None:
        self.first = ""

    def show_link(self, link: str) -> None:
        if not self.first:
            self.first = link
        elif printer.as_json:
            printer.json({"event": "console_link", "url": link})
        else:
            printer.line(f"  The console's link was used. The next one: {link}")


def run_development(
    open_gateway: OpenGateway,
    settings: Settings,
    port: int | None,
    client_folder: Path | None = None,
    *,
    is_quiet: bool = False,
    is_confirmed: bool = False,
) -> None:
    """Start everything in order, serve, and stop in reverse order, even after a failure.

    With `client_folder`, the gateway's address and the token for agents are also written there, for another user.
    `is_quiet` leaves the line for each call out. With `is_confirmed`, nothing is asked about the files.
    """
    make_folder(settings.folder)
    configure_logs(settings.telemetry)
    restart = threading.Event()
    with hold_dev_lock(settings.folder), _shut_down_gracefully(settings.folder, restart):
        # Another user's copy of the project was confirmed as a whole.
        start = None if client_folder else choose_settings(settings.folder, is_confirmed=is_confirmed)
        file_settings = settings = start.settings if start else settings
        _require_free_port(settings, port)
        locks: list[DatabaseLock] = []
        with (
            # One event loop from here on: the connection that holds the database's lock belongs to it.
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            provide_database(
                settings, lambda dsn: locks.append(runner.run(claim_database(dsn))), before_stop=_ignore_signals
            ) as dsn,
        ):
            settings = _set_database(settings, dsn).model_copy(update={"environment": DEV_ENVIRONMENT})
            prepare_schema(dsn)
            # The tools of sandboxes ask the environment what limits are enough.
            project_tools = load_project(settings, Path.cwd(), admits_drafts=True)
            _provide_tokens(settings, project_tools, client_folder)
            # Chosen last: another process may have taken a free port while the database started.
            settings = _set_public_url(_set_ports(add_dev_issuer(settings), port))
            session = _DevSession(
                open_gateway=open_gateway,
                settings=settings,
                file_settings=file_settings,
                project_tools=project_tools,
                lock=locks[0],
                client_folder=client_folder,
                is_quiet=is_quiet,
                holds_changes=start is not None and not is_confirmed,
                settings_to_record=start.content_to_record if start else None,
                restart=restart,
            )
            runner.run(_serve_api(session))
    if restart.is_set():
        # The same command in the same process: nothing of the old settings and modules is left.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


@contextmanager
def _shut_down_gracefully(folder: Path, restart: threading.Event) -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, and print the last line only after everything has stopped."""

    def raise_interrupt(number: int, frame: FrameType | None) -> None:
        # The signal may arrive while a coroutine or an event loop is being created; warnings about such
        # half-made objects are of no use.
        warnings.simplefilter("ignore", RuntimeWarning)
        sys.unraisablehook = lambda _: None
        raise KeyboardInterrupt

    for each in _SIGNALS:
        signal.signal(each, raise_interrupt)
    try:
        yield
    except KeyboardInterrupt:
        printer.event("stopped", {}, "Stopped before startup finished. Nothing is left running.")
    else:
        is_restart = restart.is_set()
        printer.event(
            "restarting" if is_restart else "stopped",
            {},
            "Restarting with the new settings." if is_restart else f"Stopped. Keys and data are kept in {folder}.",
        )


def _require_free_port(settings: Settings, port: int | None) -> None:
    """Refuse a port given with --port that is in use, before anything is started."""
    if port and not is_port_free(settings.server.host, port):
        raise ConfigError(
            f"Port {port} is in use: stop the process that listens there, or choose another port with --port; "
            "--port 0 picks a free one."
        )


def _set_ports(settings: Settings, port: int | None) -> Settings:
    """Replace a configured port that is in use by the next free one, and print that."""
    server = settings.server
    api_port = find_free_port(server.host, server.port) if port is None else port
    if port is None and api_port != server.port:
        printer.warn(f"Port {server.port} is in use; using {api_port}. Choose another with --port.")
    api_port = api_port or pick_free_port(server.host)
    first_metrics_port = server.model_copy(update={"port": api_port}).get_metrics_port()
    metrics_port = find_free_port(server.metrics_host, first_metrics_port, avoid=api_port)
    server_settings = server.model_copy(update={"port": api_port, "metrics_port": metrics_port})
    return settings.model_copy(update={"server": server_settings})


def _set_public_url(settings: Settings) -> Settings:
    """Set the URL that delegated tokens name."""
    host = "127.0.0.1" if settings.server.host in ("0.0.0.0", "::", "") else settings.server.host
    address = f"http://[{host}]" if ":" in host else f"http://{host}"
    identity = settings.identity.model_copy(update={"public_url": f"{address}:{settings.server.port}"})
    return settings.model_copy(update={"identity": identity})


def _set_database(settings: Settings, dsn: str) -> Settings:
    if settings.database.url is not None:
        return settings
    # What is remembered of it is apart from what `deputize serve` remembers of its own database.
    changes = {"url": SecretStr(dsn), "lineage_folder": locate_local_lineage(settings.folder)}
    return settings.model_copy(update={"database": settings.database.model_copy(update=changes)})


def _provide_tokens(settings: Settings, project_tools: ProjectTools, client_folder: Path | None) -> None:
    """Create the project's tokens if needed, and say where they are."""
    tokens = ensure_tokens(settings, project_tools.tools)
    agent_file = settings.folder / AGENT_TOKEN_FILE
    if client_folder is not None:
        agent_file = publish_agent_token(client_folder, tokens.agent)
    print_tokens(tokens, settings.folder / TOKEN_FILE, agent_file)


async def _serve_api(session: _DevSession) -> None:
    stop, settings, project_tools = session.stop, session.settings, session.project_tools
    # From here on a signal sets an event, so that one that arrives while the gateway opens is not lost.
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # The terminal was closed: no person can see this gateway any more, or answer it.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, stop.set)
    with ExitStack() as stack:

        def on_ready(urls: ListenUrls) -> None:
            if not stop.is_set():
                _print_services(settings.services)
                _print_tools(project_tools, session.rules, has_servers=bool(settings.servers or settings.services))
                _print_servers(session.servers)
                dev_gateway = DevGateway(url=urls.api, pid=os.getpid())
                stack.enter_context(announce_gateway(settings.folder, dev_gateway, session.client_folder))
                _print_ready(urls, project_tools, session.console_links.first)
                session.code_printer.flush()
                session.ready.set()

        await serve(lambda: _open_dev_gateway(session), settings, on_ready, stop=stop)


@asynccontextmanager
async def _open_dev_gateway(session: _DevSession) -> AsyncIterator[Gateway]:
    settings, lock = session.settings, session.lock
    # Ctrl-C should not wait for a run, which continues when the project is started again.
    runs = settings.runs.model_copy(update={"drain_seconds": min(settings.runs.drain_seconds, _DRAIN_SECONDS)})
    settings = settings.model_copy(update={"runs": runs})
    async with open_project_gateway(
        session.open_gateway,
        settings,
        session.project_tools,
        development=True,
        worker=True,
        show_code=session.code_printer,
        instance_lock=lock,
        show_confirmation=session.code_printer.show_confirmation,
        report_call=CallLinePrinter(is_quiet=session.is_quiet),
        report_tool_error=ToolErrorPrinter(Path.cwd()),
        replaces_versions=True,
        holds_changes=session.holds_changes,
    ) as gateway:
        if gateway.project_edits is not None:
            await gateway.project_edits.hide_removed_tools(session.project_tools.tools, {})
        if session.settings_to_record is not None:
            record_settings(settings.folder, session.settings_to_record)
        watcher = asyncio.create_task(_watch_lock(lock, gateway, session.stop), name="instance lock")
        edits = asyncio.create_task(_follow_edits(session, gateway), name="edit loop")
        try:
            session.rules.extend(describe_rules(settings, are_policies_held=_are_policies_held(gateway)))
            session.servers.extend(await gateway.servers.list_all_servers())
            # Programs of the other user could read the session from their browser, and have no such token.
            if session.client_folder is None:
                gateway.console_access.offer_link(session.console_links.show_link)
                gateway.console_access.follow_tour(settings.folder / TOUR_FILE)
            yield gateway
        finally:
            _ignore_signals()
            session.stop.set()
            session.ready.set()
            await edits
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher


def _are_policies_held(gateway: Gateway) -> bool:
    return gateway.project_edits is not None and gateway.project_edits.holds_policies


async def _follow_edits(session: _DevSession, gateway: Gateway) -> None:
    """Take over edited files, once the first lines are printed. Another user's copy of the project is not edited."""
    await session.ready.wait()
    if session.stop.is_set() or gateway.project_edits is None:
        return
    if session.client_folder is not None:
        print_not_watching("the gateway runs a copy of the project that you confirmed")
        return

    def restart() -> None:
        session.restart.set()
        session.stop.set()

    print_authority_changes(gateway.project_edits.authority_changes)
    loop = EditLoop(session.file_settings, session.project_tools, gateway.project_edits, Path.cwd(), restart)
    await loop.run(session.stop)


async def _watch_lock(lock: DatabaseLock, gateway: Gateway, stop: asyncio.Event) -> None:
    """Stop when another development gateway took over the database: two must not show approval codes."""
    await lock.keep(gateway.show_open_codes)
    printer.error(
        f"Another deputize dev (process {lock.holder or 'unknown'}) took over this database while the connection was "
        "lost, so this one stops. Only one may show approval codes."
    )
    stop.set()


def _ignore_signals() -> None:
    """Ignore further signals while stopping: a database left running is worse than waiting a second."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _print_services(services: Sequence[ServiceSettings]) -> None:
    for service in services:
        place = f" at {service.url}" if service.url else ""
        facts = {"name": service.name, "document": str(service.document), "url": service.url}
        printer.event("service", facts, f"service {service.name} from {service.document}{place}")


def _print_tools(project_tools: ProjectTools, rules: Sequence[StartupEvent], *, has_servers: bool) -> None:
    by_file: dict[str, Counter[str]] = {}
    for tool in project_tools.tools:
        by_file.setdefault(project_tools.find_file(tool.contract), Counter())[tool.contract.effects.value] += 1
    for file, effects in by_file.items():
        kinds = ", ".join(f"{effects[kind]} {kind}" for kind in _EFFECTS if effects[kind])
        printer.event(
            "tools", {"file": file, **effects}, f"{format_count(effects.total(), 'tool')} from {file}: {kinds}"
        )
    for hook in project_tools.hooks:
        facts = {"name": hook.name, "moment": hook.moment, "tools": hook.tools, "file": hook.file}
        printer.event("hook", facts, f"hook {hook.name} from {hook.file}: {hook.moment} {hook.tools}")
    for name, event_facts, message in rules:
        printer.event(name, event_facts, message)
    if not by_file and not has_servers:
        printer.warn("No tools loaded: write a function with @tool in tools/. For an example, see deputize init.")
    print_gaps(project_tools.gaps)
    print_refusals(project_tools.refusals, "was not registered")


def _print_servers(servers: list[dict[str, Any]]) -> None:
    for is_ok, (name, facts, message) in describe_servers(servers):
        if is_ok:
            printer.event(name, facts, message)
            continue
        if printer.as_json:
            printer.json({"event": name, **facts})
        printer.warn(message)


def _print_ready(urls: ListenUrls, project_tools: ProjectTools, console_link: str) -> None:
    url = urls.api
    facts = {
        "url": url,
        "rest": f"{url}/v1",
        "mcp": f"{url}/mcp",
        "docs": f"{url}/docs",
        "metrics": f"{urls.metrics}/metrics",
        "pid": os.getpid(),
    }
    if urls.grpc is not None:
        facts["grpc"] = urls.grpc
    if console_link:
        facts["console"] = console_link
    if printer.as_json:
        printer.json({"event": "ready", **facts})
        return
    go = style_sign(GO, sys.stdout)
    printer.line(f"{go} REST {facts['rest']}   JSON-RPC {url}/rpc   docs {facts['docs']}   metrics {facts['metrics']}")
    printer.line(f"{go} MCP  {facts['mcp']}   for clients that use stdio: deputize mcp")
    if urls.grpc is not None:
        printer.line(f"{go} gRPC {urls.grpc}")
    if console_link:
        printer.line(f"{go} Console {console_link}   signs you in, once")
    if any(tool.contract.full_name == "hello.greet" for tool in project_tools.tools):
        printer.line("  Try it in a second terminal, in this folder: deputize call hello.greet name=Ana")
    printer.line("  Press Ctrl-C to stop everything.")
