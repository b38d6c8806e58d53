"""Define how callbacks are delivered: `[webhooks]`."""

from pydantic import Field

from deputize.core.settings.base import SettingsSection


class WebhookSettings(SettingsSection):
    """Delivery of webhooks."""

    hosts: tuple[str, ...] = Field(
        (),
        description="Hosts that may be called over http, at private addresses, and with results. All others need "
        "https and a public address, and get no results.",
    )
    seconds: float = Field(10.0, gt=0, le=60, description="Timeout of one delivery.")
    retry_seconds: float = Field(
        5.0, ge=0.05, le=3600, description="Pause before the second attempt; each further pause is four times as long."
    )
    attempts: int = Field(8, ge=1, le=30, description="Attempts before a delivery becomes a dead letter.")
