"""Group commit: one writer per process, flushing the moment the previous commit has returned.

Above it, the lifecycle puts rows and awaits their commit; below it stand the functions of `0001_commit.sql`, one
transaction and one round trip per batch. Nothing here decides: it carries rows, and says what became of each.

A batch is idempotent by its ids, so one whose acknowledgement was lost is sent again, and the answer tells the truth.
A batch that PostgreSQL refuses is sent row by row, so that one poisonous value hurts only itself.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import asyncpg
import structlog

from deputize.core.caller import Epochs
from deputize.core.errors import AuditUnavailable, DeadlineExceeded, Internal, Problem, Unavailable
from deputize.store.rows import (
    Began,
    Beginning,
    Closing,
    Committed,
    DecisionRecord,
    Entry,
    Leaving,
    Opening,
    Queueing,
    Row,
)
from deputize.store.runs import columns, commit_runs

Connect = Callable[[], Awaitable[asyncpg.Connection]]


class Waiting(NamedTuple):
    """A row, who waits for it, until when, and whom to tell if it commits after nobody waits any more."""

    row: Row
    future: "asyncio.Future[Committed]"
    due: float
    orphaned: Callable[[], None] | None


_COMMIT_ENTRIES: Final = "select * from deputize.commit_entries($1, $2, $3, $4, $5, $6)"
_KEEP_DECISIONS: Final = (
    "insert into deputize.decisions (tenant, id, record) "
    "select * from unnest($1::text[], $2::text[], $3::bytea[]) order by 1, 2 on conflict do nothing"
)
_OF_RUNS: Final = (Queueing, Beginning, Leaving)
COMMIT_CALLS: Final = f"select * from deputize.commit_calls({', '.join(f'${n}' for n in range(1, 36))})"

_TRY_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.LockNotAvailableError)
# The server is away, full, or (after a failover) not the primary any more: no row's fault, so no row is refused for it.
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
    asyncpg.ReadOnlySQLTransactionError,
    OSError,
    TimeoutError,
)
# The server gives a batch up before the client does, so that none commits after its rows were sent again.
_CLIENT_PATIENCE: Final = 1.25
_TICK_SECONDS: Final = 0.05
_RETRY_SECONDS: Final = 0.2
# How long anybody waits who has no deadline of its own; what is written is written all the same.
_PATIENCE_SECONDS: Final = 5.0

log = structlog.get_logger(__name__)


class GroupCommit:
    """Owns one connection. `put` is the only way in; a future per row is the only way out."""

    def __init__(self, connect: Connect, *, boot: str, max_rows: int = 500, timeout: float = 10.0) -> None:
        self._connect = connect
        self._boot = boot
        self._max_rows = max_rows
        self._timeout = timeout
        self._connection: asyncpg.Connection | None = None
        self._queue: list[Waiting] = []
        self._flying: list[Waiting] = []
        self._ticking = False
        self._draining: asyncio.Task[None] | None = None
        self._closed = False
        self.down: str | None = "not connected yet"

    async def start(self) -> None:
        await self._reconnect_once()

    async def stop(self) -> None:
        """Writes what waits, then closes; rows that cannot be written by then are refused, as are all after them."""
        clock = asyncio.get_running_loop().time
        ends = clock() + self._timeout
        while self._draining is not None and (self._queue or self._flying) and clock() < ends:
            await asyncio.wait({self._draining}, timeout=ends - clock())
        self._closed = True
        self.down = "the gateway is stopping"
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.wait({self._draining})
        self._refuse(self._queue, "the gateway is stopping")
        self._queue = []
        if self._connection is not None:
            self._connection.terminate()

    def put(
        self, row: Row, *, seconds: float = _PATIENCE_SECONDS, orphaned: Callable[[], None] | None = None
    ) -> "asyncio.Future[Committed]":
        """Queues a row; the future is done when it is durable. While PostgreSQL is away only closings are taken.

        Who waits is told after `seconds` that it takes too long, and may be canceled: the row is written all the same.
        `orphaned` hears of an opening that won its claim when nobody waited for it any more.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Committed] = loop.create_future()
        if self.down is not None and (self._closed or type(row) is not Closing):
            future.set_exception(_refusal(self.down))
            return future
        self._queue.append(Waiting(row, future, loop.time() + seconds, orphaned))
        if self._draining is None:
            self._begin()
            if not self._ticking:
                self._ticking = True
                loop.call_later(_TICK_SECONDS, self._tick, loop)
        return future

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """One look at the clock for everybody who waits: a timer for each would cost more than the wait."""
        now = loop.time()
        for waiting in (*self._flying, *self._queue):
            if waiting.due <= now and not waiting.future.done():
                waiting.future.set_exception(_too_late(waiting.row))
        self._ticking = self._draining is not None
        if self._ticking:
            loop.call_later(_TICK_SECONDS, self._tick, loop)

    def _begin(self) -> None:
        self._draining = asyncio.get_running_loop().create_task(self._drain(), name="group-commit")

    async def _drain(self) -> None:
        try:
            while self._queue or self._connection is None:
                if self._connection is None:
                    # Nobody may be waiting, but nobody is served either until the database is reached again.
                    await self._reach()
                    continue
                # Everything that became ready in this turn of the loop shares the batch; waiting for more turns
                # brought no more calls per second.
                await asyncio.sleep(0)
                self._flying = self._take()
                await self._commit(self._flying)
                self._flying = []
        finally:
            # However this task ends, nobody is left waiting: what it held is in doubt, the rest gets another task.
            self._draining = None
            for waiting in self._flying:
                if not waiting.future.done():
                    in_doubt = Unavailable("whether this was recorded is not known", retry_after_ms=1000)
                    waiting.future.set_exception(in_doubt)
            self._flying = []
            if self._queue and not self._closed:
                self._begin()

    def _take(self) -> list[Waiting]:
        """The next batch: as many rows as it may hold, but one outcome of any call, since their order counts."""
        size = 0
        ended: set[str] = set()
        for waiting in self._queue[: self._max_rows]:
            row = waiting.row
            if type(row) is Closing:
                if row.call_id in ended:
                    break
                ended.add(row.call_id)
            size += 1
        batch, self._queue = self._queue[:size], self._queue[size:]
        return batch

    async def _commit(self, batch: list[Waiting]) -> None:
        delay = 0.01
        while True:
            try:
                answers = await self._send([waiting.row for waiting in batch])
            except _TRY_AGAIN as error:
                log.info("batch_retried", reason=type(error).__name__, rows=len(batch))
            except _LOST as error:
                await self._recover(error)
                if self._connection is None:
                    # Reads do not wait for a database that is away: nothing hangs on whether their entry got there.
                    self._refuse([waiting for waiting in batch if type(waiting.row) is Entry], self.down or "")
                    batch = [waiting for waiting in batch if type(waiting.row) is not Entry]
                if not batch:
                    return
            except asyncpg.PostgresError as error:
                await self._one_by_one(batch, error)
                return
            else:
                _settle(batch, answers)
                return
            await asyncio.sleep(delay)
            delay = min(delay * 2, 0.5)

    async def _send(self, rows: list[Row]) -> list[asyncpg.Record]:
        if self._connection is None:
            raise OSError("no connection to PostgreSQL")
        openings = [row for row in rows if type(row) is Opening]
        closings = [row for row in rows if type(row) is Closing]
        entries = [row for row in rows if type(row) is Entry]
        tenants = list({row[0] for row in rows})
        patience = self._timeout * _CLIENT_PATIENCE
        decisions = [row for row in rows if type(row) is DecisionRecord]
        if decisions:
            # A commit of its own, and first: an entry must never name a record that is not there.
            await self._connection.execute(_KEEP_DECISIONS, *columns(decisions, 3), timeout=patience)
        runs = [row for row in rows if type(row) in _OF_RUNS]
        answers = await commit_runs(self._connection, self._boot, runs, patience) if runs else []
        if len(runs) == len(rows):
            return answers
        if not openings and not closings:
            return answers + await self._connection.fetch(
                _COMMIT_ENTRIES, tenants, *columns(entries, 5), timeout=patience
            )
        return answers + await self._connection.fetch(
            COMMIT_CALLS,
            tenants,
            self._boot,
            *columns(openings, 18),
            *columns(closings, 10),
            *columns(entries, 5),
            timeout=patience,
        )

    async def _one_by_one(self, batch: list[Waiting], error: asyncpg.PostgresError) -> None:
        if len(batch) == 1:
            # PostgreSQL's own words may quote the row's values, so they are not logged.
            log.error("row_refused", reason=type(error).__name__, sqlstate=error.sqlstate)
            row, future = batch[0].row, batch[0].future
            if not future.done():
                harmless = type(row) is not Closing
                future.set_exception(Internal("the call could not be recorded as it is", nothing_happened=harmless))
            return
        log.warning("batch_split", reason=type(error).__name__, sqlstate=error.sqlstate, rows=len(batch))
        for waiting in batch:
            await self._commit([waiting])

    async def _recover(self, error: BaseException) -> None:
        """Rows already sent are in doubt and wait for the truth; rows not yet sent are refused at once."""
        self.down = f"PostgreSQL does not answer ({type(error).__name__})"
        log.error("database_lost", reason=repr(error))
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
        unsent, self._queue = self._queue, []
        self._queue.extend(waiting for waiting in unsent if type(waiting.row) is Closing)
        self._refuse([waiting for waiting in unsent if type(waiting.row) is not Closing], self.down)
        await self._try_to_connect()

    async def _reach(self) -> None:
        await asyncio.sleep(_RETRY_SECONDS)
        await self._try_to_connect()

    async def _try_to_connect(self) -> None:
        try:
            await self._reconnect_once()
        except _LOST as again:
            self.down = f"PostgreSQL does not answer ({type(again).__name__})"
        except asyncpg.PostgresError as refused:
            log.error("connection_refused", reason=str(refused))
            self.down = f"PostgreSQL refuses the connection ({type(refused).__name__})"

    async def _reconnect_once(self) -> None:
        async with asyncio.timeout(self._timeout):
            connection = await self._connect()
            await connection.execute(f"set statement_timeout = {max(int(self._timeout * 1000), 1)}")
        self._connection = connection
        self.down = None

    @staticmethod
    def _refuse(waiting: list[Waiting], reason: str) -> None:
        for each in waiting:
            if not each.future.done():
                each.future.set_exception(_refusal(reason))


def _refusal(reason: str) -> Unavailable:
    return Unavailable(f"nothing can be recorded now: {reason}", retry_after_ms=1000, nothing_happened=True)


def _too_late(row: Row) -> Problem:
    if type(row) is Opening:
        return DeadlineExceeded("the deadline passed before the call could be recorded, so nothing was done")
    if type(row) is Closing:
        return Unavailable("the outcome is not stored yet", retry_after_ms=1000)
    if type(row) is Queueing:
        return Unavailable(
            "whether the call was queued is not known yet; if it was, it goes by the id in details",
            details={"call_id": row.call_id}, retry_after_ms=1000,
        )  # fmt: skip
    return AuditUnavailable("the call could not be recorded in time, so nothing is released", retry_after_ms=1000)


def _settle(batch: list[Waiting], answers: list[asyncpg.Record]) -> None:
    epochs: dict[str, Committed] = {}
    holders: dict[str, str] = {}
    closed: set[str] = set()
    began: dict[str, Began | None] = {}
    alone = False
    for what, tenant, row_id, holder, registry, policy, revocation in answers:
        if what == "epochs":
            epochs[tenant] = Committed(Epochs(registry=registry, policy=policy, revocation=revocation))
        elif what == "held":
            holders[str(row_id)] = str(holder)
        elif what == "closed":
            closed.add(str(row_id))
        elif what == "alone":
            alone = True
        else:
            began[str(row_id)] = what
    for row, future, _, orphaned in batch:
        common = epochs.get(row[0])
        if future.done():
            if orphaned is not None and common is not None and holders.get(row[1] or "") is None:
                orphaned()
            continue
        if common is None:
            future.set_exception(Internal(f"tenant {row[0]} has no epochs"))
        elif type(row) is Opening:
            holder_id = holders.get(row.call_id)
            future.set_result(common if holder_id is None else Committed(common.epochs, holder_id))
        elif type(row) is Queueing:
            future.set_result(Committed(common.epochs, holders.get(row.call_id), alone=alone))
        elif type(row) is Closing:
            future.set_result(Committed(common.epochs, None, row.call_id in closed))
        elif type(row) is Beginning:
            future.set_result(Committed(common.epochs, began=began.get(row.call_id)))
        else:
            future.set_result(common)
