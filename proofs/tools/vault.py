"""What the vault is tried on: tools that act with a secret, tools that need none, and tools that give theirs away.

The ledger remembers every act by its caller's label, whatever the tool acted with; the answer carries a fingerprint of
the credential, so that the proof can tell the right one from none.
"""

import base64
import hashlib
import os
from typing import Annotated

import httpx2
from pydantic import BaseModel, ConfigDict, Field

from deputize import Result, ToolContext, tool

_clients: list[httpx2.AsyncClient] = []

Label = Annotated[str, Field(description="What the act is known by", examples=["act-1"], max_length=120)]


class Receipt(BaseModel):
    model_config = ConfigDict(extra="forbid")

    fingerprint: Annotated[str, Field(description="SHA-256 of the credential it acted with; empty without one")]


@tool(effects="read", namespace="vault", credential="vault", secret="crm/api-key", timeout=2.0)
async def keyed_look(label: Label, context: ToolContext) -> Receipt:
    """Look something up with a secret; the ledger notes that it was asked."""
    return await _record_effect("keyed_look", label, context)


@tool(
    effects="write",
    namespace="vault",
    undo="vault.look",
    resources=["create acts/{label}"],
    scopes=["proof:write"],
    idempotency="cannot",
    timeout=2.0,
    credential="vault",
    secret="crm/api-key",
)
async def keyed_act(label: Label, context: ToolContext) -> Receipt:
    """Act with a secret."""
    return await _record_effect("keyed_act", label, context)


@tool(effects="read", namespace="vault", timeout=5.0)
async def look(label: Label, context: ToolContext) -> Receipt:
    """Look something up that needs no secret."""
    return Receipt(fingerprint="")


@tool(
    effects="write",
    namespace="vault",
    undo="vault.look",
    resources=["create acts/{label}"],
    scopes=["proof:write"],
    idempotency="cannot",
    timeout=5.0,
)
async def act(label: Label, context: ToolContext) -> Receipt:
    """Act without a secret."""
    return await _record_effect("act", label, context)


@tool(effects="read", namespace="vault", credential="vault", secret="crm/api-key", returns=str)
async def blurt(label: Label, context: ToolContext) -> Result:
    """Give the secret away, in one way or another."""
    value = context.credential.reveal() if context.credential else ""
    match label:
        case "result":
            return Result(payload=f"the key is {value}")
        case "basic":
            return Result(payload=base64.b64encode(f"user:{value}".encode()).decode())
        case "summary":
            return Result(payload="nothing to see", summary=value)
        case _:
            raise ValueError(f"the key {value} was not taken")


async def _record_effect(name: str, label: str, context: ToolContext) -> Receipt:
    value = context.credential.reveal() if context.credential else ""
    if not _clients:
        # The timeout of the tool ends a call that takes too long.
        ledger = os.environ["PROOF_LEDGER"]
        _clients.append(httpx2.AsyncClient(base_url=ledger, trust_env=False, verify=False, timeout=60.0))
    effect = {"key": context.key, "tool": name, "call": label}
    try:
        response = await _clients[0].post("/effect", json=effect)
    except httpx2.TransportError as error:
        raise ConnectionError("the ledger's answer was lost") from error
    if not response.is_success:
        raise ConnectionError("the ledger refused")
    return Receipt(fingerprint=hashlib.sha256(value.encode()).hexdigest() if context.credential else "")
