"""Jobs that only take their time, and note when they began and ended: by the machine's clock, in one file."""

import asyncio
import os
import time
from typing import Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field

from deputize import flow, tool

Label = Annotated[str, Field(description="What the job is known by", examples=["job-1"], max_length=120)]
Place = Annotated[str, Field(description="What the job works on", examples=["desk-1"], max_length=120)]
Milliseconds = Annotated[int, Field(description="How long it takes", examples=[10], ge=0, le=600_000)]


class JobResult(BaseModel):
    model_config = ConfigDict(extra="forbid")

    label: Annotated[str, Field(description="Which job it was")]


@tool(effects="read", namespace="jobs", timeout=30.0)
async def rest(label: Label, milliseconds: Milliseconds = 0) -> JobResult:
    """Take some time and touch nothing."""
    await asyncio.sleep(milliseconds / 1000)
    return JobResult(label=label)


@tool(
    effects="write",
    namespace="jobs",
    undo="jobs.rest",
    resources=["update desks/{place}"],
    scopes=["proof:write"],
    idempotency="idempotent",
    timeout=30.0,
)
async def work(label: Label, place: Place, milliseconds: Milliseconds = 0) -> JobResult:
    """Work on one thing, which no one else may work on meanwhile."""
    return await _run_timed_job("desk", place, label, milliseconds)


@tool(effects="read", namespace="jobs", timeout=30.0)
async def single(label: Label, milliseconds: Milliseconds = 0) -> JobResult:
    """Take some time under a limit of one at a time."""
    return await _run_timed_job("limit", "single", label, milliseconds)


async def _run_timed_job(kind: str, place: str, label: str, milliseconds: int) -> JobResult:
    began = time.monotonic_ns()
    await asyncio.sleep(milliseconds / 1000)
    line = {"kind": kind, "place": place, "label": label, "began": began, "ended": time.monotonic_ns()}
    # One write of one line: whoever else writes does not come between.
    file = os.open(os.environ["PROOF_TURNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, orjson.dumps(line) + b"\n")
    finally:
        os.close(file)
    return JobResult(label=label)


@tool(
    effects="write",
    namespace="jobs",
    undo="jobs.rest",
    resources=["update marks/{label}"],
    scopes=["proof:write"],
    idempotency="idempotent",
    timeout=30.0,
)
async def mark(label: Label) -> JobResult:
    """Make a mark, which takes no time at all."""
    return JobResult(label=label)


STEPS = 10
mark_often = flow(
    "jobs.mark_often",
    version="1.0.0",
    description="Make the same mark ten times.",
    steps=[
        {"name": f"s{number}", "tool": "jobs.mark", "bind": {"label": "/input/label"}} for number in range(1, STEPS + 1)
    ],
    effects="write",
    on_failure="keep",
    resources=["update marks/{label}"],
    auth={"scopes": ["proof:write"]},
    timeout=600,
    input_schema={
        "type": "object",
        "additionalProperties": False,
        "required": ["label"],
        "properties": {
            "label": {
                "type": "string",
                "description": "What the job is known by.",
                "examples": ["job-1"],
                "maxLength": 120,
            }
        },
    },
    output_schema={"type": "object"},
)
