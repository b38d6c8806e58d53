"""Execute the runs that the engine assigns to this process, and take over the runs of dead processes.

A process is dead once its lease has expired by the database's clock; the worker that finds it requeues its runs. A run
that outlived too many workers is given up, because it may be what kills them.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from deputize.core.errors import InternalError, Problem, Unavailable
from deputize.core.event_loop.task_cancellation import cancel_task
from deputize.lifecycle.durable.active_runs import ActiveRuns
from deputize.lifecycle.durable.resume import RunNotReady
from deputize.lifecycle.run import Lifecycle
from deputize.runs.engine import DurableEngine
from deputize.store.pool import CONNECTION_ERRORS
from deputize.store.queries import load_statements

_SQL = load_statements("runs")
# Checks that are expensive and seldom find anything run only at every so many of the others.
_RARE_CHECK_INTERVAL = 5
_PAUSE_SECONDS, _MAX_PAUSE = 0.2, 1.0
_FAULT_RETRY_SECONDS = 10.0
_MAX_ROUNDS = 20
log = structlog.get_logger(__name__)


class Worker:
    def __init__(self, lifecycle: Lifecycle, engine: DurableEngine) -> None:
        self._lifecycle = lifecycle
        self._runtime = lifecycle.runtime
        self._engine = engine
        self._active_runs = ActiveRuns(self._runtime)
        self._watch_task: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._missing_runs: frozenset[str] = frozenset()
        self.drain_seconds = self._runtime.settings.runs.drain_seconds
        """How long `stop` waits for the runs of this worker."""
        self.remaining_runs = 0
        """How many runs had not ended when this worker stopped waiting for them."""

    async def start(self) -> None:
        await self._register_worker()
        await self._active_runs.start()
        await self._engine.start(self._run_to_end)
        self._watch_task = asyncio.create_task(self._watch_loop(), name="takeover")

    @property
    def is_alive(self) -> bool:
        return self._watch_task is not None and not self._watch_task.done() and self._active_runs.is_alive

    @property
    def active_run_count(self) -> int:
        """How many runs are active in this process."""
        return len(self._active_runs)

    async def stop(self) -> None:
        """Take no more runs and wait for the active ones; mark those that do not end in time UNKNOWN."""
        if self._watch_task is not None:
            await cancel_task(self._watch_task)
        loop = asyncio.get_running_loop()
        end = loop.time() + self.drain_seconds
        # The engine's library waits a second at least, if at all.
        await self._engine.stop(seconds=self.drain_seconds if self._tasks else 0)
        if self._tasks:
            # What was handed over while it stopped.
            await asyncio.wait(self._tasks, timeout=max(0, end - loop.time()))
        self.remaining_runs = len(self._tasks)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._runtime.settings.timing.lease_seconds)
        await self._active_runs.stop()

    async def _run_to_end(self, tenant: str, call_id: str) -> None:
        """Execute a run until it has ended, waits as a row, or is requeued, so that it is never dropped.

        Errors are recorded in the run's row and not raised: the engine would only retry it blindly.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a run must be executed in an asyncio task")
        self._tasks[task] = call_id
        try:
            pause = _PAUSE_SECONDS
            while not await self._try_run(tenant, call_id):
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE)
        finally:
            del self._tasks[task]

    async def _try_run(self, tenant: str, call_id: str) -> bool:
        """Try to execute the run once; tell whether nothing is left to do for it here."""
        try:
            await self._lifecycle.resume_run(tenant, call_id, self._active_runs)
        except RunNotReady as later:
            log.info("run_put_back", call_id=call_id, why=str(later))
            return await self._requeue_run(tenant, call_id, later.seconds, unable=later.unable)
        except (Unavailable, *CONNECTION_ERRORS) as away:
            log.warning("run_waits_for_database", call_id=call_id, reason=type(away).__name__)
            return False
        except InternalError:
            # The database rejected the write before the run began, so the run can be requeued.
            log.error("run_not_begun", call_id=call_id)
            return await self._requeue_run(tenant, call_id, _FAULT_RETRY_SECONDS, unable=False)
        except Problem as problem:
            log.warning("run_ended_early", call_id=call_id, problem=problem.spec.slug)
        except Exception as fault:
            # A bug in the gateway before the run began; once it has begun, errors are recorded in the run itself.
            log.exception("run_not_carried", call_id=call_id, reason=type(fault).__name__)
            return await self._requeue_run(tenant, call_id, _FAULT_RETRY_SECONDS, unable=True)
        return True

    async def _requeue_run(self, tenant: str, call_id: str, seconds: float, *, unable: bool) -> bool:
        try:
            async with self._runtime.store.write_transaction() as connection:
                await connection.execute(_SQL["return_run_to_queue"], tenant, call_id, seconds, unable)
        except CONNECTION_ERRORS as error:
            log.warning("run_not_put_back", call_id=call_id, reason=repr(error))
            return False
        return True

    async def _watch_loop(self) -> None:
        frequent_checks = (self._register_worker, self._take_over_dead_workers, self._balance_queue)
        rare_checks = (self._requeue_lost_runs, self._requeue_orphans, self._forget_ended_runs)
        check_count = 0
        while True:
            await asyncio.sleep(self._runtime.settings.timing.sweep_seconds)
            check_count += 1
            for check in frequent_checks if check_count % _RARE_CHECK_INTERVAL else (*frequent_checks, *rare_checks):
                await self._run_check(check)

    async def _run_check(self, check: Callable[[], Awaitable[object]]) -> None:
        """Run one check; the engine's library raises many kinds of errors, and none may end the loop."""
        try:
            await check()
        except Exception as error:  # noqa: BLE001 -- the loop must go on: the next check may succeed
            log.warning("look_failed", look=check.__name__.strip("_"), reason=repr(error))

    async def _register_worker(self) -> None:
        """Register this worker so that its runs are taken over if it dies; again if it was deleted while it lived."""
        async with self._runtime.store.write_transaction() as connection:
            await connection.execute(_SQL["insert_worker"], self._runtime.lease.boot_id, self._runtime.release)

    async def _take_over_dead_workers(self) -> None:
        lease = self._runtime.lease
        for _ in range(_MAX_ROUNDS):
            if not lease.is_valid or lease.has_recently_lapsed or await self.take_over_worker() is None:
                return

    async def take_over_worker(self) -> int | None:
        """Requeue the runs of one dead process; return how many there were, or None if no process is dead.

        Its row is locked meanwhile, so that one worker does it, and deleted last, so that the next worker continues if
        this one dies half way.
        """
        run_count = 0
        async with self._runtime.store.write_transaction() as connection:
            worker_id = await connection.fetchval(
                _SQL["lock_dead_worker"], self._runtime.settings.timing.margin_seconds
            )
            if worker_id is None:
                return None
            for _ in range(_MAX_ROUNDS):
                names = await self._engine.list_pending_workflows(str(worker_id))
                if not names:
                    break
                await self._engine.requeue_workflows(names)
                run_count += len(names)
            await connection.execute(_SQL["delete_worker"], worker_id)
        if run_count:
            log.warning("runs_taken_over", executor=str(worker_id), count=run_count)
        return run_count

    async def _requeue_lost_runs(self) -> None:
        """Requeue runs that the engine assigned to this process but that never arrived, as after a database outage."""
        local_ids = set(self._tasks.values())
        missing_runs = {
            name
            for name in await self._engine.list_pending_workflows(self._runtime.lease.boot_id)
            if name[:36] not in local_ids
        }
        # A run missing at two checks in a row neither just arrived nor just ended.
        lost_runs = missing_runs & self._missing_runs
        self._missing_runs = frozenset(missing_runs - lost_runs)
        if lost_runs:
            await self._engine.requeue_workflows(sorted(lost_runs))
            log.warning("runs_found_astray", count=len(lost_runs))

    async def _requeue_orphans(self) -> None:
        """Requeue runs of dead processes that are not registered, so that no takeover finds them.

        Such a process was deleted while it lived, took more runs, and died before it registered again.
        """
        lease = self._runtime.lease
        if not lease.is_valid or lease.has_recently_lapsed:
            return
        async with self._runtime.store.write_transaction() as connection:
            rows = await connection.fetch(
                _SQL["list_dead_unregistered_processes"], self._runtime.settings.timing.margin_seconds
            )
        orphans = await self._engine.list_pending_workflows(*(str(row["boot"]) for row in rows)) if rows else ()
        if orphans:
            await self._engine.requeue_workflows(orphans)
            log.warning("runs_found_orphaned", count=len(orphans))

    async def _balance_queue(self) -> None:
        async with self._runtime.store.write_transaction() as connection:
            await connection.execute(_SQL["clean_lock_queues"])
            tenants = await connection.fetchval(
                _SQL["count_tenants_with_queued_runs"], self._runtime.settings.runs.at_once
            )
        await self._engine.divide_among_tenants(tenants)

    async def _forget_ended_runs(self) -> None:
        for _ in range(_MAX_ROUNDS):
            if not await self._engine.delete_ended_workflows():
                return
