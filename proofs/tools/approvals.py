"""Acts that people are asked about first, each one line in the ledger. What `wipe` acts upon is a file of the proof's,
so that it can be changed between a question and its answer."""

import os
from pathlib import Path
from typing import Annotated

import httpx2
from pydantic import BaseModel, ConfigDict, Field

from deputize import Preview, ToolConflict, ToolContext, tool

FRESH_SECONDS = 1
_clients: list[httpx2.AsyncClient] = []

Label = Annotated[str, Field(description="What the act is known by", examples=["act-1"], max_length=120)]
Milliseconds = Annotated[int, Field(description="How long the ledger takes for it", examples=[0], ge=0, le=20000)]


class Receipt(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sequence: Annotated[int, Field(description="The number of the act in the ledger")]


class LookResult(BaseModel):
    model_config = ConfigDict(extra="forbid")

    label: Annotated[str, Field(description="What was looked at")]


@tool(effects="read", namespace="asked", timeout=5.0)
async def look(label: Label) -> LookResult:
    """Look at something and leave it as it is."""
    return LookResult(label=label)


@tool(
    effects="write",
    namespace="asked",
    undo="asked.look",
    resources=["create acts/{label}"],
    scopes=["proof:write"],
    idempotency="deduplicates",
    timeout=10.0,
)
async def book(label: Label, context: ToolContext, delay_ms: Milliseconds = 0) -> Receipt:
    """Act upon an upstream that takes each key only once."""
    return await _record_effect("book", label, context, delay_ms, dedupe=True)


@tool(
    effects="write",
    namespace="asked",
    undo="asked.look",
    resources=["create letters/{label}"],
    scopes=["proof:write"],
    idempotency="cannot",
    timeout=10.0,
)
async def send(label: Label, context: ToolContext, delay_ms: Milliseconds = 0) -> Receipt:
    """Act upon an upstream that acts twice if it is asked twice."""
    return await _record_effect("send", label, context, delay_ms, dedupe=False)


@tool(
    effects="write",
    namespace="asked",
    undo="asked.look",
    resources=["create pacts/{label}"],
    scopes=["proof:write"],
    idempotency="deduplicates",
    timeout=10.0,
)
async def pair(label: Label, context: ToolContext, delay_ms: Milliseconds = 0) -> Receipt:
    """Act only if two people say so."""
    return await _record_effect("pair", label, context, delay_ms, dedupe=True)


def _preview_wipe(label: str) -> Preview:
    mark = _read_mark(label)
    change = {"resource": "things", "op": "delete", "scope": label, "before": mark, "count": 1}
    return Preview(changes=[change], guards={"mark": mark})


@tool(
    effects="destructive",
    namespace="asked",
    resources=["delete things/{label}"],
    scopes=["proof:write"],
    idempotency="deduplicates",
    timeout=10.0,
    preview=_preview_wipe,
    preview_fresh_seconds=FRESH_SECONDS,
)
async def wipe(label: Label, context: ToolContext, delay_ms: Milliseconds = 0) -> Receipt:
    """Wipe a thing for good, if it is still the one that people saw."""
    mark = str(context.guards.get("mark"))
    if mark != _read_mark(label):
        raise ToolConflict("it is not the thing that people saw")
    return await _record_effect(f"wipe {mark}", label, context, delay_ms, dedupe=True)


def _read_mark(label: str) -> str:
    return (Path(os.environ["PROOF_THINGS"]) / label).read_text()


async def _record_effect(name: str, label: str, context: ToolContext, delay_ms: int, *, dedupe: bool) -> Receipt:
    if not _clients:
        address = os.environ["PROOF_LEDGER"]
        _clients.append(httpx2.AsyncClient(base_url=address, trust_env=False, verify=False, timeout=30.0))
    effect = {"key": context.key, "tool": name, "call": label, "dedupe": dedupe, "delay_ms": delay_ms}
    try:
        response = await _clients[0].post("/effect", json=effect)
    except httpx2.TransportError as error:
        raise ConnectionError("the ledger's answer was lost") from error
    if not response.is_success:
        raise ConnectionError("the ledger refused")
    return Receipt(sequence=int(response.json()["sequence"]))
