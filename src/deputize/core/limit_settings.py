"""Settings of limits; `settings.py` holds the others, and all of them together."""

from typing import Literal

from pydantic import Field, SecretStr

from deputize.core.section import Section


class LimitRule(Section):
    """One limit. `per` says what is counted apart; an empty `per` counts everything of a tenant together."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,47}$", description="What refusals call it.")
    kind: Literal["rate", "concurrency", "budget", "repeats", "cost_rate"] = Field(
        description="Calls in a window, calls at once, cost in a period, equal calls in a window, cost in a window."
    )
    limit: float = Field(gt=0, description="The most that is let through.")
    seconds: float = Field(60.0, ge=1, le=31 * 86_400, description="Length of the window or the budget's period.")
    per: tuple[Literal["caller", "agent", "tool", "provider", "session", "task"], ...] = Field(
        (), description="What is counted apart, within a tenant."
    )
    tenants: str = Field("*", description="Tenants it holds for, as a glob.")
    tools: str = Field("*", description="Tools it holds for, as a glob over full names.")
    when_lost: Literal["deny", "allow"] = Field("deny", description="What it says while its counters are away.")


class Limits(Section):
    redis_url: SecretStr | None = Field(
        None, description="Counters shared by replicas; unset, each process counts alone."
    )
    redis_seconds: float = Field(0.25, gt=0, le=5, description="How long the counters may take to answer.")
    rules: tuple[LimitRule, ...] = Field((), description="What is limited.")
