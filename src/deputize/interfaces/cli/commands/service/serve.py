"""Define `deputize serve`: run the gateway in production, on the operator's database, issuers and keys."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import structlog
import uvloop

from deputize.core.config_error import ConfigError
from deputize.core.errors import Problem
from deputize.core.settings import ServerSettings, Settings
from deputize.interfaces.cli.local import database
from deputize.interfaces.cli.local.dev_tokens import require_real_issuers
from deputize.interfaces.cli.local.logs import configure_logs
from deputize.interfaces.cli.local.process_protection import protect_process
from deputize.interfaces.cli.local.project_gateway import OpenGateway, load_project, open_project_gateway
from deputize.interfaces.cli.local.startup_events import describe_rules
from deputize.interfaces.cli.local.tool_loader import ProjectTools, print_refusals
from deputize.interfaces.cli.render.output import EXIT_USAGE, GO, CommandExit, format_count, printer, style_sign
from deputize.interfaces.server import ListenUrls, serve
from deputize.operations.gateway import NO_WORKER, Gateway

# Pauses between attempts to open a gateway after its database dropped a connection.
_RETRY_DELAYS: Final = (1.0, 3.0)
log = structlog.get_logger(__name__)


def run_server(open_gateway: OpenGateway, settings: Settings, port: int | None, *, worker: bool) -> None:
    """Check the settings and the schema, then serve until a signal arrives; with `worker`, execute queued calls too."""
    if port is not None:
        settings = settings.model_copy(update={"server": settings.server.model_copy(update={"port": port})})
    require_real_issuers(settings)
    if settings.database.url is None:
        raise ConfigError(
            "No database is configured: set url under [database] in deputize.toml, or DEPUTIZE_DATABASE__URL. "
            "For a database that starts by itself, use deputize dev."
        )
    if not settings.identity.issuers:
        raise ConfigError(
            "No identity provider is configured, so every call would be refused: list yours under "
            "[[identity.issuers]] in deputize.toml."
        )
    configure_logs(settings.telemetry)
    dsn = settings.database.url.get_secret_value()
    direct_dsn = database.get_direct_dsn(settings) or dsn
    database.require_current_schema(direct_dsn)
    database.require_no_dev_gateway(direct_dsn)
    database.require_gateway_login(settings)
    database.require_prepared_statements(settings)
    settings = protect_process(settings)
    project_tools = load_project(settings, Path.cwd())
    require_no_refusals(project_tools)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_until_stopped(open_gateway, settings, project_tools, dsn, worker=worker))


async def _serve_until_stopped(
    open_gateway: OpenGateway, settings: Settings, project_tools: ProjectTools, dsn: str, *, worker: bool
) -> None:
    gateways: list[Gateway] = []

    @contextlib.asynccontextmanager
    async def open_served_gateway() -> AsyncIterator[Gateway]:
        async with open_strict_gateway(open_gateway, settings, project_tools, dsn, worker=worker) as gateway:
            gateways.append(gateway)
            yield gateway

    def on_ready(urls: ListenUrls) -> None:
        _print_ready(gateways[-1], project_tools, urls)

    await serve(open_served_gateway, settings, on_ready)


def require_no_refusals(project_tools: ProjectTools) -> None:
    """Stop the start if a tool cannot be registered, while gateways that already run keep serving."""
    if not project_tools.refusals:
        return
    print_refusals(project_tools.refusals, "cannot be registered")
    printer.note("  Nothing was started: fix these files, or remove them from [tools] in deputize.toml.")
    raise CommandExit(EXIT_USAGE)


@contextlib.asynccontextmanager
async def open_strict_gateway(
    open_gateway: OpenGateway,
    settings: Settings,
    project_tools: ProjectTools,
    dsn: str,
    *,
    worker: bool = False,
    applies_files: bool = True,
) -> AsyncIterator[Gateway]:
    """Open a gateway; retry when the database drops a connection, and refuse tools that cannot be registered."""
    async with contextlib.AsyncExitStack() as stack:
        for delay in (*_RETRY_DELAYS, None):
            try:
                gateway_context = open_project_gateway(
                    open_gateway,
                    settings,
                    project_tools,
                    development=False,
                    worker=worker,
                    applies_files=applies_files,
                )
                gateway = await stack.enter_async_context(gateway_context)
                break
            except Problem as problem:
                message = f"{problem.message[:1].upper()}{problem.message[1:]}. {problem.advice}"
                raise ConfigError(message) from problem
            except database.CONNECTION_ERRORS as error:
                if delay is None:
                    raise database.explain_error(error, dsn) from error
                log.warning("start_interrupted", reason=repr(error), again_in_seconds=delay)
                await asyncio.sleep(delay)
        require_no_refusals(project_tools)
        yield gateway


def _print_ready(gateway: Gateway, project_tools: ProjectTools, urls: ListenUrls) -> None:
    url, metrics_url = urls.api, urls.metrics
    settings, worker_count = gateway.settings, gateway.health.worker_count
    if printer.as_json:
        facts = {"url": url, "mcp": f"{url}/mcp", "metrics": f"{metrics_url}/metrics", "worker": gateway.has_worker}
        if urls.grpc is not None:
            facts["grpc"] = urls.grpc
        printer.json({"event": "ready", **facts, "workers": worker_count, "tools": len(project_tools.tools)})
        return
    printer.success(f"{format_count(len(project_tools.tools), 'tool')} from files")
    for _, _, message in describe_rules(settings):
        printer.success(message)
    if gateway.has_worker:
        printer.success(f"worker in this process: up to {format_count(settings.runs.at_once, 'queued call')} at once")
    elif worker_count:
        printer.success(f"{format_count(worker_count, 'worker')} in other processes")
    else:
        printer.warn(f"Workers: {NO_WORKER}.")
    if urls.grpc is not None:
        printer.success(f"gRPC on {urls.grpc}")
    warn_of_other_port(settings.server, metrics_url)
    printer.line(
        f"{style_sign(GO, sys.stdout)} REST {url}/v1   MCP {url}/mcp   docs {url}/docs   metrics {metrics_url}/metrics"
    )


def warn_of_other_port(server: ServerSettings, metrics_url: str) -> None:
    """Say that metrics and health are not on the port where monitoring looks for them, because it was in use."""
    first_port = server.get_metrics_port()
    if first_port and not metrics_url.endswith(f":{first_port}"):
        printer.warn(
            f"Port {first_port} is in use, so health and metrics are at {metrics_url}. To choose the port, set "
            "metrics_port under [server], or DEPUTIZE_SERVER__METRICS_PORT."
        )
