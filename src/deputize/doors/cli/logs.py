"""Log lines of a serving process: to stderr, as text or JSON, from the level the settings name."""

import logging
import sys

import structlog

from deputize.core.settings import Telemetry

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logs(telemetry: Telemetry) -> None:
    level = _LEVELS[telemetry.log_level]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[structlog.typing.Processor]
    if telemetry.log_json:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # The usual formatter shows local variables, arguments and tokens among them, and takes seconds to do it.
        plain = structlog.dev.plain_traceback
        last = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        stream=sys.stderr, level=max(level, logging.WARNING), format="%(levelname)s %(name)s %(message)s"
    )
