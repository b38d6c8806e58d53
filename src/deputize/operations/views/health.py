"""Check whether this gateway is alive and ready for work, and give the reason if not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from deputize.lifecycle.runtime import Runtime


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthCheck:
    name: str
    ok: bool
    detail: str


class BackgroundTask(Protocol):
    """A background task that the gateway's guarantees depend on."""

    @property
    def is_alive(self) -> bool: ...


class Health:
    def __init__(self, runtime: Runtime, background: Mapping[str, BackgroundTask]) -> None:
        self._runtime = runtime
        self._background = background

    def run_checks(self) -> list[HealthCheck]:
        """Check what readiness depends on; cheap, since it is probed every few seconds."""
        runtime = self._runtime
        skew, limit = runtime.lease.skew_seconds, runtime.settings.timing.max_clock_skew_seconds
        dead_tasks = [name for name, work in self._background.items() if not work.is_alive]
        return [
            HealthCheck(
                name="database",
                ok=runtime.writer.outage_reason is None,
                detail=runtime.writer.outage_reason or "connected",
            ),
            HealthCheck(
                name="lease",
                ok=runtime.lease.is_valid,
                detail="valid" if runtime.lease.is_valid else "not renewed in time",
            ),
            HealthCheck(
                name="clock",
                ok=abs(skew) <= limit,
                detail=f"{skew:+.3f} s from PostgreSQL's, at most {limit:g} s allowed",
            ),
            HealthCheck(
                name="background",
                ok=not dead_tasks,
                detail=f"stopped: {', '.join(dead_tasks)}; restart the gateway" if dead_tasks else "running",
            ),
        ]

    @property
    def is_ready(self) -> bool:
        return all(check.ok for check in self.run_checks())
