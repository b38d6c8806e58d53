"""Check whether this gateway is alive and ready for work, and give the reason if not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from deputize.lifecycle.runtime import Runtime

NO_WORKER = "none runs on this database: queued and approved calls wait until deputize work is started"


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthCheck:
    name: str
    ok: bool
    detail: str
    is_required: bool = True
    """Whether the gateway is unready while the check fails. Calls that need no worker go on without one."""


class BackgroundTask(Protocol):
    """A background task that the gateway's guarantees depend on."""

    @property
    def is_alive(self) -> bool: ...


class Health:
    def __init__(
        self, runtime: Runtime, background: Mapping[str, BackgroundTask], count_workers: Callable[[], int]
    ) -> None:
        self._runtime = runtime
        self._background = background
        self._count_workers = count_workers
        self._is_draining = False

    @property
    def worker_count(self) -> int:
        """How many workers on this database were alive a moment ago, in this process or elsewhere."""
        return self._count_workers()

    def start_drain(self) -> None:
        """Report not ready from now on: the process is about to stop, and still serves."""
        self._is_draining = True

    def run_checks(self) -> list[HealthCheck]:
        """Check what readiness depends on; cheap, since it is probed every few seconds."""
        runtime = self._runtime
        skew, limit = runtime.lease.skew_seconds, runtime.settings.timing.max_clock_skew_seconds
        loss = self._describe_loss()
        dead_tasks = [name for name, work in self._background.items() if not work.is_alive]
        return [
            HealthCheck(
                name="process",
                ok=not self._is_draining,
                detail="stopping: send new requests to other gateways" if self._is_draining else "serving",
            ),
            HealthCheck(
                name="database",
                ok=runtime.writer.outage_reason is None,
                detail=runtime.writer.outage_reason or "connected",
            ),
            HealthCheck(name="lineage", ok=loss is None, detail=loss or "nothing was lost"),
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
            HealthCheck(
                name="workers",
                ok=self.worker_count > 0,
                detail=f"{self.worker_count} running" if self.worker_count else NO_WORKER,
                is_required=False,
            ),
        ]

    def _describe_loss(self) -> str | None:
        lineage = self._runtime.lineage
        if lineage.loss is not None:
            return f"the database went back in time: {lineage.loss}; run deputize recover confirm"
        return lineage.file_problem or lineage.checkpoint_problem

    @property
    def is_ready(self) -> bool:
        return all(check.ok or not check.is_required for check in self.run_checks())
