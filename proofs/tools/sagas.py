"""A change in six steps whose acts the ledger remembers, each told how it fails and how taking it back fails."""

import os
from typing import Annotated, Any, Literal

import httpx2
from pydantic import BaseModel, ConfigDict, Field

from deputize import ToolContext, ToolFailed, ToolPrecondition, flow, tool

STEPS = 6
_clients: list[httpx2.AsyncClient] = []

Label = Annotated[str, Field(description="What the thing is known by", examples=["run-1-s1"], max_length=120)]
Failing = Annotated[
    Literal["no", "refuses", "doubtful"],
    Field(description="Whether it fails: before it acts, or after it has acted and without saying so", examples=["no"]),
]
Stuck = Annotated[
    Literal["no", "locked", "lost"],
    Field(description="Whether taking it back fails: before it acts, or with its answer lost", examples=["no"]),
]


class Receipt(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sequence: Annotated[int, Field(description="The effect's number in the ledger")]


@tool(
    effects="write", namespace="sagas", undo="sagas.unmake", resources=["create things/{label}"],
    scopes=["proof:write"], idempotency="deduplicates", timeout=10.0,
    compensation={
        "compensation_class": "full", "tool": "sagas.unmake",
        "bind": {"label": "/arguments/label", "stuck": "/arguments/stuck"},
    },
)  # fmt: skip
async def make(label: Label, fails: Failing, stuck: Stuck, context: ToolContext) -> Receipt:
    """Make a thing at an upstream that takes each key only once."""
    if fails == "refuses":
        raise ToolPrecondition("as asked")
    receipt = await _record_effect("make", label, context)
    if fails == "doubtful":
        raise ToolFailed("as asked")
    return receipt


@tool(
    effects="write", namespace="sagas", undo="sagas.make", resources=["delete things/{label}"], scopes=["proof:write"],
    idempotency="deduplicates", timeout=10.0, retry={"max_attempts": 1},
)  # fmt: skip
async def unmake(label: Label, stuck: Stuck, context: ToolContext) -> Receipt:
    """Take a thing away."""
    if stuck == "locked":
        raise ToolPrecondition("as asked")
    receipt = await _record_effect("unmake", label, context)
    if stuck == "lost":
        raise ConnectionError("as asked")
    return receipt


async def _record_effect(name: str, label: str, context: ToolContext) -> Receipt:
    if not _clients:
        _clients.append(httpx2.AsyncClient(base_url=os.environ["PROOF_LEDGER"], trust_env=False, timeout=60.0))
    effect = {"key": context.key, "tool": name, "call": label, "dedupe": True}
    try:
        response = await _clients[0].post("/effect", json=effect)
    except httpx2.TransportError as error:
        raise ConnectionError("the ledger's answer was lost") from error
    if not response.is_success:
        raise ConnectionError("the ledger refused")
    return Receipt(sequence=response.json()["sequence"])


_NAMES = [f"s{number}" for number in range(1, STEPS + 1)]
_THING = {
    "type": "object",
    "additionalProperties": False,
    "required": ["label", "fails", "stuck"],
    "properties": {
        "label": {"type": "string", "description": "What the thing is known by.", "maxLength": 120},
        "fails": {"enum": ["no", "refuses", "doubtful"], "type": "string", "description": "Whether it fails."},
        "stuck": {"enum": ["no", "locked", "lost"], "type": "string", "description": "Whether taking it back fails."},
    },
}
_FIELDS: dict[str, Any] = {
    "version": "1.0.0",
    "description": "Make six things, one after the other.",
    "steps": [
        {
            "name": name,
            "tool": "sagas.make",
            "bind": {field: f"/input/{name}/{field}" for field in ("label", "fails", "stuck")},
        }
        for name in _NAMES
    ],
    "effects": "write",
    "resources": ["create changes"],
    "auth": {"scopes": ["proof:write"]},
    "timeout": 600,
    "input_schema": {
        "type": "object",
        "additionalProperties": False,
        "required": _NAMES,
        "properties": {name: {**_THING, "description": "A step."} for name in _NAMES},
    },
    "output_schema": {"type": "object"},
}

change = flow("sagas.change", **_FIELDS)
keep = flow("sagas.keep", on_failure="keep", **_FIELDS)
