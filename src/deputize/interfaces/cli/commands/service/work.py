"""Define `deputize work`: execute queued calls, and serve only health and metrics.

It uses the database and keys of deputize.toml, like `deputize serve`; beside a `deputize dev` that is running for this
folder, those of that one, and its environment. It activates no policies and registers no tools: anybody who can read
the settings can start it, so it works with what is active and says where its files differ.
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

from deputize.core.config_error import ConfigError
from deputize.core.settings import Settings
from deputize.interfaces.cli.commands.service.serve import open_strict_gateway, require_no_refusals, warn_of_other_port
from deputize.interfaces.cli.local import database
from deputize.interfaces.cli.local.dev_environment import DEV_ENVIRONMENT
from deputize.interfaces.cli.local.dev_tokens import add_dev_issuer, require_real_issuers
from deputize.interfaces.cli.local.logs import configure_logs
from deputize.interfaces.cli.local.process_protection import protect_process
from deputize.interfaces.cli.local.project_file import find_dev_gateway
from deputize.interfaces.cli.local.project_gateway import OpenGateway, load_project, open_project_gateway
from deputize.interfaces.cli.local.tool_loader import ProjectTools, print_refusals
from deputize.interfaces.cli.render.output import GO, format_count, printer, style_sign
from deputize.interfaces.server import PORT_ATTEMPTS, serve_health
from deputize.operations.gateway import Gateway

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_worker(open_gateway: OpenGateway, settings: Settings, port: int | None) -> None:
    """Check the settings and the schema, then execute queued calls until a signal arrives."""
    configure_logs(settings.telemetry)
    configured_dsn = database.get_direct_dsn(settings)
    development = configured_dsn is None or (
        find_dev_gateway(settings.folder) is not None and database.has_dev_gateway(configured_dsn)
    )
    dsn = configured_dsn or database.find_local_dsn(settings.folder)
    if dsn is None:
        raise ConfigError(
            "No database is configured: set url under [database] in deputize.toml, or DEPUTIZE_DATABASE__URL. "
            "In development, start deputize dev first: it includes a worker, and this command adds another."
        )
    database.require_current_schema(dsn)
    if development:
        settings = use_dev_database(settings, dsn)
    else:
        require_real_issuers(settings)
        database.require_gateway_login(settings)
        database.require_prepared_statements(settings)
        settings = protect_process(settings)
    # The tools of sandboxes ask the environment what limits are enough.
    project_tools = load_project(settings, Path.cwd(), admits_drafts=development)
    if not development:
        require_no_refusals(project_tools)
    if port is not None:
        settings = settings.model_copy(update={"server": settings.server.model_copy(update={"metrics_port": port})})
    # A caller waits for the gateway, but not for a queued call: give the gateway the processor first.
    os.nice(settings.runs.nice)

    def open_worker_gateway() -> AbstractAsyncContextManager[Gateway]:
        if development:
            return open_project_gateway(
                open_gateway, settings, project_tools, development=True, worker=True, applies_files=False
            )
        return open_strict_gateway(open_gateway, settings, project_tools, dsn, worker=True, applies_files=False)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        # Another process of this host may use the settings' port; a port that was asked for is not replaced.
        attempts = PORT_ATTEMPTS if port is None else 1
        runner.run(_run_until_stopped(open_worker_gateway, settings, project_tools, attempts))


def use_dev_database(settings: Settings, dsn: str) -> Settings:
    """Use the database and environment of the running `deputize dev`, and trust the issuer of its callers."""
    database_settings = settings.database
    if database_settings.url is None:
        database_settings = database_settings.model_copy(update={"url": SecretStr(dsn)})
    changes = {"database": database_settings, "environment": DEV_ENVIRONMENT}
    return add_dev_issuer(settings).model_copy(update=changes)


async def _run_until_stopped(
    open_gateway: Any, settings: Settings, project_tools: ProjectTools, port_attempts: int
) -> None:
    stop = asyncio.Event()
    gateways: list[Gateway] = []

    def on_signal() -> None:
        if stop.is_set():
            message = "Stopped at once. Another worker takes over the unfinished calls when their leases expire."
            printer.event("left", {}, message)
            # A second signal must end the process, without waiting for anything.
            os._exit(1)
        stop.set()

    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, on_signal)

    def on_ready(gateway: Gateway, url: str) -> None:
        gateways.append(gateway)
        for difference in gateway.file_differences:
            printer.warn(difference)
        print_refusals(project_tools.refusals, "is not executed here")
        warn_of_other_port(settings.server, url)
        _print_ready(settings, project_tools, url)

    def on_stop(gateway: Gateway) -> None:
        run_count = gateway.active_run_count
        wait_text = f", waiting up to {settings.runs.drain_seconds:g} s for them" if run_count else ""
        message = f"Stopping: taking no new calls, {format_count(run_count, 'call')} still running{wait_text}."
        printer.event("stopping", {"carrying": run_count}, message)

    await serve_health(open_gateway, settings, on_ready, on_stop, stop=stop, attempts=port_attempts)
    _print_stopped(sum(each.unfinished_run_count for each in gateways))


def _print_ready(settings: Settings, project_tools: ProjectTools, url: str) -> None:
    concurrency = settings.runs.at_once
    if printer.as_json:
        facts = {"metrics": f"{url}/metrics", "healthz": f"{url}/healthz", "tools": len(project_tools.tools)}
        printer.json({"event": "ready", "at_once": concurrency, "pid": os.getpid(), **facts})
        return
    printer.success(f"{format_count(len(project_tools.tools), 'tool')} from files")
    message = (
        f"executing up to {format_count(concurrency, 'call')} at once   health {url}/healthz   metrics {url}/metrics"
    )
    printer.line(f"{style_sign(GO, sys.stdout)} {message}")
    printer.line("  Press Ctrl-C to stop. Queued calls then wait for another worker.")


def _print_stopped(unfinished_count: int) -> None:
    if unfinished_count:
        message = (
            f"Stopped with {format_count(unfinished_count, 'unfinished call')}. Another worker continues those that "
            "are safe to repeat; the outcome of the others is unknown until it is settled."
        )
    else:
        message = "Stopped. No call was interrupted; queued calls wait for another worker."
    printer.event("stopped", {"left": unfinished_count}, message)
