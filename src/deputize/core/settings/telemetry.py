"""Define traces and logs: `[telemetry]`."""

from typing import Literal

from pydantic import Field

from deputize.core.settings.base import SettingsSection


class TelemetrySettings(SettingsSection):
    """Traces and logs of this gateway."""

    trace_sample: float = Field(
        0.01, ge=0, le=1, description="Share of calls that are traced. Calls with a sampled `traceparent` always are."
    )
    otlp_endpoint: str | None = Field(
        None, description="Where spans are sent (OTLP over HTTP). Unset, they are not exported."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe level that is logged."
    )
    log_json: bool = Field(False, description="Log JSON lines instead of text.")
