"""Export spans to the collector that the settings name; `evidence/tracing.py` makes them."""

import contextlib
import importlib

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer

from deputize.core.config_error import ConfigError
from deputize.core.settings import TelemetrySettings
from deputize.evidence.tracing import CallTraceIds


def open_tracer(telemetry: TelemetrySettings, release: str, stack: contextlib.AsyncExitStack) -> Tracer | None:
    """Open a tracer that exports, or None if the settings name no collector; trace ids are propagated either way."""
    if telemetry.otlp_endpoint is None:
        return None
    resource = Resource.create({"service.name": "deputize", "service.version": release})
    provider = TracerProvider(resource=resource, id_generator=CallTraceIds())
    provider.add_span_processor(_make_span_processor(telemetry.otlp_endpoint))
    stack.callback(provider.shutdown)
    return provider.get_tracer("deputize", release)


def _make_span_processor(endpoint: str) -> BatchSpanProcessor:
    try:
        otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError:
        raise ConfigError(
            "telemetry.otlp_endpoint is set, but the exporter is not installed. Run: pip install 'deputize[otlp]'."
        ) from None
    return BatchSpanProcessor(otlp.OTLPSpanExporter(endpoint=endpoint))
