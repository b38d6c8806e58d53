"""A tool of many steps that saves after each, and writes every step it takes into a file that outlives its process."""

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from deputize import ToolContext, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.tools import PythonTool

LOG = Annotated[str, Field(description="The file its steps are written into", examples=["steps.txt"])]
STEPS = Annotated[int, Field(description="How many steps it takes", ge=1, examples=[3])]
PAUSE = Annotated[float, Field(description="Seconds between steps", ge=0, examples=[0.1])]
HALT_STEP = 9
"""Where the process that took the first step waits to be killed, however late the test comes to it."""


@tool(
    effects="write",
    namespace="voyage",
    resources=["update voyage.places/{log}"],
    scopes=["lab:write"],
    undo="voyage.sail",
    idempotency="deduplicates",
    timeout={"timeout_class": "long-running"},
    checkpoints={"enabled": True, "micro_interval_seconds": 10},
)
async def sail(log: LOG, steps: STEPS, pause: PAUSE, context: ToolContext) -> dict[str, Any]:
    """Go from place to place, and remember each."""
    state = context.saved_state or {"next": 0, "seen": []}
    for step in range(state["next"], steps):
        if step == HALT_STEP and read_steps(Path(log))[0][0] == os.getpid():
            await asyncio.Event().wait()
        with Path(log).open("a") as steps_taken:
            steps_taken.write(f"{os.getpid()} {step} {context.key}\n")
        state = {"next": step + 1, "seen": [*state["seen"], {"place": f"place-{step}", "weather": "fair"}]}
        await context.save(state, macro=True)
        await asyncio.sleep(pause)
    return {"places": len(state["seen"])}


SHIP_LOGS: dict[str, Path] = {}
"""Where each call of `ship` wrote; the status is told nothing but the key."""


@tool(effects="read", namespace="voyage")
async def arrival(key: Annotated[str, Field(description="The key of the call", examples=["k"])]) -> dict[str, Any]:
    """Tell whether anything was shipped under this key."""
    there = any(each[2] == key for log in SHIP_LOGS.values() for each in read_steps(log))
    return {"state": "happened" if there else "did_not_happen"}


@tool(
    effects="write",
    namespace="voyage",
    resources=["create voyage.places/{log}"],
    scopes=["lab:write"],
    undo="voyage.sail",
    idempotency="cannot",
    status="voyage.arrival",
    timeout={"timeout_class": "long-running"},
)
async def ship(log: LOG, steps: STEPS, pause: PAUSE, context: ToolContext) -> dict[str, Any]:
    """Go once, and take so long to come back that the worker may be gone."""
    with Path(log).open("a") as steps_taken:
        steps_taken.write(f"{os.getpid()} 0 {context.key}\n")
    await asyncio.sleep(pause)
    return {"places": 1}


def read_steps(log: Path) -> list[tuple[int, int, str]]:
    """Process, step and key of every step, in order."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [(int(pid), int(step), key) for pid, step, key in (line.split() for line in lines)]


TOOLS: list[PythonTool] = [getattr(each, ATTRIBUTE) for each in (sail, ship, arrival)]
