"""A payment and its refund: the ledger, a process of its own, remembers each, and takes both as often as asked."""

import os
from pathlib import Path
from typing import Annotated

import httpx2
from pydantic import BaseModel, ConfigDict, Field

from deputize import ToolContext, ToolPrecondition, tool

Label = Annotated[str, Field(description="What is paid for", examples=["order-1"], max_length=120)]


class Receipt(BaseModel):
    model_config = ConfigDict(extra="forbid")

    label: Annotated[str, Field(description="What was paid for")]


@tool(
    effects="write", namespace="payments", undo="payments.refund", resources=["create charges/{label}"],
    scopes=["proof:write"], idempotency="cannot", timeout=2.0,
    compensation={
        "compensation_class": "semantic", "tool": "payments.refund", "bind": {"label": "/arguments/label"},
    },
)  # fmt: skip
async def pay(label: Label, context: ToolContext) -> Receipt:
    """Pay, unless the bank is closed."""
    if Path(os.environ["PROOF_CLOSED"]).exists():
        raise ToolPrecondition("the bank is closed")
    return await _record_effect("pay", label, context)


@tool(
    effects="write", namespace="payments", undo="payments.pay", resources=["create refunds/{label}"],
    scopes=["proof:write"], idempotency="cannot", timeout=2.0,
)  # fmt: skip
async def refund(label: Label, context: ToolContext) -> Receipt:
    """Give the money back."""
    return await _record_effect("refund", label, context)


async def _record_effect(name: str, label: str, context: ToolContext) -> Receipt:
    effect = {"key": context.key, "tool": name, "call": label, "dedupe": False, "delay_ms": 0}
    async with httpx2.AsyncClient(base_url=os.environ["PROOF_LEDGER"], trust_env=False, verify=False) as client:
        try:
            (await client.post("/effect", json=effect, timeout=60.0)).raise_for_status()
        except httpx2.HTTPError as error:
            raise ConnectionError("the ledger's answer was lost") from error
    return Receipt(label=label)
