"""What the doors lead to: a call that ended, runs in several states, tickets of both kinds, a delivery given up, a
server whose tool waits for a review.

A worker makes them what they are, and is gone before anybody knocks: from then on nothing changes but by a door that
opens. Above: `proofs.confused_deputy`. Below: `site`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from proofs.deputy.site import ADMIN, SCOPES, SERVER, Site
from proofs.kit.gateway import start_worker
from proofs.kit.wire import Line

CALLED, SHOWN, ASKED, CHECKPOINT = "deputy.act", "deputy.look", "deputy.plead", "half"
_WORD = "behind the doors"
_READY_SECONDS = 30.0
# Nobody listens there.
_NOBODY = "http://127.0.0.1:9/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Things:
    """Ids."""

    ended: str
    waiting: str
    canceled: str
    halfway: str
    ticket: str
    approval: str
    """A ticket of the administrator's own, about which somebody else has to decide."""
    delivery: str
    change: Mapping[str, str]
    """What a server declares and nobody has agreed to: item and digest."""

    @property
    def marks(self) -> tuple[str, ...]:
        """What only the tenant's own callers may be told of."""
        return CALLED, _WORD, self.approval, SERVER


async def furnish(site: Site) -> Things:
    line = Line.to(site.url, token=await site.person(ADMIN, *SCOPES))
    worker = await start_worker(site.gateway)
    ended = (await _call(line, CALLED))["call_id"]
    halfway = (await _call(line, "deputy.slip", mode="async"))["call_id"]
    await _call(line, SHOWN, mode="async", callback={"url": _NOBODY})
    deliveries = await _until(lambda: _listed(line, "/v1/webhooks/deadletters", "deadletters"))
    # Asked of a person, it is not tried again by itself.
    tickets = await _until(lambda: _listed(line, "/v1/tickets", "tickets"))
    await worker.stop()
    approval = (await _call(line, ASKED))["approval"]["ticket_id"]
    canceled = (await _call(line, SHOWN, mode="async"))["call_id"]
    await line.post(f"/v1/calls/{canceled}/cancel", {})
    waiting = (await _call(line, SHOWN, mode="async"))["call_id"]
    await line.post(f"/v1/servers/{SERVER}/test", {})
    declared = await _until(lambda: _listed(line, f"/v1/servers/{SERVER}/changes", "changes"))
    line.close()
    return Things(
        ended=ended, waiting=waiting, canceled=canceled, halfway=halfway, ticket=tickets[0]["ticket_id"],
        approval=approval, delivery=deliveries[0]["id"],
        change={name: declared[-1][name] for name in ("item", "digest")},
    )  # fmt: skip


async def _call(line: Line, tool: str, **more: Any) -> dict[str, Any]:
    answer = await line.post("/v1/calls", {"tool": tool, "arguments": {"word": _WORD}, **more})
    if answer.status not in (200, 202):
        raise RuntimeError(f"{tool} was not called: {answer.status} {answer.body[:500]!r}")
    made: dict[str, Any] = answer.json()
    return made


async def _listed(line: Line, path: str, what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await line.get(path)).json()[what]
    return found


async def _until(found: Callable[[], Awaitable[list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    async with asyncio.timeout(_READY_SECONDS):
        while True:
            if there := await found():
                return there
            await asyncio.sleep(0.1)
