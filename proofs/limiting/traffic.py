"""Calls as their callers see them, offered in an open loop or by agents that never stop. Above: `proofs/limits.py`."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proofs.kit.wire import Line

# A gateway closes what idles for 5 s; a connection is dropped well before that.
_IDLE_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call as its caller saw it."""

    tool: str
    sent: float
    seconds: float
    status: int
    slug: str | None
    rule: str | None
    retry_after: str | None
    warnings: tuple[str, ...]
    cost: float

    @property
    def admitted(self) -> bool:
        return self.status == 200

    def refused_by(self, slug: str, rule: str) -> bool:
        """By this rule and no other, with the time to wait."""
        return (self.slug, self.rule) == (slug, rule) and self.retry_after is not None


@dataclass(kw_only=True, slots=True)
class Client:
    """Whoever calls one gateway, with as many connections as there are calls at once."""

    url: str
    token: str
    free: list[tuple[float, Line]] = field(default_factory=list)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Call:
        line = self._line()
        sent = time.monotonic()
        answer = await line.post("/v1/calls", {"tool": f"limits.{tool}", "arguments": arguments, "session": "proof"})
        self.free.append((time.monotonic(), line))
        told = answer.json()
        error = told.get("error") or {}
        return Call(
            tool=tool,
            sent=sent,
            seconds=time.monotonic() - sent,
            status=answer.status,
            slug=error.get("slug"),
            rule=(error.get("details") or {}).get("rule"),
            retry_after=answer.headers.get("retry-after"),
            warnings=tuple(told.get("warnings") or ()),
            cost=(told.get("execution") or {}).get("cost") or 0.0,
        )

    def _line(self) -> Line:
        while self.free:
            since, line = self.free.pop()
            if time.monotonic() - since < _IDLE_SECONDS:
                return line
            line.close()
        return Line.to(self.url, token=self.token)

    def close(self) -> None:
        for _, line in self.free:
            line.close()


Act = Callable[[], Awaitable[None]]


def moments(per_second: float, seconds: float, seed: int) -> list[float]:
    """When calls come that know nothing of each other: so many in a second on average, the same each time."""
    coin, found, now = random.Random(seed), [], 0.0
    while (now := now + coin.expovariate(per_second)) < seconds:
        found.append(now)
    return found


async def offer(
    calls: Sequence[Callable[[], Awaitable[Call]]], times: Sequence[float], acts: Mapping[float, Act] | None = None
) -> list[Call]:
    """Each call at its time, whatever became of those before it; each act at its second, beside them."""

    async def act_at(second: float, act: Act) -> None:
        await asyncio.sleep(second)
        await act()

    acting = [asyncio.create_task(act_at(second, act)) for second, act in (acts or {}).items()]
    under_way: list[asyncio.Future[Call]] = []
    began = time.monotonic()
    for moment, call in zip(times, calls, strict=True):
        await asyncio.sleep(max(began + moment - time.monotonic(), 0))
        under_way.append(asyncio.ensure_future(call()))
    answered = await asyncio.gather(*under_way)
    await asyncio.gather(*acting)
    return answered


async def run_away(clients: Sequence[Client], calls: int, ask: Callable[[Client, int], Awaitable[Call]]) -> list[Call]:
    """An agent that does not stop when it is told no: through every client at once, as fast as answers come."""
    answered: list[Call] = []
    numbers = iter(range(calls))

    async def go_on(client: Client) -> None:
        for number in numbers:
            answered.append(await ask(client, number))

    await asyncio.gather(*(go_on(client) for client in clients for _ in range(2)))
    return answered
