"""`deputize serve`: the gateway in production. Invents nothing: database, issuers and keys are the operator's."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import structlog
import uvloop

from deputize.core.errors import Problem
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Settings
from deputize.doors.cli import database
from deputize.doors.cli.development import show_refusals
from deputize.doors.cli.loading import Loaded, OpenGateway, load, opened
from deputize.doors.cli.logs import configure_logs
from deputize.doors.cli.output import GO, MISUSED, Stopped, counted, mark, printer
from deputize.doors.cli.rules_told import rules_told
from deputize.doors.server import serve
from deputize.govern.identity.development import refuse_development_issuers
from deputize.lifecycle.gateway import Gateway
from deputize.store.migrate import newest_revision

# Between tries to open a gateway whose database answered a moment before.
_PAUSES: Final = (1.0, 3.0)
log = structlog.get_logger(__name__)


def run(open_gateway: OpenGateway, settings: Settings) -> None:
    refuse_development_issuers(settings)
    if settings.database.url is None:
        raise Misconfigured(
            "No database is set: put url under [database] in deputize.toml, or set DEPUTIZE_DATABASE__URL. "
            "For a database that starts by itself, use deputize dev."
        )
    if not settings.identity.issuers:
        raise Misconfigured(
            "Nobody could call this gateway: list your identity provider under [[identity.issuers]] in deputize.toml."
        )
    configure_logs(settings.telemetry)
    dsn = settings.database.url.get_secret_value()
    require_current(database.direct_dsn(settings) or dsn)
    loaded = load(settings, Path.cwd())
    require_all(loaded)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(
            serve(lambda: strictly_opened(open_gateway, settings, loaded, dsn), settings, _telling(loaded, settings))
        )


def require_all(loaded: Loaded) -> None:
    """In production a tool that cannot be had stops the start, while those who still serve go on serving."""
    if not loaded.refusals:
        return
    for each in loaded.refusals if printer.as_json else ():
        printer.json({"event": "refused", "what": each.what, "file": each.file, "reasons": each.reasons})
    show_refusals(loaded.refusals, "cannot be registered")
    printer.aside("  nothing was started: mend these, or take the files out of [tools]")
    raise Stopped(MISUSED)


def require_current(dsn: str) -> None:
    now, newest = database.revision_of(dsn), newest_revision()
    if now is None or now < newest:
        raise Misconfigured(
            f"The schema at {database.address(dsn)} is {now or 'empty'}, this release needs {newest}: "
            "run deputize migrate first."
        )


@contextlib.asynccontextmanager
async def strictly_opened(
    open_gateway: OpenGateway, settings: Settings, loaded: Loaded, dsn: str, *, worker: bool = False
) -> AsyncIterator[Gateway]:
    """Tries again where the database, there a moment ago, cuts a connection; says why where that is no use."""
    async with contextlib.AsyncExitStack() as stack:
        for pause in (*_PAUSES, None):
            try:
                opening = opened(open_gateway, settings, loaded, development=False, worker=worker)
                gateway = await stack.enter_async_context(opening)
                break
            except Problem as problem:
                told = f"{problem.message[:1].upper()}{problem.message[1:]}. {problem.advice}"
                raise Misconfigured(told) from problem
            except database.UNREACHABLE as error:
                if pause is None:
                    raise database.explain(error, dsn) from error
                log.warning("start_interrupted", reason=repr(error), again_in_seconds=pause)
                await asyncio.sleep(pause)
        require_all(loaded)
        yield gateway


def _telling(loaded: Loaded, settings: Settings) -> Callable[[str, str], None]:
    def tell(url: str, metrics_url: str) -> None:
        if printer.as_json:
            printer.json(
                {
                    "event": "ready",
                    "url": url,
                    "mcp": f"{url}/mcp",
                    "metrics": f"{metrics_url}/metrics",
                    "tools": len(loaded.tools),
                }
            )
            return
        printer.good(f"{counted(len(loaded.tools), 'tool')} from files")
        for _, _, told in rules_told(settings):
            printer.good(told)
        printer.line(
            f"{mark(GO, sys.stdout)} REST {url}/v1   MCP {url}/mcp   docs {url}/docs   metrics {metrics_url}/metrics"
        )

    return tell
