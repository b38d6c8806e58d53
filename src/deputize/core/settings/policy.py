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
    approvals: int = Field(
        1,
        ge=1,
        le=2,
        description="How many different operators a change of policies needs. With 2, the first proposes it, and it "
        "becomes active when another one confirms exactly the same set within a day. Files that are activated at start "
        "need no second one.",
    )
    engine: Literal["cedar", "authzen", "both"] = Field(
        "cedar", description="What decides: the Cedar policies, an AuthZEN decision point, or the stricter of both."
    )
    authzen_url: str | None = Field(None, description="Base URL of the AuthZEN decision point.")
    authzen_token: SecretStr | None = Field(None, description="Bearer token for the decision point.")
    authzen_seconds: float = Field(
        1.0, gt=0, le=30, description="Timeout of the decision point; without its answer calls are denied."
    )
