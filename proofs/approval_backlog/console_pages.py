"""Someone looks at approval requests on the console: calls that ask are made, and the page of each is fetched many
times.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from deputize.interfaces.console.cookies import SESSION
from proofs.kit.gateway import GatewayHandle
from proofs.kit.http_client import HttpConnection
from proofs.kit.sign_in_issuer import SignInIssuer
from proofs.overhead.experiment import ARGUMENTS

_GROUP = "oncall"
ASK_POLICY = f"""
@id("orders-ask")
@reason("Somebody on call agrees to each order.")
@decision("ask")
@approvers("{_GROUP}")
permit (principal, action, resource);
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageLatency:
    latencies_ms: Sequence[float]
    failure_count: int

    @property
    def look_count(self) -> int:
        return len(self.latencies_ms)

    def compute_quantile(self, share: float) -> float:
        return round(sorted(self.latencies_ms)[ceil(share * len(self.latencies_ms)) - 1], 1)


async def measure_pages(
    gateway: GatewayHandle, issuer: SignInIssuer, *, request_count: int, look_count: int
) -> PageLatency:
    request_ids = [await _request_approval(gateway, number) for number in range(request_count)]
    browser = await issuer.sign_in(gateway.url, _GROUP)
    http, latencies_ms, failure_count = HttpConnection.for_url(gateway.url), [], 0
    for number in range(look_count):
        request_id = request_ids[number % request_count]
        began = time.perf_counter()
        answer = await http.get(f"/console/approvals/{request_id}", cookie=f"{SESSION}={browser.session}")
        latencies_ms.append(1000 * (time.perf_counter() - began))
        failure_count += answer.status != 200 or request_id.encode() not in answer.body
    http.close()
    return PageLatency(latencies_ms=latencies_ms, failure_count=failure_count)


async def _request_approval(gateway: GatewayHandle, number: int) -> str:
    http = HttpConnection.for_url(gateway.url, token=gateway.issuer.issue_token("ann", agent="bot"))
    call = {"tool": "orders.place", "arguments": ARGUMENTS}
    answer = await http.post("/v1/calls", call, idempotency_key=f"page-{number}")
    http.close()
    if answer.status != 202:
        raise RuntimeError(f"nobody was asked: {answer.status} {answer.body[:500]!r}")
    return str(answer.json()["approval"]["approval_id"])
