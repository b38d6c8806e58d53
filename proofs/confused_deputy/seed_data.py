"""What the interfaces lead to: a call that ended, runs in several states, approval requests of both kinds, a delivery
given up, a server whose tool waits for a review.

A worker makes them what they are, and is gone before anybody knocks: from then on nothing changes but by an interface
that opens.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from proofs.confused_deputy.testbed import ADMIN, SCOPES, SERVER_NAME, Testbed
from proofs.kit.gateway import start_worker
from proofs.kit.http_client import HttpConnection

WRITE_TOOL, READ_TOOL, APPROVAL_TOOL, CHECKPOINT = "deputy.act", "deputy.look", "deputy.plead", "half"
_WORD = "behind the doors"
_READY_SECONDS = 120.0
# Nobody listens there.
_UNREACHABLE_URL = "http://127.0.0.1:9/"


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedData:
    """Ids."""

    ended_call: str
    queued_call: str
    open_call: str
    """Queued as well, for the page."""
    canceled_call: str
    checkpoint_call: str
    flow_call: str
    task_id: str
    approval_id: str
    """A ticket of the administrator's own, about which somebody else has to decide."""
    delivery_id: str
    server_change: Mapping[str, str]
    """What a server declares and nobody has agreed to: item and digest."""
    erasure_id: str
    hold_id: str

    @property
    def tenant_marks(self) -> tuple[str, ...]:
        """What only the tenant's own callers may be told of."""
        return WRITE_TOOL, _WORD, self.approval_id, SERVER_NAME


async def create_seed_data(testbed: Testbed) -> SeedData:
    http = HttpConnection.for_url(testbed.url, token=await testbed.sign_in_user(ADMIN, *SCOPES))
    worker = await start_worker(testbed.gateway)
    ended_call = (await _send_call(http, WRITE_TOOL))["call_id"]
    checkpoint_call = (await _send_call(http, "deputy.slip", mode="async"))["call_id"]
    flow_call = (await _send_call(http, "deputy.walk", mode="async"))["call_id"]
    await _send_call(http, READ_TOOL, mode="async", callback={"url": _UNREACHABLE_URL})
    deliveries = await _wait_for_items(lambda: _fetch_items(http, "/v1/webhooks/deadletters", "deadletters"))
    # Asked of a person, it is not tried again by itself.
    tasks = await _wait_for_items(lambda: _fetch_items(http, "/v1/human-tasks", "tasks"))
    await worker.stop()
    approval_id = (await _send_call(http, APPROVAL_TOOL))["approval"]["approval_id"]
    canceled_call = (await _send_call(http, READ_TOOL, mode="async"))["call_id"]
    await http.post(f"/v1/calls/{canceled_call}/cancel", {})
    queued_call, open_call = [(await _send_call(http, READ_TOOL, mode="async"))["call_id"] for _ in range(2)]
    await http.post(f"/v1/servers/{SERVER_NAME}/test", {})
    server_changes = await _wait_for_items(lambda: _fetch_items(http, f"/v1/servers/{SERVER_NAME}/changes", "changes"))
    erasure = (await http.post("/v1/erasures", {"user": "nobody"})).json()
    hold = (await http.post("/v1/holds", {"user": "somebody", "reason": "none"})).json()
    http.close()
    return SeedData(
        ended_call=ended_call,
        queued_call=queued_call,
        open_call=open_call,
        canceled_call=canceled_call,
        checkpoint_call=checkpoint_call,
        flow_call=flow_call,
        task_id=tasks[0]["task_id"],
        approval_id=approval_id,
        delivery_id=deliveries[0]["id"],
        server_change={name: server_changes[-1][name] for name in ("item", "digest")},
        erasure_id=erasure["erasure_id"],
        hold_id=hold["hold_id"],
    )


async def _send_call(http: HttpConnection, tool: str, **more: Any) -> dict[str, Any]:
    answer = await http.post("/v1/calls", {"tool": tool, "arguments": {"word": _WORD}, **more})
    if answer.status not in (200, 202):
        raise RuntimeError(f"{tool} was not called: {answer.status} {answer.body[:500]!r}")
    call: dict[str, Any] = answer.json()
    return call


async def _fetch_items(http: HttpConnection, path: str, key: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await http.get(path)).json()[key]
    return items


async def _wait_for_items(fetch: Callable[[], Awaitable[list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    async with asyncio.timeout(_READY_SECONDS):
        while True:
            if items := await fetch():
                return items
            await asyncio.sleep(0.1)
