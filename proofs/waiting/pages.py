"""Somebody looks at tickets on the console: calls that ask are made, and the page of each is fetched many times."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from deputize.doors.console.cookies import SESSION
from proofs.kit.gateway import GatewayHandle
from proofs.kit.people import People
from proofs.kit.wire import Line
from proofs.overhead import ARGUMENTS

_GROUP = "oncall"
ASKING = f"""
@id("orders-ask")
@reason("Somebody on call agrees to each order.")
@decision("ask")
@approvers("{_GROUP}")
permit (principal, action, resource);
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Looked:
    ms: Sequence[float]
    failed: int

    @property
    def looks(self) -> int:
        return len(self.ms)

    def quantile(self, share: float) -> float:
        return round(sorted(self.ms)[ceil(share * len(self.ms)) - 1], 1)


async def look_at_pages(gateway: GatewayHandle, people: People, *, tickets: int, looks: int) -> Looked:
    asked = [await _ask(gateway, number) for number in range(tickets)]
    browser = await people.sign_in(gateway.url, _GROUP)
    line, took, failed = Line.to(gateway.url), [], 0
    for number in range(looks):
        ticket = asked[number % tickets]
        began = time.perf_counter()
        answer = await line.get(f"/console/tickets/{ticket}", cookie=f"{SESSION}={browser.session}")
        took.append(1000 * (time.perf_counter() - began))
        failed += answer.status != 200 or ticket.encode() not in answer.body
    line.close()
    return Looked(ms=took, failed=failed)


async def _ask(gateway: GatewayHandle, number: int) -> str:
    line = Line.to(gateway.url, token=gateway.issuer.token("ann", agent="bot"))
    call = {"tool": "orders.place", "arguments": ARGUMENTS}
    answer = await line.post("/v1/calls", call, idempotency_key=f"page-{number}")
    line.close()
    if answer.status != 202:
        raise RuntimeError(f"nobody was asked: {answer.status} {answer.body[:500]!r}")
    return str(answer.json()["approval"]["ticket_id"])
