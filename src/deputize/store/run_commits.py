"""Commit the rows of runs: queue them, begin them, and wake those that wait for a released lock.

`store/group_commit.py` sends these rows as part of its batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from deputize.store.commit_answers import PendingRow
from deputize.store.commit_functions import BEGIN_RUNS, QUEUE_RUNS
from deputize.store.commit_rows import BeginRunRow, CommitRow, QueueRunRow, ReleaseLocksRow
from deputize.store.queries import load_statements

_SQL = load_statements("calls")


@dataclass(frozen=True, slots=True)
class FullQueue:
    """The queued calls that are as many as allowed: of a tenant, or of one user of it."""

    tenant: str
    user: str | None

    @classmethod
    def read(cls, error: asyncpg.PostgresError) -> "FullQueue":
        """Read which queue a batch would have filled beyond its bound."""
        return cls(error.detail or "", error.hint or None)

    def has_row(self, row: CommitRow) -> bool:
        """Tell whether a row queues a call there."""
        return (
            type(row) is QueueRunRow
            and row.tenant == self.tenant
            and (self.user is None or row.open_row.user == self.user)
        )


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


def split_full_queue(
    batch: Sequence[PendingRow], queue: FullQueue
) -> tuple[list[PendingRow], list[PendingRow], list[PendingRow]]:
    """Split a batch that would queue too many calls into rows to send now, to send later, and to refuse.

    Of several new runs, half are sent first, because there may be room for some. If there is none for a single one, it
    is refused.
    """
    runs = [each for each in batch if queue.has_row(each.row)]
    others = [each for each in batch if not queue.has_row(each.row)]
    if len(runs) > 1:
        middle = (len(runs) + 1) // 2
        return runs[:middle] + others, runs[middle:], []
    return others, [], runs


async def find_new_runs(
    connection: asyncpg.Connection, waiting_rows: Sequence[PendingRow], queue: FullQueue, timeout: float
) -> list[PendingRow]:
    """Find the waiting runs that would queue a call there: all but those whose key is claimed.

    One that replaces an ended call may take the key over from it, and counts as new.
    """
    runs = [each for each in waiting_rows if queue.has_row(each.row)]
    keys = [
        (each.row.call_id, each.row.open_row.scope, each.row.open_row.key)
        for each in runs
        if type(each.row) is QueueRunRow and each.row.open_row.key is not None and each.row.open_row.replaces is None
    ]
    if not keys:
        return runs
    answers = await connection.fetch(
        _SQL["find_repeated_keys"], queue.tenant, *zip(*keys, strict=True), timeout=timeout
    )
    repeated_call_ids = {str(answer["id"]) for answer in answers}
    return [each for each in runs if each.row[1] not in repeated_call_ids]
