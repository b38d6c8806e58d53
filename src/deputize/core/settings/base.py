"""Define what every table of the settings is: frozen, every field described, unknown keys rejected."""

from pydantic import BaseModel, ConfigDict


class SettingsSection(BaseModel):
    """One table of `deputize.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
