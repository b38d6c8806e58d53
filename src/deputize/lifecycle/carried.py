"""The runs one worker carries: what their tools tell on the way, and who asked them to stop.

One look every quarter of a second serves all of them. What is told is sealed like an outcome and written at most twice
a second for each run, the last word always. Above: `worker.py` and `run.py`. Below: `store/queries/runs.sql`.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any, Final

import orjson
import structlog

from deputize.core.contract import MutationClass
from deputize.core.definition import Told
from deputize.core.errors import Canceled, Problem
from deputize.lifecycle.execute import unknown
from deputize.lifecycle.phases import Authorized, Executed, Held
from deputize.lifecycle.record import redaction_of
from deputize.lifecycle.rooms import Rooms
from deputize.prove.redact import MARK
from deputize.store.pool import LOST, Connection
from deputize.store.queries import load

LOOK_SECONDS: Final = 0.25
WRITE_SECONDS: Final = 0.5
MOST_PARTS: Final = 1000
_SQL = load("runs")
log = structlog.get_logger(__name__)


class Carried:
    """One run while its tool runs here. `tell` may be called from any thread."""

    def __init__(self, rooms: Rooms, authorized: Authorized, held: Held) -> None:
        self._rooms = rooms
        self._authorized = authorized
        self._held = held
        self._began = rooms.clock.monotonic()
        self._task: asyncio.Task[Executed] | None = None
        self._in_thread = False
        self._newest: dict[str, Any] | None = None
        self._parts: deque[dict[str, Any]] = deque()
        self._parts_told = 0
        self._written_at = float("-inf")
        self._seq: int | None = None
        self._sent: tuple[list[dict[str, Any]], dict[str, Any] | None, int | None] = ([], None, None)
        self._writing = asyncio.Lock()
        self.dispatched = False
        self.stopping = False
        self.refused_to_stop = False

    @property
    def tenant(self) -> str:
        return self._authorized.validated.received.caller.tenant

    def is_stopping(self) -> bool:
        return self.stopping

    @contextlib.contextmanager
    def inside(self, *, thread: bool) -> Iterator[None]:
        """Around the tool itself: from here on it may have acted, and a thread cannot be stopped."""
        self.dispatched, self._in_thread = True, thread
        try:
            yield
        finally:
            self._in_thread = False

    def stop(self) -> None:
        if self.stopping:
            return
        self.stopping = True
        if self._in_thread:
            self.refused_to_stop = True
        elif self._task is not None:
            self._task.cancel()

    async def through(self, dispatching: Coroutine[Any, Any, Executed]) -> Executed:
        """The tool's end, or that it was stopped. Its last words are written before its outcome is."""
        if self.stopping:
            dispatching.close()
            executed = self._stopped()
        else:
            self._task = asyncio.create_task(dispatching, name=f"run-{self._held.call_id}")
            try:
                executed = await self._task
            except asyncio.CancelledError:
                own = asyncio.current_task()
                if not self.stopping or (own is not None and own.cancelling()):
                    raise
                executed = self._stopped()
        if self._newest is not None or self._parts or self._writing.locked():
            with contextlib.suppress(*LOST):
                async with self._rooms.store.writing() as connection:
                    await self.write(connection)
        return self._noted(executed)

    def _stopped(self) -> Executed:
        """A read changed nothing, and neither did what was never started. Anything else may have acted before it was
        stopped, and did not say that it had not.
        """
        tool = self._authorized.validated.tool
        where = "while it ran" if self.dispatched else "before it was started"
        problem: Problem = Canceled(f"{tool.name} was stopped {where}", nothing_happened=not self.dispatched)
        may_have_acted = self.dispatched or self._held.taken_over
        if may_have_acted and tool.contract.mutation_class is not MutationClass.READ:
            problem = unknown(tool.contract, problem)
        return Executed(
            authorized=self._authorized,
            held=self._held,
            output=None,
            problem=problem,
            attempts=1,
            seconds=self._rooms.clock.monotonic() - self._began,
        )

    def _noted(self, executed: Executed) -> Executed:
        """Whoever asked in vain is told so by the outcome."""
        if not self.stopping or _was_stopped(executed.problem):
            return executed
        why = "a tool that runs in a thread cannot be stopped" if self.refused_to_stop else "it went on to its end"
        validated = executed.authorized.validated
        warnings = (*validated.warnings, f"the call was asked to stop and did not: {why}")
        authorized = replace(executed.authorized, validated=replace(validated, warnings=warnings))
        return replace(executed, authorized=authorized)

    def tell(self, told: Told) -> None:
        """Kept until the next writing; of progress only the newest, for it says all the others said."""
        record = {
            "elapsed_ms": int((self._rooms.clock.monotonic() - self._began) * 1000),
            "timestamp": self._rooms.stamps.now(),
        }
        if told.partial is not None:
            self._parts_told += 1
            if self._parts_told <= MOST_PARTS:
                self._parts.append({**record, "status": "partial_result", **self._redacted(told.partial)})
            elif self._parts_told == MOST_PARTS + 1:
                said = f"more than {MOST_PARTS} parts of the result are not kept"
                self._newest = {**record, **_how_far(Told(message=said))}
            return
        self._newest = {**record, **_how_far(told)}

    def _redacted(self, partial: bytes) -> dict[str, Any]:
        """What the result's schema marks stays out. Of a part that does not have the result's shape, the marks say
        nothing: where there are any, it stays out as a whole.
        """
        tool = self._authorized.validated.tool
        value, plan = orjson.loads(partial), redaction_of(tool, "output")
        if plan.trivial:
            return {"partial_result": value}
        if not tool.is_valid_output(value):
            return {"partial_result": MARK, "redactions": ["/"]}
        shown, paths = plan.apply(value)
        return {"partial_result": shown, "redactions": list(paths)}

    @property
    def due(self) -> bool:
        waiting = self._newest is not None or bool(self._parts)
        return waiting and self._rooms.clock.monotonic() - self._written_at >= WRITE_SECONDS

    async def write(self, connection: Connection) -> None:
        """Everything told since the last time, by one writer at a time."""
        async with self._writing:
            parts, newest = self._take()
            self._written_at = self._rooms.clock.monotonic()
            self._sent = parts, newest, self._seq
            try:
                await self._add(connection, parts, newest)
            except BaseException:
                self.not_written()
                raise

    def not_written(self) -> None:
        """What was written last did not come to a commit, or nobody knows: it goes again, by the same numbers."""
        parts, newest, self._seq = self._sent
        self._parts.extendleft(reversed(parts))
        if self._newest is None:
            self._newest = newest

    def _take(self) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        newest, self._newest = self._newest, None
        return [self._parts.popleft() for _ in range(len(self._parts))], newest

    async def _add(self, connection: Connection, parts: list[dict[str, Any]], newest: dict[str, Any] | None) -> None:
        records = parts if newest is None else [*parts, newest]
        if not records:
            return
        tenant, call_id = self.tenant, self._held.call_id
        if self._seq is None:
            self._seq = await connection.fetchval(_SQL["last_progress"], tenant, call_id)
            self._sent = parts, newest, self._seq
        first = (self._seq or 0) + 1
        self._seq = first + len(records) - 1
        keys = self._rooms.keys.ready(tenant) or await self._rooms.keys.load(self._rooms.store, tenant)
        boxes = [
            keys.seal(call_id, "progress", orjson.dumps({"sequence": first + place, **record}))
            for place, record in enumerate(records)
        ]
        await connection.execute(
            _SQL["add_progress"], tenant, call_id, self._rooms.lease.boot, self._held.epoch,
            list(range(first, first + len(records))), boxes, ["partial_result" in record for record in records],
        )  # fmt: skip
        if newest is not None:
            await connection.execute(_SQL["forget_progress"], tenant, call_id, self._seq)


def _was_stopped(problem: Problem | None) -> bool:
    return problem is not None and (isinstance(problem, Canceled) or isinstance(problem.__cause__, Canceled))


def _how_far(told: Told) -> dict[str, Any]:
    percent = None
    if told.done is not None and told.total:
        percent = round(max(0.0, min(100.0, 100 * told.done / told.total)), 1)
    return {
        "status": "running",
        "message": told.message,
        "percent": percent,
        "current_step": told.done,
        "total_steps": told.total,
    }


class Desk:
    """Everything this worker carries now."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._carried: dict[str, Carried] = {}
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._carried)

    @contextlib.contextmanager
    def carrying(self, authorized: Authorized, held: Held) -> Iterator[tuple[Held, Carried]]:
        carried = self._carried[held.call_id] = Carried(self._rooms, authorized, held)
        try:
            yield replace(held, run=carried), carried
        finally:
            # Whoever was taken over by this very process, and comes to its end late, has nothing to take away here.
            if self._carried.get(held.call_id) is carried:
                del self._carried[held.call_id]

    async def start(self) -> None:
        self._task = asyncio.create_task(self._keep_looking(), name="desk")

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._carried:
                try:
                    await self.look()
                except LOST as error:
                    log.warning("desk_failed", reason=repr(error))

    async def look(self) -> None:
        written: list[Carried] = []
        try:
            async with self._rooms.store.writing() as connection:
                for row in await connection.fetch(_SQL["asked_to_stop"], self._rooms.lease.boot):
                    carried = self._carried.get(str(row["id"]))
                    if carried is not None and carried.tenant == row["tenant"]:
                        carried.stop()
                for carried in [each for each in self._carried.values() if each.due]:
                    await carried.write(connection)
                    written.append(carried)
        except BaseException:
            # One commit for all of them: what breaks it takes back the words of every run, not of one.
            for carried in written:
                carried.not_written()
            raise
