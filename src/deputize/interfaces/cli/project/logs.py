"""Configure the logs of a serving process: on stderr, as text or JSON, from the level of the settings."""

import logging
import sys

import structlog

from deputize.core.sensitive.text import redact_secrets
from deputize.core.settings import TelemetrySettings

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logs(telemetry: TelemetrySettings) -> None:
    """Configure structlog and the standard library's logging."""
    level = _LEVELS[telemetry.log_level]
    common_processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    final_processors: list[structlog.typing.Processor]
    if telemetry.log_json:
        final_processors = [structlog.processors.format_exc_info, _redact_texts, structlog.processors.JSONRenderer()]
    else:
        # The default formatter prints local variables, which may hold arguments and tokens, and takes seconds.
        final_processors = [
            structlog.processors.format_exc_info,
            _redact_texts,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    structlog.configure(
        processors=[*common_processors, *final_processors],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        stream=sys.stderr, level=max(level, logging.WARNING), format="%(levelname)s %(name)s %(message)s"
    )


def _redact_texts(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Redact secrets in reasons and tracebacks, which may quote what a tool or a server said."""
    for name in ("reason", "exception"):
        text = event.get(name)
        if isinstance(text, str):
            event[name] = redact_secrets(text)
    return event
