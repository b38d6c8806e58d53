"""What crashes and races are tried on: tools whose every act the ledger, a process of its own, remembers.

The ledger is given the caller's label (`call`) and the gateway's key (`key`), so that it can be asked both how often
something happened and on whose authority.
"""

import os
from typing import Annotated

import httpx2
from pydantic import BaseModel, ConfigDict, Field

from deputize import ToolContext, tool

_clients: list[httpx2.AsyncClient] = []

Label = Annotated[str, Field(description="What the effect is known by", examples=["order-1"], max_length=120)]
Milliseconds = Annotated[int, Field(description="How long the ledger takes", examples=[0], ge=0, le=5000)]


class Receipt(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sequence: Annotated[int, Field(description="The effect's number in the ledger")]


@tool(effects="read", namespace="effects", timeout=5.0)
async def look(label: Label, context: ToolContext, delay_ms: Milliseconds = 0) -> Receipt:
    """Look something up; the ledger notes that it was asked, which is no effect."""
    return await _record_effect("look", label, context, delay_ms)


@tool(
    effects="write",
    namespace="effects",
    undo="effects.look",
    resources=["create bookings/{label}"],
    scopes=["proof:write"],
    idempotency="deduplicates",
    timeout=6.0,
)
async def book(label: Label, context: ToolContext, delay_ms: Milliseconds = 0) -> Receipt:
    """Book something at an upstream that takes the same key only once."""
    return await _record_effect("book", label, context, delay_ms, dedupe=True)


@tool(
    effects="write",
    namespace="effects",
    undo="effects.look",
    resources=["create letters/{label}"],
    scopes=["proof:write"],
    idempotency="cannot",
    timeout=2.0,
)
async def send(label: Label, context: ToolContext, delay_ms: Milliseconds = 0) -> Receipt:
    """Send something through an upstream that would send it twice if asked twice."""
    return await _record_effect("send", label, context, delay_ms)


@tool(
    effects="write",
    namespace="effects",
    undo="effects.look",
    resources=["create loads/{label}"],
    scopes=["proof:write"],
    idempotency="cannot",
    timeout=3.0,
)
async def haul(label: Label, context: ToolContext, delay_ms: Milliseconds = 300) -> Receipt:
    """Haul something, slowly, through an upstream that would do it twice if asked twice."""
    return await _record_effect("haul", label, context, delay_ms)


@tool(
    effects="write",
    namespace="effects",
    undo="effects.look",
    resources=["create numbers/{label}"],
    scopes=["proof:write"],
    idempotency="cannot",
    timeout=30.0,
)
async def issue(label: Label, context: ToolContext, delay_ms: Milliseconds = 20) -> Receipt:
    """Issue a number, with time enough for a crowd, through an upstream that would issue two if asked twice."""
    return await _record_effect("issue", label, context, delay_ms)


async def _record_effect(
    name: str, label: str, context: ToolContext, delay_ms: int, *, dedupe: bool = False
) -> Receipt:
    if not _clients:
        # The timeout of the tool ends a call that takes too long.
        ledger = os.environ["PROOF_LEDGER"]
        _clients.append(httpx2.AsyncClient(base_url=ledger, trust_env=False, verify=False, timeout=60.0))
    effect = {"key": context.key, "tool": name, "call": label, "dedupe": dedupe, "delay_ms": delay_ms}
    try:
        response = await _clients[0].post("/effect", json=effect)
    except httpx2.TransportError as error:
        raise ConnectionError("the ledger's answer was lost") from error
    if not response.is_success:
        raise ConnectionError("the ledger refused")
    return Receipt(sequence=response.json()["sequence"])
