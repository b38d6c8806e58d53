"""Track the runs that one worker executes: store their progress and stop those that are canceled.

One loop every quarter of a second serves all of them. Progress is encrypted like an outcome and written at most twice a
second per run; the last report is always written.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any, Final

import orjson
import structlog

from deputize.core.contract.contract import MutationClass
from deputize.core.contract.tools import ToolProgress
from deputize.core.degradation import Degradation
from deputize.core.errors import Canceled, Problem
from deputize.core.event_loop.task_cancellation import cancel_task
from deputize.core.sensitive.marks import REDACTION_MARK
from deputize.lifecycle.execute import build_outcome_unknown
from deputize.lifecycle.phases import Authorized, Claim, Executed
from deputize.lifecycle.recording.redaction import get_redaction_plan
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import CONNECTION_ERRORS, Connection
from deputize.store.queries import load_statements

POLL_SECONDS: Final = 0.25
WRITE_SECONDS: Final = 0.5
MAX_PARTS: Final = 1000
_SQL = load_statements("runs")
log = structlog.get_logger(__name__)


class ActiveRun:
    """One run while its tool executes here. `report_progress` may be called from any thread."""

    def __init__(self, runtime: Runtime, authorized: Authorized, claim: Claim) -> None:
        self._runtime = runtime
        self._authorized = authorized
        self._claim = claim
        self._started_at = runtime.clock.monotonic()
        self._task: asyncio.Task[Executed] | None = None
        self._in_thread = False
        self._latest_progress: dict[str, Any] | None = None
        self._pending_parts: deque[dict[str, Any]] = deque()
        self._part_count = 0
        self._last_write_at = float("-inf")
        self._seq: int | None = None
        self._last_batch: tuple[list[dict[str, Any]], dict[str, Any] | None, int | None] = ([], None, None)
        self._write_lock = asyncio.Lock()
        self.is_dispatched = False
        self.stop_requested = False
        self.cannot_stop = False

    @property
    def tenant(self) -> str:
        return self._authorized.validated.call.tenant

    def is_stopping(self) -> bool:
        return self.stop_requested

    @contextlib.contextmanager
    def enter_tool(self, *, thread: bool) -> Iterator[None]:
        """Enter the tool: from here on it may have acted, and a thread cannot be stopped."""
        self.is_dispatched, self._in_thread = True, thread
        try:
            yield
        finally:
            self._in_thread = False

    def request_stop(self) -> None:
        if self.stop_requested:
            return
        self.stop_requested = True
        if self._in_thread:
            self.cannot_stop = True
        elif self._task is not None:
            self._task.cancel()

    async def await_tool(self, coroutine: Coroutine[Any, Any, Executed]) -> Executed:
        """Wait for the tool's end or its cancellation; its last progress is written before its outcome."""
        if self.stop_requested:
            coroutine.close()
            executed = self._build_canceled()
        else:
            self._task = asyncio.create_task(coroutine, name=f"run-{self._claim.call_id}")
            try:
                executed = await self._task
            except asyncio.CancelledError:
                current_task = asyncio.current_task()
                if not self.stop_requested or (current_task is not None and current_task.cancelling()):
                    raise
                executed = self._build_canceled()
        if self._latest_progress is not None or self._pending_parts or self._write_lock.locked():
            with contextlib.suppress(*CONNECTION_ERRORS):
                async with self._runtime.store.write_transaction() as connection:
                    await self.write_progress(connection)
        return self._add_stop_warning(replace(executed, has_partial_result=True) if self._part_count else executed)

    def _build_canceled(self) -> Executed:
        """Build the result of a canceled run.

        A read, or a tool that never started, changed nothing. Anything else may have acted before it was stopped.
        """
        tool = self._authorized.validated.tool
        where = "while it ran" if self.is_dispatched else "before it started"
        problem: Problem = Canceled(f"{tool.name} was stopped {where}", nothing_happened=not self.is_dispatched)
        may_have_acted = self.is_dispatched or self._claim.is_takeover
        if may_have_acted and tool.contract.mutation_class is not MutationClass.READ:
            problem = build_outcome_unknown(tool.contract, problem)
        return Executed(
            authorized=self._authorized,
            claim=self._claim,
            output=None,
            problem=problem,
            attempts=1,
            seconds=self._runtime.clock.monotonic() - self._started_at,
        )

    def _add_stop_warning(self, executed: Executed) -> Executed:
        """Add a warning to the outcome if cancellation was requested but the tool did not stop."""
        if not self.stop_requested or _is_canceled(executed.problem):
            return executed
        why = "a tool that runs in a thread cannot be stopped" if self.cannot_stop else "it finished first"
        validated = executed.validated
        warnings = (*validated.warnings, f"cancellation was requested, but the tool did not stop: {why}")
        degradations = (*validated.degradations, Degradation.NOT_STOPPED)
        authorized = replace(
            executed.authorized, validated=replace(validated, warnings=warnings, degradations=degradations)
        )
        return replace(executed, authorized=authorized)

    def report_progress(self, progress: ToolProgress) -> None:
        """Buffer progress until the next write; only the newest counts, but every partial result is kept."""
        record = {
            "elapsed_ms": int((self._runtime.clock.monotonic() - self._started_at) * 1000),
            "timestamp": self._runtime.stamps.now(),
        }
        if progress.partial is not None:
            self._part_count += 1
            if self._part_count <= MAX_PARTS:
                self._pending_parts.append(
                    {**record, "status": "partial_result", **self._redact_partial(progress.partial)}
                )
            elif self._part_count == MAX_PARTS + 1:
                message = f"the tool sent more than {MAX_PARTS} partial results; further ones are dropped"
                self._latest_progress = {**record, **_describe_progress(ToolProgress(message=message))}
            return
        self._latest_progress = {**record, **_describe_progress(progress)}

    def _redact_partial(self, partial: bytes) -> dict[str, Any]:
        """Redact what the result's schema marks as sensitive.

        If the part does not match the schema, or checking that takes long, it is redacted as a whole.
        """
        tool = self._authorized.validated.tool
        value, plan = orjson.loads(partial), get_redaction_plan(tool, "output")
        if plan.trivial:
            return {"partial_result": value}
        if tool.output.is_costly(partial) or not tool.is_valid_output(value):
            return {"partial_result": REDACTION_MARK, "redactions": ["/"]}
        visible_value, paths = plan.apply_marks(value)
        return {"partial_result": visible_value, "redactions": list(paths)}

    @property
    def is_due(self) -> bool:
        has_pending = self._latest_progress is not None or bool(self._pending_parts)
        return has_pending and self._runtime.clock.monotonic() - self._last_write_at >= WRITE_SECONDS

    async def write_progress(self, connection: Connection) -> None:
        """Write everything reported since the last write, one writer at a time."""
        async with self._write_lock:
            parts, latest = self._take_pending()
            self._last_write_at = self._runtime.clock.monotonic()
            self._last_batch = parts, latest, self._seq
            try:
                await self._insert_progress(connection, parts, latest)
            except BaseException:
                self.restore_batch()
                raise

    def restore_batch(self) -> None:
        """Buffer the last batch again, with the same numbers, because its commit failed or is uncertain."""
        parts, latest, self._seq = self._last_batch
        self._pending_parts.extendleft(reversed(parts))
        if self._latest_progress is None:
            self._latest_progress = latest

    def _take_pending(self) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        latest, self._latest_progress = self._latest_progress, None
        return [self._pending_parts.popleft() for _ in range(len(self._pending_parts))], latest

    async def _insert_progress(
        self, connection: Connection, parts: list[dict[str, Any]], latest: dict[str, Any] | None
    ) -> None:
        records = parts if latest is None else [*parts, latest]
        if not records:
            return
        tenant, call_id = self.tenant, self._claim.call_id
        if self._seq is None:
            self._seq = await connection.fetchval(_SQL["load_last_progress_seq"], tenant, call_id)
            self._last_batch = parts, latest, self._seq
        first = (self._seq or 0) + 1
        self._seq = first + len(records) - 1
        keys = await self._runtime.keys.get(tenant)
        ciphertexts = [
            keys.seal(call_id, "progress", orjson.dumps({"sequence": first + index, **record}))
            for index, record in enumerate(records)
        ]
        await connection.execute(
            _SQL["insert_progress"], tenant, call_id, self._runtime.lease.boot_id, self._claim.epoch,
            list(range(first, first + len(records))), ciphertexts, ["partial_result" in record for record in records],
        )  # fmt: skip
        if latest is not None:
            await connection.execute(_SQL["delete_progress_before"], tenant, call_id, self._seq)


def _is_canceled(problem: Problem | None) -> bool:
    return problem is not None and (isinstance(problem, Canceled) or isinstance(problem.__cause__, Canceled))


def _describe_progress(progress: ToolProgress) -> dict[str, Any]:
    percent = None
    if progress.current is not None and progress.total:
        percent = round(max(0.0, min(100.0, 100 * progress.current / progress.total)), 1)
    return {
        "status": "running",
        "message": progress.message,
        "percent": percent,
        "current_step": progress.current,
        "total_steps": progress.total,
    }


class ActiveRuns:
    """The runs that this worker executes now."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._runs: dict[str, ActiveRun] = {}
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._runs)

    @contextlib.contextmanager
    def track_run(self, authorized: Authorized, claim: Claim) -> Iterator[tuple[Claim, ActiveRun]]:
        active_run = self._runs[claim.call_id] = ActiveRun(self._runtime, authorized, claim)
        try:
            yield replace(claim, active_run=active_run), active_run
        finally:
            # A late run may have been taken over by this same process: do not remove its successor.
            if self._runs.get(claim.call_id) is active_run:
                del self._runs[claim.call_id]

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run_loop(), name="active-runs")

    @property
    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        if self._task is not None:
            await cancel_task(self._task)

    async def _run_loop(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if self._runs:
                try:
                    await self.sync_runs()
                except CONNECTION_ERRORS as error:
                    log.warning("desk_failed", reason=repr(error))

    async def sync_runs(self) -> None:
        flushed_runs: list[ActiveRun] = []
        try:
            async with self._runtime.store.write_transaction() as connection:
                for row in await connection.fetch(_SQL["list_cancel_requests"], self._runtime.lease.boot_id):
                    active_run = self._runs.get(str(row["id"]))
                    if active_run is not None and active_run.tenant == row["tenant"]:
                        active_run.request_stop()
                for active_run in [each for each in self._runs.values() if each.is_due]:
                    await active_run.write_progress(connection)
                    flushed_runs.append(active_run)
        except BaseException:
            # One commit for all runs: if it fails, buffer the progress of every run again.
            for active_run in flushed_runs:
                active_run.restore_batch()
            raise
