"""Define which policies decide about calls: `[policy]`."""

from typing import Literal

from pydantic import Field, SecretStr

from deputize.core.settings.base import SettingsSection


class PolicySettings(SettingsSection):
    """Cedar policies and the remote decision point."""

    files: tuple[str, ...] = Field(
        (),
        description="Cedar files, as globs, activated at start. Unset, the last active policies, or the default set.",
    )
    engine: Literal["cedar", "authzen", "both"] = Field(
        "cedar", description="What decides: the Cedar policies, an AuthZEN decision point, or the stricter of both."
    )
    authzen_url: str | None = Field(None, description="Base URL of the AuthZEN decision point.")
    authzen_token: SecretStr | None = Field(None, description="Bearer token for the decision point.")
    authzen_seconds: float = Field(
        1.0, gt=0, le=30, description="Timeout of the decision point; without its answer calls are denied."
    )
