"""Measure how long after the answer to a call its receipt can be had."""

import asyncio
import time

from proofs.kit.gateway import GatewayHandle
from proofs.kit.http_client import HttpConnection
from proofs.overhead.experiment import ARGUMENTS

_POLL_SECONDS = 0.02
_TIMEOUT_SECONDS = 120.0


async def measure_receipt_delays(gateway: GatewayHandle, *, callers: int, calls: int) -> list[float]:
    """Make calls, each caller one after the other, and return the seconds from each answer to its receipt."""
    token = gateway.issuer.issue_token("ana", agent="bot")
    delays: list[float] = []

    async def call(number: int) -> None:
        http = HttpConnection.for_url(gateway.url, token=token)
        # Callers do not begin together, so that they see all moments of a sequencer's turn.
        await asyncio.sleep(number / callers)
        for _ in range(calls):
            answer = await http.post("/v1/calls", {"tool": "orders.place", "arguments": ARGUMENTS})
            if answer.status != 200:
                raise RuntimeError(f"a call was not answered with 200: {answer.status} {answer.body[:300]!r}")
            delays.append(await _wait_for_receipt(http, answer.json()["call_id"]))
        http.close()

    async with asyncio.timeout(_TIMEOUT_SECONDS * calls), asyncio.TaskGroup() as group:
        for number in range(callers):
            group.create_task(call(number))
    return delays


async def _wait_for_receipt(http: HttpConnection, call_id: str) -> float:
    began = time.perf_counter()
    while (answer := await http.get(f"/v1/calls/{call_id}/receipt")).status == 409:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(_POLL_SECONDS)
    if answer.status != 200:
        raise RuntimeError(f"there is no receipt: {answer.status} {answer.body[:300]!r}")
    return time.perf_counter() - began
