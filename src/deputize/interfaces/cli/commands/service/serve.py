"""Define `deputize serve`: run the gateway in production, on the operator's database, issuers and keys."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import structlog
import uvloop

from deputize.core.config_error import ConfigError
from deputize.core.errors import Problem
from deputize.core.settings import Settings
from deputize.interfaces.cli.project import database
from deputize.interfaces.cli.project.dev_tokens import require_real_issuers
from deputize.interfaces.cli.project.logs import configure_logs
from deputize.interfaces.cli.project.process_protection import protect_process
from deputize.interfaces.cli.project.startup_events import describe_rules
from deputize.interfaces.cli.project.tool_loader import (
    OpenGateway,
    ProjectTools,
    load_project,
    open_project_gateway,
    print_refusals,
)
from deputize.interfaces.cli.render.output import EXIT_USAGE, GO, CommandExit, format_count, printer, style_sign
from deputize.interfaces.server import serve
from deputize.operations.gateway import Gateway

# Pauses between attempts to open a gateway after its database dropped a connection.
_RETRY_DELAYS: Final = (1.0, 3.0)
log = structlog.get_logger(__name__)


def run_server(open_gateway: OpenGateway, settings: Settings) -> None:
    """Check the settings and the schema, then serve until a signal arrives."""
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
        runner.run(
            serve(
                lambda: open_strict_gateway(open_gateway, settings, project_tools, dsn),
                settings,
                _make_ready_printer(project_tools, settings),
            )
        )


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


def _make_ready_printer(project_tools: ProjectTools, settings: Settings) -> Callable[[str, str], None]:
    def print_ready(url: str, metrics_url: str) -> None:
        if printer.as_json:
            printer.json(
                {
                    "event": "ready",
                    "url": url,
                    "mcp": f"{url}/mcp",
                    "metrics": f"{metrics_url}/metrics",
                    "tools": len(project_tools.tools),
                }
            )
            return
        printer.success(f"{format_count(len(project_tools.tools), 'tool')} from files")
        for _, _, message in describe_rules(settings):
            printer.success(message)
        printer.line(
            f"{style_sign(GO, sys.stdout)} REST {url}/v1   MCP {url}/mcp   docs {url}/docs   metrics "
            f"{metrics_url}/metrics"
        )

    return print_ready
