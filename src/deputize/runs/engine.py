"""Wrap the durable engine (DBOS on our PostgreSQL). Nothing else imports DBOS, and only ids cross this border.

Our tables are the source of truth for a run's state, owner and outcome. The engine only queues runs, hands them to
workers and remembers to which. A run enters through `deputize.enqueue_run`, in the transaction that wrote our row. A
run that the engine hands out twice starts once.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from dbos import DBOS, DBOSPortableJSONSerializer, Queue

from deputize.core.settings.database_urls import separate_hosts

# One queue with a partition per tenant, so that no tenant waits behind another's flood.
QUEUE = "runs"
_APPLICATION = "deputize"
# The version of the workflow, which never changes, and not of Deputize: the engine gives a run only to workers of one
# version, and releases must be able to run each other's runs.
_VERSION = "deputize-1"
_CONNECTIONS = 6
_PAGE_SIZE = 500
_TERMINAL_STATUSES = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]

# Takes the tenant and the call id, and executes the run. Raises nothing: the outcome is in our tables.
RunHandler = Callable[[str, str], Coroutine[Any, Any, None]]


class DurableEngine:
    """The engine of this process. There can be only one, because DBOS keeps its workflows per process."""

    def __init__(self, dsn: str, *, executor: str, concurrency: int, poll_seconds: float) -> None:
        self._dsn = dsn
        self._executor = executor
        self._concurrency = concurrency
        self._poll_seconds = poll_seconds
        self._share = _compute_fair_share(concurrency, 1)
        self._queue: Queue | None = None

    async def start(self, run_handler: RunHandler) -> None:
        """Start to take runs on the running event loop; launched from a thread, DBOS would start another loop."""
        config: Any = {
            "name": _APPLICATION,
            "system_database_url": separate_hosts(self._dsn),
            "sys_db_pool_size": _CONNECTIONS,
            "db_engine_kwargs": {"pool_pre_ping": False, "connect_args": _build_connect_args(self._dsn)},
            "executor_id": self._executor,
            "application_version": _VERSION,
            "run_migrations": False,
            "serializer": DBOSPortableJSONSerializer(),
            "log_level": "WARNING",
        }
        engine: Any = DBOS(config=config)
        loop = asyncio.get_running_loop()

        async def body(tenant: str, call_id: str) -> None:
            if asyncio.get_running_loop() is loop:
                await run_handler(tenant, call_id)
            else:
                # In moments in which our loop does not run, DBOS uses a loop in a thread of its own. Connections belong
                # to ours, and two threads that use one of them bring the process down.
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run_handler(tenant, call_id), loop))

        DBOS.workflow(name="carry", max_recovery_attempts=None)(body)
        DBOS.listen_queues([QUEUE])
        try:
            DBOS.launch()
            # While the database is away, DBOS waits up to a minute, and all runs of this worker would wait with it.
            # There is no setting for it. A run whose end DBOS fails to record is handed out again, and has then ended.
            engine._sys_db._retry_connection_errors = False
            self._queue = await DBOS.register_queue_async(
                QUEUE,
                worker_concurrency=self._concurrency,
                partition_worker_concurrency=self._share,
                polling_interval_sec=self._poll_seconds,
            )
        except BaseException:
            await _destroy_engine(0)
            raise

    async def stop(self, *, seconds: float) -> None:
        """Take no more runs, and wait for those that run. After the given time, other workers take them over."""
        if self._queue is not None:
            self._queue = None
            await _destroy_engine(seconds)

    async def divide_among_tenants(self, tenants: int) -> None:
        """Divide the slots of every worker among this many tenants with runs, with some to spare for a new one."""
        share = _compute_fair_share(self._concurrency, tenants)
        if share != self._share and self._queue is not None:
            await self._queue.set_partition_worker_concurrency_async(share)
            self._share = share

    async def list_pending_workflows(self, *executors: str) -> Sequence[str]:
        """List a page of unfinished workflows of these processes. Each id begins with the id of its run."""
        workflows = await DBOS.list_workflows_async(
            status="PENDING", executor_id=list(executors), limit=_PAGE_SIZE, load_input=False, load_output=False
        )
        return [each.workflow_id for each in workflows]

    async def requeue_workflows(self, workflow_ids: Sequence[str]) -> None:
        """Requeue workflows for any worker. Two workers may get the same run; only one can begin it."""
        await DBOS.resume_workflows_async(list(workflow_ids), queue_name=QUEUE)

    async def delete_ended_workflows(self) -> int:
        """Delete a page of ended workflows, which our tables do not need, and return their number."""
        workflows = await DBOS.list_workflows_async(
            status=_TERMINAL_STATUSES, limit=_PAGE_SIZE, load_input=False, load_output=False
        )
        if workflows:
            await DBOS.delete_workflows_async([each.workflow_id for each in workflows])
        return len(workflows)


def _build_connect_args(dsn: str) -> dict[str, str]:
    """Build connection arguments with `synchronous_commit=off`. The engine's own writes need not survive a crash: a run
    is then handed out again. Runs are enqueued in commits of ours, which are durable.
    """
    options = dict(parse_qsl(urlsplit(dsn).query)).get("options", "")
    return {"application_name": "deputize runs", "options": f"{options} -c synchronous_commit=off".strip()}


async def _destroy_engine(seconds: float) -> None:
    # DBOS replaced the loop's executor and shuts it down, so the loop needs a new one.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio"))
    await asyncio.to_thread(DBOS.destroy, destroy_registry=True, workflow_completion_timeout_sec=int(seconds))


def _compute_fair_share(concurrency: int, tenants: int) -> int:
    """Compute how many slots of a worker one tenant may use: an equal share of three quarters; the rest is spare."""
    spare = max(1, concurrency // 4) if concurrency > 1 else 0
    return max(1, (concurrency - spare) // max(tenants, 1))
