"""What a batch does to runs: queues them, begins them, and lets those who wait for a place know that one was left.

Above: `batch.py`, which sends these rows as it sends any. Below: the functions of `0007_commit_runs.sql`.
"""

from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from deputize.store.rows import Beginning, Leaving, Queueing, Row

_QUEUE: Final = f"select * from deputize.queue_runs({', '.join(f'${n}' for n in range(1, 27))})"
_BEGIN: Final = f"select * from deputize.begin_runs({', '.join(f'${n}' for n in range(1, 19))})"
_OPENING_WIDTH, _RUN_WIDTH, _BEGINNING_WIDTH, _NEED_WIDTH, _PLACE_WIDTH = 18, 6, 8, 5, 3


def columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[tuple[Any, ...]]:
    """Rows as the arrays a commit function takes, one per parameter."""
    return list(zip(*rows, strict=True)) if rows else [()] * width


async def commit_runs(
    connection: asyncpg.Connection, boot: str, rows: Sequence[Row], timeout: float
) -> list[asyncpg.Record]:
    """Two commits at most, for what is queued and for what is begun; each answers for its own rows."""
    answers: list[asyncpg.Record] = []
    queueing = [row for row in rows if type(row) is Queueing]
    if queueing:
        answers += await connection.fetch(
            _QUEUE,
            list({row.tenant for row in queueing}),
            boot,
            *columns([row.opening for row in queueing], _OPENING_WIDTH),
            *columns([(*row.run, row.callback) for row in queueing], _RUN_WIDTH),
            timeout=timeout,
        )
    # In one order for every process: two that were handed the same runs would wait for each other.
    beginning = sorted((row for row in rows if type(row) is Beginning), key=lambda row: row.call_id)
    leaving = [row for row in rows if type(row) is Leaving]
    if beginning or leaving:
        places = {(row.call_id, need.space, need.resource) for row in leaving for need in row.needs}
        answers += await connection.fetch(
            _BEGIN,
            list({row.tenant for row in beginning} | {row.tenant for row in leaving}),
            boot,
            *columns([row[:_BEGINNING_WIDTH] for row in beginning], _BEGINNING_WIDTH),
            *columns([(row.call_id, *need) for row in beginning for need in row.needs], _NEED_WIDTH),
            *columns(sorted(places), _PLACE_WIDTH),
            timeout=timeout,
        )
    return answers
