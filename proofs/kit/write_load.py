"""Writes without pause or at a rate, from several callers, and what each of them was told."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from proofs.kit.http_client import HttpConnection, HttpResponse

_PAUSE_SECONDS = 0.02


@dataclass(kw_only=True, slots=True)
class Load:
    """The keys whose writes were acknowledged, in their order, and the other answers by what they were."""

    acknowledged: list[str] = field(default_factory=list)
    call_ids: list[str] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    longest_seconds: float = 0.0
    """How long the slowest call took that was acknowledged."""

    @property
    def count(self) -> int:
        return len(self.acknowledged) + self.failures.total()


async def send_write(http: HttpConnection, key: str, **fields: object) -> HttpResponse:
    """Send the write of a key: the same bytes each time."""
    request = {"tool": "effects.send", "arguments": {"label": key}, **fields}
    return await http.post("/v1/calls", request, Idempotency_Key=key)


@asynccontextmanager
async def run_load(
    urls: Sequence[str], token: str, *, name: str, callers: int, per_second: float | None = None, **fields: object
) -> AsyncIterator[Load]:
    """Write through these gateways until the block ends, and then finish what was begun.

    With a rate, callers that had to wait make up for it. The fields are sent with every call.
    """
    load, stop, began = Load(), asyncio.Event(), time.monotonic()

    async def write(number: int) -> None:
        http = HttpConnection.for_url(urls[number % len(urls)], token=token)
        for count in itertools.count():
            if per_second is not None:
                due_in = began + (count * callers + number) / per_second - time.monotonic()
                await asyncio.sleep(max(due_in, 0))
            if stop.is_set():
                break
            key, sent_at = f"{name}-{number}-{count}", time.monotonic()
            try:
                answer = await send_write(http, key, **fields)
            except (OSError, EOFError) as error:
                load.failures[type(error).__name__] += 1
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if answer.status == 200:
                load.acknowledged.append(key)
                load.call_ids.append(answer.json()["call_id"])
                load.longest_seconds = max(load.longest_seconds, time.monotonic() - sent_at)
            else:
                load.failures[str(answer.status)] += 1
                await asyncio.sleep(_PAUSE_SECONDS)
        http.close()

    async with asyncio.TaskGroup() as group:
        for number in range(callers):
            group.create_task(write(number))
        try:
            yield load
        finally:
            stop.set()
