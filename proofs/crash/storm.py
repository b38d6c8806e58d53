"""Kills in a crowd: many calls of every tool at once, the gateway struck at some commit, every call retried once.

Here commits carry several calls, as under load. Where each call stood when the gateway died is not chosen but read
from PostgreSQL; what must come of it follows from that. Above: `crash_matrix`. Below: `lane`.
"""

import asyncio
import random

from proofs.crash.cells import Boundary, Cell, Tool
from proofs.crash.lane import Lane, Observation
from proofs.kit.pgproxy import PgPoint

CROWD = 24
LATEST = 10
"""A crowd makes about this many commits; one that makes fewer is killed when all have been answered."""
_COMMITS = ("deputize.commit_calls(", "deputize.commit_entries(")
_POINTS: tuple[PgPoint, ...] = ("before_forward", "after_commit_before_ack")
# Where a call stood, as its row shows it, told as a boundary with the same ends.
_STOOD = {
    None: Boundary.CLAIM_UNSENT,
    "running": Boundary.OUTCOME_UNSENT,
    "unknown": Boundary.OUTCOME_UNSENT,
    "succeeded": Boundary.BEFORE_REPLY,
}


async def storm(lane: Lane, number: int, choose: random.Random) -> list[Observation]:
    """A crowd at once, a kill at one of its commits, and one retry of each."""
    tools = choose.sample([*Tool] * (CROWD // len(Tool)), CROWD)
    calls = [(_as(tool), f"storm-{number}-{place}-{tool}") for place, tool in enumerate(tools)]
    nth, point = choose.randrange(1, LATEST), choose.choice(_POINTS)
    lane.pg.arm(lambda sql: any(name in sql for name in _COMMITS), nth, point, lane.kill)
    firsts = await asyncio.gather(*(lane.call(cell, label) for cell, label in calls))
    lane.pg.disarm()
    await lane.bury()
    rows = [await lane.row(label) for _, label in calls]
    await lane.revive()
    for cell, label in calls:
        await lane.recovered(cell, label)
    seen: list[Observation] = []
    for (cell, label), first, row in zip(calls, firsts, rows, strict=True):
        stood = _as(cell.tool, None if row is None else str(row["state"]))
        retry, end = await lane.retry(cell, label, first)
        seen.append(
            Observation(cell=stood, label=label, evidence="", first=first, retry=retry, end=end, in_a_crowd=True)
        )
    return seen


def _as(tool: Tool, state: str | None = None) -> Cell:
    return Cell(boundary=_STOOD[state], tool=tool)
