"""Define how workers execute runs: `[runs]` and `[[runs.limits]]`."""

from pydantic import Field

from deputize.core.settings.base import SettingsSection


class RunLimit(SettingsSection):
    """A limit on concurrent runs. Runs over it stay queued and occupy no worker."""

    tools: str = Field("*", description="Tools counted together, as a glob over full names.")
    upstream: str | None = Field(None, description="Count only tools of this external service.")
    at_once: int = Field(1, ge=1, le=10_000, description="Most runs at the same time.")
    across_tenants: bool = Field(False, description="Count all tenants together, not each tenant alone.")


class RunSettings(SettingsSection):
    """Workers and their runs."""

    at_once: int = Field(
        20, ge=1, le=500, description="Most concurrent runs of one worker. Use the same value for all workers."
    )
    poll_seconds: float = Field(0.2, ge=0.05, le=10, description="How often a worker polls for new runs.")
    nice: int = Field(5, ge=0, le=19, description="How far workers yield the CPU to other processes, as in nice(1).")
    drain_seconds: float = Field(
        30.0, ge=0, le=3600, description="How long a stopping worker waits for its runs to finish."
    )
    most_takeovers: int = Field(5, ge=1, le=100, description="How many workers may die during one run before it fails.")
    reconcile_after_seconds: float = Field(
        30.0, ge=0, le=86_400, description="Pause after a call's deadline before its UNKNOWN outcome is reconciled."
    )
    reconcile_seconds: float = Field(
        10.0, gt=0, le=3600, description="Pause before the second attempt to reconcile; each further pause doubles."
    )
    reconcile_tries: int = Field(5, ge=1, le=20, description="Attempts to reconcile before a human task is opened.")
    unable_seconds: float = Field(
        900.0, ge=0, le=86_400, description="How long a run waits for a worker that has its tool before it fails."
    )
    max_queued: int = Field(
        20_000,
        ge=1,
        le=100_000,
        description="Most queued calls of one tenant, and half as many of one user. Further ones are refused with "
        "E3701; approved ones are not.",
    )
    limits: tuple[RunLimit, ...] = Field((), description="Limits on concurrent runs.")
