"""Configure the logs of a serving process: on stderr, as text or JSON, from the level of the settings."""

import logging
import sys

import structlog

from deputize.core.sensitive.text import redact_text, redact_texts
from deputize.core.settings import TelemetrySettings

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
# Written by this code alone.
_OWN_FIELDS = frozenset({"level", "timestamp", "call_id", "trace_id"})


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
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter("%(levelname)s %(name)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING))


def _redact_texts(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Redact every text of an event: it may quote what a caller, a tool or a server said."""
    for name, value in event.items():
        if isinstance(value, str) and name not in _OWN_FIELDS:
            event[name] = redact_text(value)
        elif isinstance(value, dict | list | tuple):
            event[name] = redact_texts(value, redact_text)
        elif isinstance(value, BaseException):
            event[name] = redact_text(str(value))
    return event


class RedactingFormatter(logging.Formatter):
    """Formats records of libraries, with their tracebacks, as redacted text."""

    def format(self, record: logging.LogRecord) -> str:
        return redact_text(super().format(record))
