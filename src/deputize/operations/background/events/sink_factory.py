"""Open the sink that the settings name; the client of NATS is an extra."""

import importlib

from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.settings import EventSinkSettings
from deputize.operations.background.events.sink import EventSink
from deputize.operations.background.events.webhook_sink import WebhookSink
from deputize.store.keys import TenantKeys


def open_sink(settings: EventSinkSettings, keys: TenantKeys, clock: Clock) -> EventSink:
    """Open a sink; it connects when there is something to send."""
    if settings.kind == "webhook":
        return WebhookSink(settings, keys, clock)
    try:
        module = importlib.import_module("deputize.operations.background.events.nats_sink")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"The event sink {settings.name} needs the NATS client, which is not installed. "
            "Run: pip install 'deputize[nats]'."
        ) from error
    sink: EventSink = module.NatsSink(settings)
    return sink
