"""Writes from many callers through all gateways; a call that got no answer is repeated with its key elsewhere."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from proofs.kit.http_client import HttpConnection
from proofs.overhead.experiment import ARGUMENTS

_PAUSE_SECONDS = 0.2
_ATTEMPTS = 150


@dataclass(kw_only=True, slots=True)
class CallResults:
    """The calls that were acknowledged, and how often each was sent; and what the others were told last."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    unacknowledged: Counter[str] = field(default_factory=Counter)


async def make_calls(
    urls: Sequence[str], token: str, *, calls: int, callers: int, results: CallResults, name: str = "call"
) -> None:
    """Make so many calls, each caller one after the other; keys begin with the name, so that each name is new calls."""
    keys = iter([f"{name}-{number}" for number in range(calls)])

    async with asyncio.TaskGroup() as group:
        for caller in range(callers):
            group.create_task(_call_in_turn(urls, token, caller, keys, results))


async def _call_in_turn(
    urls: Sequence[str], token: str, caller: int, keys: Iterator[str], results: CallResults
) -> None:
    connections = [HttpConnection.for_url(url, token=token) for url in urls]
    for key in keys:
        told = await _call(itertools.islice(itertools.cycle(connections), caller, None), key, results)
        if told is not None:
            results.unacknowledged[told] += 1
    for each in connections:
        each.close()


async def _call(connections: Iterator[HttpConnection], key: str, results: CallResults) -> str | None:
    """Repeat a call until it is acknowledged; return what was told last if it never is."""
    told: str | None = None
    http = next(connections)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            async with asyncio.timeout(30):
                answer = await http.post(
                    "/v1/calls", {"tool": "orders.place", "arguments": ARGUMENTS}, Idempotency_Key=key
                )
        except (OSError, EOFError, TimeoutError) as error:
            told = type(error).__name__
        else:
            if answer.status == 200:
                results.acknowledged[answer.json()["call_id"]] = attempt
                return None
            told = answer.json().get("error", {}).get("slug", str(answer.status))
            if told == "outcome-unknown":
                return told
        await asyncio.sleep(_PAUSE_SECONDS)
        http = next(connections)
    return told
