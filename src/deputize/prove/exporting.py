"""Where spans go, for gateways whose settings name a place. Above: `app.py`. Beside it: `tracing.py` makes them."""

import contextlib
import importlib

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer

from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Telemetry


def exporting(telemetry: Telemetry, release: str, stack: contextlib.AsyncExitStack) -> Tracer | None:
    """A tracer that exports, where the settings say to; without one, calls still carry their trace ids on."""
    if telemetry.otlp_endpoint is None:
        return None
    provider = TracerProvider(resource=Resource.create({"service.name": "deputize", "service.version": release}))
    provider.add_span_processor(_exporter(telemetry.otlp_endpoint))
    stack.callback(provider.shutdown)
    return provider.get_tracer("deputize", release)


def _exporter(endpoint: str) -> BatchSpanProcessor:
    try:
        otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError:
        raise Misconfigured(
            "telemetry.otlp_endpoint is set, but the exporter is not installed: pip install 'deputize[otlp]'."
        ) from None
    return BatchSpanProcessor(otlp.OTLPSpanExporter(endpoint=endpoint))
