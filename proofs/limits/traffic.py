"""Calls as their callers see them, offered in an open loop or by agents that never stop."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proofs.kit.http_client import HttpConnection

# A gateway closes what idles for 5 s; a connection is dropped well before that.
_IDLE_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitCall:
    """One call as its caller saw it."""

    tool: str
    sent_at: float
    seconds: float
    status: int
    slug: str | None
    rule: str | None
    retry_after: str | None
    warnings: tuple[str, ...]
    cost: float

    @property
    def is_admitted(self) -> bool:
        return self.status == 200

    def is_refused_by(self, slug: str, rule: str) -> bool:
        """By this rule and no other, with the time to wait."""
        return (self.slug, self.rule) == (slug, rule) and self.retry_after is not None


@dataclass(kw_only=True, slots=True)
class TrafficClient:
    """Anyone who calls one gateway, with as many connections as there are calls at once."""

    url: str
    token: str
    idle_connections: list[tuple[float, HttpConnection]] = field(default_factory=list)

    async def send_call(self, tool: str, arguments: dict[str, Any]) -> LimitCall:
        http = self._take_connection()
        sent_at = time.monotonic()
        answer = await http.post("/v1/calls", {"tool": f"limits.{tool}", "arguments": arguments, "session": "proof"})
        self.idle_connections.append((time.monotonic(), http))
        payload = answer.json()
        error = payload.get("error") or {}
        return LimitCall(
            tool=tool,
            sent_at=sent_at,
            seconds=time.monotonic() - sent_at,
            status=answer.status,
            slug=error.get("slug"),
            rule=(error.get("details") or {}).get("rule"),
            retry_after=answer.headers.get("retry-after"),
            warnings=tuple(payload.get("warnings") or ()),
            cost=(payload.get("execution") or {}).get("cost") or 0.0,
        )

    def _take_connection(self) -> HttpConnection:
        while self.idle_connections:
            since, http = self.idle_connections.pop()
            if time.monotonic() - since < _IDLE_SECONDS:
                return http
            http.close()
        return HttpConnection.for_url(self.url, token=self.token)

    def close(self) -> None:
        for _, http in self.idle_connections:
            http.close()


TimedAction = Callable[[], Awaitable[None]]


def generate_arrivals(per_second: float, seconds: float, seed: int) -> list[float]:
    """When calls come that know nothing of each other: so many in a second on average, the same each time."""
    rng, arrivals, now = random.Random(seed), [], 0.0
    while (now := now + rng.expovariate(per_second)) < seconds:
        arrivals.append(now)
    return arrivals


async def offer_calls(
    calls: Sequence[Callable[[], Awaitable[LimitCall]]],
    times: Sequence[float],
    actions: Mapping[float, TimedAction] | None = None,
) -> list[LimitCall]:
    """Each call at its time, whatever became of those before it; each act at its second, beside them."""

    async def run_at(second: float, action: TimedAction) -> None:
        await asyncio.sleep(second)
        await action()

    action_tasks = [asyncio.create_task(run_at(second, action)) for second, action in (actions or {}).items()]
    call_tasks: list[asyncio.Future[LimitCall]] = []
    began = time.monotonic()
    for moment, call in zip(times, calls, strict=True):
        await asyncio.sleep(max(began + moment - time.monotonic(), 0))
        call_tasks.append(asyncio.ensure_future(call()))
    results = await asyncio.gather(*call_tasks)
    await asyncio.gather(*action_tasks)
    return results


async def run_runaway(
    clients: Sequence[TrafficClient], calls: int, ask: Callable[[TrafficClient, int], Awaitable[LimitCall]]
) -> list[LimitCall]:
    """An agent that does not stop when it is told no: through every client at once, as fast as answers come."""
    results: list[LimitCall] = []
    numbers = iter(range(calls))

    async def run_lane(client: TrafficClient) -> None:
        for number in numbers:
            results.append(await ask(client, number))

    await asyncio.gather(*(run_lane(client) for client in clients for _ in range(2)))
    return results
