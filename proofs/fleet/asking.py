"""Submits runs over REST and asks again, with the same key, until each is known to be queued.

Above: the proofs of runs. Below: one keep-alive connection per lane.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from proofs.kit.wire import Line

_AGAIN_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A run to be: its label is its key."""

    label: str
    tool: str
    arguments: dict[str, object]
    priority: int = 5
    tenant: str = "acme"


@dataclass(kw_only=True, slots=True)
class Asking:
    """`calls` holds the call each label was answered with; `repeats` how often one had to be asked again."""

    url: str
    tokens: dict[str, str]
    calls: dict[str, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    repeats: int = 0

    async def submit(self, jobs: Iterable[Job], *, lanes: int, pace: float = 0.0) -> None:
        """Every job, by so many lanes at once; `pace` is how long a lane rests after each."""
        waiting = iter(jobs)

        async def work() -> None:
            lines = {tenant: Line.to(self.url, token=token) for tenant, token in self.tokens.items()}
            try:
                for job in waiting:
                    await self._one(lines[job.tenant], job)
                    await asyncio.sleep(pace)
            finally:
                for line in lines.values():
                    line.close()

        await asyncio.gather(*(work() for _ in range(lanes)))

    async def _one(self, line: Line, job: Job) -> None:
        asked = {"tool": job.tool, "arguments": job.arguments, "mode": "async", "priority": job.priority}
        while True:
            try:
                async with asyncio.timeout(30):
                    answer = await line.post("/v1/calls", asked, idempotency_key=job.label)
            except (OSError, EOFError, TimeoutError):
                line.close()
            else:
                told = answer.json()
                seen = self.calls.get(job.label)
                if answer.status in (200, 202):
                    if seen is not None and seen != told["call_id"]:
                        self.changed.append(job.label)
                    self.calls[job.label] = told["call_id"]
                    return
                if answer.status not in (429, 503, 504):
                    raise RuntimeError(f"{job.label} was refused: {answer.status} {answer.body[:500]!r}")
            self.repeats += 1
            await asyncio.sleep(_AGAIN_SECONDS)
