"""Submits runs over REST and asks again, with the same key, until each is known to be queued."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from proofs.kit.http_client import HttpConnection

_RETRY_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A run to be: its label is its key."""

    label: str
    tool: str
    arguments: dict[str, object]
    priority: int = 5
    tenant: str = "acme"


@dataclass(kw_only=True, slots=True)
class RunSubmitter:
    """`calls` holds the call each label was answered with; `repeats` how often one had to be asked again."""

    url: str
    tokens: dict[str, str]
    calls: dict[str, str] = field(default_factory=dict)
    changed_labels: list[str] = field(default_factory=list)
    retry_count: int = 0

    async def submit_runs(self, jobs: Iterable[Job], *, lanes: int, pace: float = 0.0) -> None:
        """Every job, by so many lanes at once; `pace` is how long a lane rests after each."""
        pending = iter(jobs)

        async def run_lane() -> None:
            connections = {
                tenant: HttpConnection.for_url(self.url, token=token) for tenant, token in self.tokens.items()
            }
            try:
                for job in pending:
                    await self._submit_run(connections[job.tenant], job)
                    await asyncio.sleep(pace)
            finally:
                for http in connections.values():
                    http.close()

        await asyncio.gather(*(run_lane() for _ in range(lanes)))

    async def _submit_run(self, http: HttpConnection, job: Job) -> None:
        request = {"tool": job.tool, "arguments": job.arguments, "mode": "async", "priority": job.priority}
        while True:
            try:
                async with asyncio.timeout(30):
                    answer = await http.post("/v1/calls", request, idempotency_key=job.label)
            except (OSError, EOFError, TimeoutError):
                http.close()
            else:
                payload = answer.json()
                known_call_id = self.calls.get(job.label)
                if answer.status in (200, 202):
                    if known_call_id is not None and known_call_id != payload["call_id"]:
                        self.changed_labels.append(job.label)
                    self.calls[job.label] = payload["call_id"]
                    return
                if answer.status not in (429, 503, 504):
                    raise RuntimeError(f"{job.label} was refused: {answer.status} {answer.body[:500]!r}")
            self.retry_count += 1
            await asyncio.sleep(_RETRY_SECONDS)
