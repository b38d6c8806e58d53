"""Runs of three steps, each an act that the ledger remembers under the run's key and the step's number."""

import os
from typing import Annotated

import httpx2
from pydantic import BaseModel, ConfigDict, Field

from deputize import ToolContext, tool

STEPS = 3
_clients: list[httpx2.AsyncClient] = []

Label = Annotated[str, Field(description="What the run is known by", examples=["trip-1"], max_length=120)]
Milliseconds = Annotated[int, Field(description="How long the ledger takes for a step", examples=[0], ge=0, le=20000)]


class Receipts(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sequences: Annotated[list[int], Field(description="The numbers of the steps in the ledger")]


class LookResult(BaseModel):
    model_config = ConfigDict(extra="forbid")

    label: Annotated[str, Field(description="What was looked at")]


@tool(effects="read", namespace="steps", timeout=5.0)
async def look(label: Label) -> LookResult:
    """Look at something and leave it as it is."""
    return LookResult(label=label)


@tool(
    effects="write",
    namespace="steps",
    undo="steps.look",
    resources=["create trips/{label}"],
    scopes=["proof:write"],
    idempotency="deduplicates",
    timeout=10.0,
)
async def book(label: Label, context: ToolContext, delay_ms: Milliseconds = 0) -> Receipts:
    """Book a trip in three steps at an upstream that takes each key only once."""
    return await _run_steps("book", label, context, delay_ms, dedupe=True)


@tool(
    effects="write",
    namespace="steps",
    undo="steps.look",
    resources=["create letters/{label}"],
    scopes=["proof:write"],
    idempotency="cannot",
    timeout=10.0,
)
async def send(label: Label, context: ToolContext, delay_ms: Milliseconds = 0) -> Receipts:
    """Send three letters through an upstream that would send one twice if asked twice."""
    return await _run_steps("send", label, context, delay_ms, dedupe=False)


async def _run_steps(name: str, label: str, context: ToolContext, delay_ms: int, *, dedupe: bool) -> Receipts:
    sequences = []
    for step in range(1, STEPS + 1):
        effect = {"key": f"{context.key}:{step}", "tool": name, "call": label, "dedupe": dedupe, "delay_ms": delay_ms}
        sequences.append(await _record_effect(effect))
    return Receipts(sequences=sequences)


async def _record_effect(effect: dict[str, object]) -> int:
    if not _clients:
        limits = httpx2.Limits(max_connections=100, max_keepalive_connections=100)
        _clients.append(
            httpx2.AsyncClient(
                base_url=os.environ["PROOF_LEDGER"], trust_env=False, verify=False, timeout=30.0, limits=limits
            )
        )
    try:
        response = await _clients[0].post("/effect", json=effect)
    except httpx2.TransportError as error:
        raise ConnectionError("the ledger's answer was lost") from error
    if not response.is_success:
        raise ConnectionError("the ledger refused")
    return int(response.json()["sequence"])
