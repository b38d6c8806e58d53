"""Commit the rows of runs: queue them, begin them, and wake those that wait for a released lock.

`store/group_commit.py` sends these rows as part of its batches.
"""

from collections.abc import Sequence

import asyncpg

from deputize.store.commit_functions import BEGIN_RUNS, QUEUE_RUNS
from deputize.store.commit_rows import BeginRunRow, CommitRow, QueueRunRow, ReleaseLocksRow


async def commit_runs(
    connection: asyncpg.Connection, boot_id: str, rows: Sequence[CommitRow], timeout: float
) -> list[asyncpg.Record]:
    """Commit in at most two statements, one for queueing and one for beginning; return the answers of both."""
    answers: list[asyncpg.Record] = []
    queue_rows = [row for row in rows if type(row) is QueueRunRow]
    if queue_rows:
        arguments = QUEUE_RUNS.build_batch_arguments(
            list({row.tenant for row in queue_rows}),
            boot_id,
            openings=[row.open_row for row in queue_rows],
            runs=[row.run for row in queue_rows],
            callbacks=[(row.callback,) for row in queue_rows],
        )
        answers += await connection.fetch(QUEUE_RUNS.sql, *arguments, timeout=timeout)
    # Every process uses the same order, so that two with the same runs do not deadlock.
    begin_rows = sorted((row for row in rows if type(row) is BeginRunRow), key=lambda row: row.call_id)
    release_rows = [row for row in rows if type(row) is ReleaseLocksRow]
    if begin_rows or release_rows:
        arguments = BEGIN_RUNS.build_batch_arguments(
            list({row.tenant for row in begin_rows} | {row.tenant for row in release_rows}),
            boot_id,
            # All fields but the last: locks are rows of their own.
            beginnings=[row[:-1] for row in begin_rows],
            locks=[(row.call_id, *lock) for row in begin_rows for lock in row.locks],
            releases=sorted(
                {(row.call_id, lock.namespace, lock.resource) for row in release_rows for lock in row.locks}
            ),
        )
        answers += await connection.fetch(BEGIN_RUNS.sql, *arguments, timeout=timeout)
    return answers
