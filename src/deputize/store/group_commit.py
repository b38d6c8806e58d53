"""Commit rows in groups: one writer per process, which sends the next batch when the previous commit returns.

The lifecycle puts rows and awaits their commit. A batch is one call of a commit function of the schema: one transaction
and one round trip.

A batch takes the barriers of its tenants without waiting. If an administrative act holds one, the batch is sent again
without that tenant's rows, which a second connection commits: it waits, for one tenant at a time, in order. So an act
delays only calls of its own tenant.

A batch is idempotent by its ids, so a batch whose acknowledgement was lost is sent again, and the answer is correct. A
batch that PostgreSQL rejects is sent row by row, so that one invalid row fails alone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import asyncpg
import orjson
import structlog

from deputize.core.errors import InternalError
from deputize.core.event_loop.task_cancellation import cancel_until_done
from deputize.store.commit_answers import (
    PendingRow,
    make_backpressure,
    make_doubt,
    make_queue_refusal,
    make_refusal,
    make_timeout_problem,
    reject_rows,
    resolve_futures,
)
from deputize.store.commit_functions import (
    COMMIT_CALLS,
    COMMIT_ENTRIES,
    COMMIT_WITH_FAILED_READS,
    OUTAGE_ERRORS,
    QUEUE_FULL,
    RETRYABLE_ERRORS,
)
from deputize.store.commit_rows import (
    AuditEntryRow,
    BeginRunRow,
    CloseCallRow,
    CommitResult,
    CommitRow,
    DecisionRow,
    FailedReadRow,
    OpenCallRow,
    QueueRunRow,
    ReleaseLocksRow,
)
from deputize.store.commit_statistics import CommitStatistics
from deputize.store.restore_guard.lineage import WentBackError
from deputize.store.run_commits import FullQueue, commit_runs, find_new_runs, split_full_queue

Connect = Callable[[], Awaitable[asyncpg.Connection]]
# Takes the tenant and the id of an audit entry whose commit was acknowledged.
NoteEntry = Callable[[str, str], None]


_INSERT_DECISIONS: Final = "select deputize.record_decisions(p_tenants => $1, p_ids => $2, p_records => $3)"
_RUN_ROW_TYPES: Final = (QueueRunRow, BeginRunRow, ReleaseLocksRow)
_READ_ROW_TYPES: Final = (AuditEntryRow, FailedReadRow)
# Taken however many rows wait: the ends of what was begun, and the runs of a worker, are never more than that.
_ALWAYS_TAKEN_ROW_TYPES: Final = (CloseCallRow, ReleaseLocksRow, BeginRunRow)
# The server's timeout is shorter than the client's, so that no batch commits after its rows were sent again.
_CLIENT_TIMEOUT_FACTOR: Final = 1.25
_TICK_SECONDS: Final = 0.05
_RETRY_SECONDS: Final = 0.2
# How long a caller without a deadline waits; the row is written all the same.
_DEFAULT_WAIT_SECONDS: Final = 5.0

log = structlog.get_logger(__name__)


class GroupCommit:
    """Owns one connection. `put` queues a row and returns a future for its commit."""

    def __init__(
        self, connect: Connect, *, boot_id: str, max_rows: int = 500, timeout: float = 10.0,
        waits_at_barrier: bool = False, note_entry: NoteEntry = lambda tenant, entry_id: None,
        max_waiting_rows: int = 10_000, max_queued_runs: int | None = None,
    ) -> None:  # fmt: skip
        """Take rows while fewer than `max_waiting_rows` wait; `max_queued_runs` bounds the queued calls of a tenant,
        and half of it those of a user.
        """
        self._connect = connect
        self._note_entry = note_entry
        self._boot_id = boot_id
        self._max_rows = max_rows
        self._max_waiting_rows = max_waiting_rows
        self._max_queued_runs = max_queued_runs
        self._timeout = timeout
        self._connection: asyncpg.Connection | None = None
        self._queue: list[PendingRow] = []
        self._in_flight: list[PendingRow] = []
        self._has_timer = False
        self._drain_task: asyncio.Task[None] | None = None
        self._is_started = False
        self._is_closed = False
        self._has_tried_to_connect = False
        self._waits_at_barrier = waits_at_barrier
        self._waiting_lane: GroupCommit | None = None
        self._waiting_tenants: frozenset[str] = frozenset()
        self.outage_reason: str | None = "not connected yet"
        self.statistics = CommitStatistics()

    @property
    def waiting_row_count(self) -> int:
        """How many rows wait for their commit, or are being committed."""
        elsewhere = 0 if self._waiting_lane is None else self._waiting_lane.waiting_row_count
        return len(self._queue) + len(self._in_flight) + elsewhere

    async def start(self) -> None:
        """Connect to PostgreSQL."""
        await self._reconnect_once()
        self._is_started = True

    async def stop(self) -> None:
        """Write the queued rows, then close; rows that are not written in time, and all later ones, are rejected."""
        clock = asyncio.get_running_loop().time
        ends_at = clock() + self._timeout
        while self._drain_task is not None and (self._queue or self._in_flight) and clock() < ends_at:
            await asyncio.wait({self._drain_task}, timeout=ends_at - clock())
        if self._waiting_lane is not None:
            await self._waiting_lane.stop()
        self._is_closed = True
        self.outage_reason = "the gateway is stopping"
        if self._drain_task is not None:
            await cancel_until_done(self._drain_task)
        reject_rows(self._queue, partial(make_refusal, "the gateway is stopping"))
        self._queue = []
        if self._connection is not None:
            self._connection.terminate()

    def disconnect(self, reason: str) -> None:
        """Refuse new rows for this reason until a new connection succeeds; rows in flight are in doubt."""
        if self._is_closed:
            return
        self.outage_reason = reason
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
        if self._waiting_lane is not None:
            self._waiting_lane.disconnect(reason)
        if self._drain_task is None and self._is_started:
            self._start_drain()

    def put(
        self, row: CommitRow, *, seconds: float = _DEFAULT_WAIT_SECONDS, on_orphan: Callable[[], None] | None = None
    ) -> "asyncio.Future[CommitResult]":
        """Queue a row; the future is done when the row is durable. While PostgreSQL is away, only closings are taken.

        The future fails after `seconds`, and its caller may be canceled: the row is written all the same. `on_orphan`
        is called for an opening that won its claim after its caller had gone.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[CommitResult] = loop.create_future()
        if self.outage_reason is not None and (self._is_closed or type(row) is not CloseCallRow):
            future.set_exception(make_refusal(self.outage_reason))
            return future
        lane = self._waiting_lane
        if lane is None or row[0] not in lane._waiting_tenants:
            lane = self
        # Each lane has a bound of its own: an act that holds up one tenant must not use up the bound of the others.
        if len(lane._queue) >= self._max_waiting_rows and type(row) not in _ALWAYS_TAKEN_ROW_TYPES:
            future.set_exception(make_backpressure(len(lane._queue)))
            return future
        # In the waiting lane, it is behind the rows of its tenant that wait already.
        lane._enqueue([PendingRow(row, future, loop.time() + seconds, on_orphan)])
        return future

    def _enqueue(self, pending_rows: list[PendingRow]) -> None:
        self._queue += pending_rows
        if self._waits_at_barrier:
            self._waiting_tenants |= {each.row[0] for each in pending_rows}
        if self._drain_task is None:
            self._start_drain()
            if not self._has_timer:
                loop = asyncio.get_running_loop()
                self._has_timer = True
                loop.call_later(_TICK_SECONDS, self._expire_rows, loop)

    def _expire_rows(self, loop: asyncio.AbstractEventLoop) -> None:
        """Expire all rows past their deadline; one timer for all is cheaper than one for each."""
        now = loop.time()
        for pending_row in (*self._in_flight, *self._queue):
            if pending_row.deadline <= now and not pending_row.future.done():
                pending_row.future.set_exception(make_timeout_problem(pending_row.row))
        self._has_timer = self._drain_task is not None
        if self._has_timer:
            loop.call_later(_TICK_SECONDS, self._expire_rows, loop)

    def _start_drain(self) -> None:
        self._drain_task = asyncio.get_running_loop().create_task(self._drain(), name="group-commit")

    async def _drain(self) -> None:
        try:
            while self._queue or self._connection is None:
                if self._connection is None:
                    # Reconnect even if no row is queued: until then, all new rows are rejected.
                    await self._reconnect_later()
                    continue
                # All rows of this iteration of the event loop share the batch. Waiting for further iterations did not
                # increase the throughput.
                await asyncio.sleep(0)
                self._in_flight = self._take_batch()
                await self._commit_batch(self._in_flight)
                self._in_flight = []
                if self._waits_at_barrier:
                    self._waiting_tenants = frozenset(each.row[0] for each in self._queue)
        finally:
            # However this task ends, no caller is left waiting: rows in flight are in doubt, others get a new task.
            self._drain_task = None
            reject_rows(self._in_flight, make_doubt)
            self._in_flight = []
            if self._queue and not self._is_closed:
                self._start_drain()

    def _take_batch(self) -> list[PendingRow]:
        """Take the next batch: up to the maximum, but only one outcome and one beginning per call.

        The order of outcomes matters, and a commit answers by call: of two that begin a run, each must know if it did.

        Where batches wait at the barrier, each has the rows of one tenant.
        """
        if self._waits_at_barrier:
            # A stable sort: the rows of the tenant that waits longest come first, in their order.
            tenant = self._queue[0].row[0]
            self._queue.sort(key=lambda each: each.row[0] != tenant)
        size = 0
        unique_rows: set[tuple[type, str]] = set()
        for pending_row in self._queue[: self._max_rows]:
            row = pending_row.row
            if self._waits_at_barrier and row[0] != self._queue[0].row[0]:
                break
            if type(row) is CloseCallRow or type(row) is BeginRunRow:
                if (type(row), row.call_id) in unique_rows:
                    break
                unique_rows.add((type(row), row.call_id))
            size += 1
        batch, self._queue = self._queue[:size], self._queue[size:]
        return batch

    async def _commit_batch(self, batch: list[PendingRow]) -> None:
        delay, clock = 0.01, asyncio.get_running_loop().time
        started_at = clock()
        full_queue: FullQueue | None = None
        while True:
            try:
                if full_queue is not None:
                    # Asks the database, so it may fail as sending does.
                    batch, full_queue = await self._refuse_runs(batch, full_queue), None
                    if not batch:
                        return
                answers = await self._send_rows([pending_row.row for pending_row in batch])
            except RETRYABLE_ERRORS as error:
                if not self._waits_at_barrier and isinstance(error, asyncpg.LockNotAvailableError) and error.detail:
                    batch = self._defer_rows(batch, frozenset(orjson.loads(error.detail)))
                    if not batch:
                        return
                    continue
                log.info("batch_retried", reason=type(error).__name__, rows=len(batch))
            except OUTAGE_ERRORS as error:
                await self._recover(error)
                if self._connection is None:
                    # Reads do not wait for a database that is away: their entries may be lost.
                    refusal = partial(make_refusal, self.outage_reason or "")
                    reject_rows([each for each in batch if type(each.row) in _READ_ROW_TYPES], refusal)
                    batch = [each for each in batch if type(each.row) not in _READ_ROW_TYPES]
                if not batch:
                    return
            except asyncpg.PostgresError as error:
                if error.sqlstate == QUEUE_FULL:
                    full_queue = FullQueue.read(error)
                    continue
                await self._commit_one_by_one(batch, error)
                return
            else:
                self.statistics.record_commit(len(batch), clock() - started_at)
                entry = resolve_futures(batch, answers)
                if entry is not None:
                    self._note_entry(*entry)
                return
            await asyncio.sleep(delay)
            delay = min(delay * 2, 0.5)

    def _defer_rows(self, batch: list[PendingRow], tenants: frozenset[str]) -> list[PendingRow]:
        """Let the rows of tenants whose barrier is held wait elsewhere, and return the others."""
        if self._waiting_lane is None:
            self._waiting_lane = GroupCommit(
                self._connect, boot_id=self._boot_id, max_rows=self._max_rows, timeout=self._timeout,
                waits_at_barrier=True, note_entry=self._note_entry, max_waiting_rows=self._max_waiting_rows,
                max_queued_runs=self._max_queued_runs,
            )  # fmt: skip
            self._waiting_lane.statistics = self.statistics
        # Rows that were put meanwhile, too, so that a tenant's rows keep their order.
        self._waiting_lane._enqueue([each for each in (*batch, *self._queue) if each.row[0] in tenants])
        self._queue = [each for each in self._queue if each.row[0] not in tenants]
        return self._keep_in_flight(batch, [each for each in batch if each.row[0] not in tenants])

    async def _refuse_runs(self, batch: list[PendingRow], queue: FullQueue) -> list[PendingRow]:
        """Refuse new runs of a tenant or user whose queue is full, or try fewer; return the rows that are left.

        With the last one, all new runs that wait are refused, so that whoever is at the bound does not hold up others.
        """
        rows_left, later_rows, refused_rows = split_full_queue(batch, queue)
        if refused_rows:
            refused_rows += await find_new_runs(self._require_connection(), self._queue, queue, self._timeout)
        refused_ids = {id(each) for each in refused_rows}
        self._queue = later_rows + [each for each in self._queue if id(each) not in refused_ids]
        reject_rows(
            refused_rows, lambda: make_queue_refusal(self._max_queued_runs or 0, of_user=queue.user is not None)
        )
        return self._keep_in_flight(batch, rows_left)

    def _keep_in_flight(self, batch: list[PendingRow], rows_left: list[PendingRow]) -> list[PendingRow]:
        """Keep only these rows of a batch in flight, and rows in flight that are not part of it; return the former."""
        gone_ids = {id(each) for each in batch} - {id(each) for each in rows_left}
        self._in_flight = [each for each in self._in_flight if id(each) not in gone_ids]
        return rows_left

    def _require_connection(self) -> asyncpg.Connection:
        if self._connection is None:
            raise OSError("no connection to PostgreSQL")
        return self._connection

    async def _send_rows(self, rows: list[CommitRow]) -> list[asyncpg.Record]:
        connection = self._require_connection()
        openings = [row for row in rows if type(row) is OpenCallRow]
        closings = [row for row in rows if type(row) is CloseCallRow]
        entries = [row for row in rows if type(row) is AuditEntryRow]
        failed_reads = [row for row in rows if type(row) is FailedReadRow]
        entries += [row.audit_entry for row in failed_reads]
        tenants = list({row[0] for row in rows})
        timeout = self._timeout * _CLIENT_TIMEOUT_FACTOR
        decisions = [row for row in rows if type(row) is DecisionRow]
        if decisions:
            # Committed first, by itself: an entry must never name a record that does not exist.
            await connection.execute(_INSERT_DECISIONS, *zip(*decisions, strict=True), timeout=timeout)
        runs = [row for row in rows if type(row) in _RUN_ROW_TYPES]
        answers = await commit_runs(connection, self._boot_id, runs, timeout) if runs else []
        if len(runs) == len(rows):
            return answers
        if not openings and not closings:
            function = COMMIT_ENTRIES
            arguments = function.build_batch_arguments(tenants, entries=entries)
        else:
            function = COMMIT_CALLS
            arguments = function.build_batch_arguments(
                tenants,
                self._boot_id,
                openings=openings,
                closings=[row[:-1] for row in closings],
                entries=entries,
                journal=[effect for row in closings for effect in row.journal],
            )
        sql = function.sql
        if failed_reads:
            sql = COMMIT_WITH_FAILED_READS[function]
            arguments = [self._boot_id, *zip(*[row[:-1] for row in failed_reads], strict=True), *arguments]
        return answers + await connection.fetch(sql, *arguments, timeout=timeout)

    async def _commit_one_by_one(self, batch: list[PendingRow], error: asyncpg.PostgresError) -> None:
        if len(batch) == 1:
            # The message of PostgreSQL may quote values of the row, so it is not logged.
            log.error("row_refused", reason=type(error).__name__, sqlstate=error.sqlstate)
            row, future = batch[0].row, batch[0].future
            if not future.done():
                nothing_happened = type(row) is not CloseCallRow
                future.set_exception(
                    InternalError("PostgreSQL rejected the record of this call", nothing_happened=nothing_happened)
                )
            return
        log.warning("batch_split", reason=type(error).__name__, sqlstate=error.sqlstate, rows=len(batch))
        for index, pending_row in enumerate(batch):
            # With the rows still to come, so that those expire, and are answered however this task ends.
            self._in_flight = batch[index:]
            await self._commit_batch([pending_row])

    async def _recover(self, error: BaseException) -> None:
        """Reconnect. Rows already sent are in doubt and wait for the answer; rows not yet sent are rejected at once."""
        self.outage_reason = f"PostgreSQL does not answer ({type(error).__name__})"
        log.error("database_lost", reason=repr(error))
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
        unsent, self._queue = self._queue, []
        self._queue.extend(pending_row for pending_row in unsent if type(pending_row.row) is CloseCallRow)
        refusal = partial(make_refusal, self.outage_reason)
        reject_rows([each for each in unsent if type(each.row) is not CloseCallRow], refusal)
        await self._try_to_connect()

    async def _reconnect_later(self) -> None:
        if self._has_tried_to_connect:
            await asyncio.sleep(_RETRY_SECONDS)
        await self._try_to_connect()

    async def _try_to_connect(self) -> None:
        try:
            await self._reconnect_once()
        except WentBackError as error:
            self.outage_reason = str(error)
        except OUTAGE_ERRORS as error:
            self.outage_reason = f"PostgreSQL does not answer ({type(error).__name__})"
        except asyncpg.PostgresError as refusal:
            log.error("connection_refused", reason=str(refusal))
            self.outage_reason = f"PostgreSQL refuses the connection ({type(refusal).__name__})"

    async def _reconnect_once(self) -> None:
        self._has_tried_to_connect = True
        async with asyncio.timeout(self._timeout):
            connection = await self._connect()
            await connection.execute(f"set statement_timeout = {max(int(self._timeout * 1000), 1)}")
            if self._max_queued_runs is not None:
                await connection.execute(f"set deputize.max_queued = {self._max_queued_runs}")
            await connection.execute(f"set deputize.barrier = '{'wait' if self._waits_at_barrier else 'try'}'")
        self._connection = connection
        self.outage_reason = None
