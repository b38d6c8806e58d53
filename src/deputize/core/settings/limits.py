"""Define limits on calls: `[limits]` and `[[limits.rules]]`."""

from typing import Literal

from pydantic import Field, SecretStr

from deputize.core.settings.base import SettingsSection


class LimitRule(SettingsSection):
    """One limit. `per` says what has a counter of its own; with an empty `per`, a tenant has one counter."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_-]{0,47}$",
        description="Name of the limit in refusals: small letters, digits, `-` and `_`, a letter first.",
    )
    kind: Literal["rate", "concurrency", "budget", "repeats", "cost_rate"] = Field(
        description="What is limited: calls in a window, calls at once, cost in a period, equal calls in a window, or "
        "cost in a window."
    )
    limit: float = Field(gt=0, description="The most that is allowed.")
    seconds: float = Field(60.0, ge=1, le=31 * 86_400, description="Length of the window, or of the budget's period.")
    per: tuple[Literal["caller", "user", "agent", "tool", "provider", "session", "task"], ...] = Field(
        (), description="What has a counter of its own, within a tenant."
    )
    tenants: str = Field("*", description="Tenants it applies to, as a glob.")
    tools: str = Field("*", description="Tools it applies to, as a glob over full names.")
    when_lost: Literal["deny", "allow"] = Field("deny", description="What happens while the counters are unreachable.")


class LimitSettings(SettingsSection):
    """Limits, and where they are counted."""

    redis_url: SecretStr | None = Field(
        None, description="Redis with counters that replicas share. Unset, each process counts alone."
    )
    redis_seconds: float = Field(0.25, gt=0, le=5, description="Timeout of the counters.")
    approval_requests_per_hour: int = Field(
        300, ge=1, le=1_000_000, description="Approval requests that one user and their agents may open in an hour."
    )
    token_exchanges_per_minute: int = Field(
        300, ge=1, le=1_000_000, description="Token exchanges of one user and their agents in a minute."
    )
    failed_exchanges_per_minute: int = Field(
        60,
        ge=1,
        le=1_000_000,
        description="Exchanges with a token that is not accepted, from one client address in a minute, that are told "
        "why. Tokens that are accepted are never refused for it.",
    )
    backtests_at_once: int = Field(2, ge=1, le=100, description="Backtests that one tenant may run at the same time.")
    admin_acts_per_second: float = Field(
        20.0,
        gt=0,
        le=100_000,
        description="Most administrative acts of one tenant in a second, for each gateway, and half as many of one "
        "user. Revocations, kill switches and other acts by which operators take authority away are counted apart, "
        "with the same rate.",
    )
    admin_acts_at_once: int = Field(
        40, ge=1, le=100_000, description="Most administrative acts of one tenant after a pause."
    )
    retry_share: float = Field(
        0.2,
        ge=0,
        le=10,
        description="Most retries of one tenant's calls to one external service, as a share of these calls, in each "
        "gateway. Ten more are allowed after a quiet time, and one more in each second.",
    )
    service_calls_at_once: int = Field(
        50,
        ge=1,
        le=1000,
        description="Most calls of one tenant to one external service at once, in each gateway and worker, unless "
        "`service_limits` of a contract says otherwise.",
    )
    rules: tuple[LimitRule, ...] = Field((), description="The limits.")
