"""Settings of runs; `settings.py` holds the others, and all of them together."""

from pydantic import Field

from deputize.core.section import Section


class RunLimit(Section):
    """A hard limit on runs at once. What is over it waits in line, and holds no worker meanwhile."""

    tools: str = Field("*", description="Tools that count together, as a glob over full names.")
    upstream: str | None = Field(None, description="Only tools of this external service.")
    at_once: int = Field(1, ge=1, le=10_000, description="The most that run at the same moment.")
    across_tenants: bool = Field(False, description="Counts the runs of all tenants together, not each tenant's.")


class Runs(Section):
    at_once: int = Field(
        20, ge=1, le=500, description="Most runs one worker carries at once; the same for all workers of a database."
    )
    poll_seconds: float = Field(0.2, ge=0.05, le=10, description="How often a worker looks for new runs.")
    nice: int = Field(
        5, ge=0, le=19, description="How far a worker gives way to other processes of its machine, as in nice(1)."
    )
    drain_seconds: float = Field(30.0, ge=0, le=3600, description="How long a worker that stops waits for its runs.")
    most_takeovers: int = Field(5, ge=1, le=100, description="A run that outlived so many workers is given up.")
    reconcile_after_seconds: float = Field(
        30.0, ge=0, le=86_400, description="Pause after a call's deadline before its unknown outcome is looked into."
    )
    reconcile_seconds: float = Field(
        10.0, gt=0, le=3600, description="Pause before it is looked into again; each further one is twice as long."
    )
    reconcile_tries: int = Field(5, ge=1, le=20, description="After so many looks that led nowhere a person is asked.")
    unable_seconds: float = Field(
        900.0, ge=0, le=86_400, description="How long a run waits for a worker that has its tool before it fails."
    )
    limits: tuple[RunLimit, ...] = Field((), description="How many runs of which tools go at the same time.")
