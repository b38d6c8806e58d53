"""Kills in a crowd: many calls of every tool at once, the gateway struck at some commit, every call retried once.

Here commits carry several calls, as under load. Where each call stood when the gateway died is not chosen but read
from PostgreSQL; what must come of it follows from that.
"""

import asyncio
import random

import asyncpg

from proofs.crash_matrix.lane import Lane, Observation
from proofs.crash_matrix.matrix import Boundary, Cell, EffectTool
from proofs.kit.postgres_proxy import PgPoint

CALLS_AT_ONCE = 24
LATEST_COMMIT = 10
"""A crowd makes about this many commits; one that makes fewer is killed when all have been answered."""
_COMMITS = ("deputize.commit_calls(", "deputize.commit_entries(")
_POINTS: tuple[PgPoint, ...] = ("before_forward", "after_commit_before_ack")
# Where a call stood, as its row shows it, told as a boundary with the same ends.
_BOUNDARY_BY_STATE = {
    None: Boundary.CLAIM_UNSENT,
    "running": Boundary.OUTCOME_UNSENT,
    "unknown": Boundary.OUTCOME_UNSENT,
    "succeeded": Boundary.BEFORE_REPLY,
    # No tool of this proof fails by itself: a failure that keeps its key never has the end expected of this boundary.
    "failed": Boundary.BEFORE_REPLY,
}


async def kill_concurrently(lane: Lane, number: int, rng: random.Random) -> list[Observation]:
    """A crowd at once, a kill at one of its commits, and one retry of each."""
    tools = rng.sample([*EffectTool] * (CALLS_AT_ONCE // len(EffectTool)), CALLS_AT_ONCE)
    calls = [(_build_cell(tool), f"storm-{number}-{place}-{tool}") for place, tool in enumerate(tools)]
    nth, point = rng.randrange(1, LATEST_COMMIT), rng.choice(_POINTS)
    lane.postgres_proxy.arm(lambda sql: any(name in sql for name in _COMMITS), nth, point, lane.kill_gateway)
    firsts = await asyncio.gather(*(lane.send_call(cell, label) for cell, label in calls))
    lane.postgres_proxy.disarm()
    await lane.discard_process()
    rows = [await lane.fetch_row(label) for _, label in calls]
    await lane.restart_gateway()
    for cell, label in calls:
        await lane.wait_for_recovery(cell, label)
    observations: list[Observation] = []
    for (cell, label), first, row in zip(calls, firsts, rows, strict=True):
        actual_cell = _build_cell(cell.tool, _find_state(row))
        retry, end = await lane.retry_call(cell, label, first)
        observations.append(
            Observation(
                cell=actual_cell, label=label, evidence="", first=first, retry=retry, end=end, is_concurrent=True
            )
        )
    return observations


def _find_state(row: asyncpg.Record | None) -> str | None:
    """Read where the call stood; one that ended before its tool was started gave its key back, as if never begun.

    A gateway on a busy machine that cannot renew its lease in time ends calls so.
    """
    if row is None or (row["state"] == "failed" and not row["holds_key"]):
        return None
    return str(row["state"])


def _build_cell(tool: EffectTool, state: str | None = None) -> Cell:
    return Cell(boundary=_BOUNDARY_BY_STATE[state], tool=tool)
