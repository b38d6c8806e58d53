"""The seam to the durable engine (DBOS on our PostgreSQL). Nothing else imports it, and only ids cross.

Our tables are the truth: a run's state, its owner, its outcome. The engine queues, hands out, and remembers to whom a
run was handed; it is never asked what became of one. A run enters through `deputize.enqueue_run`, in the transaction
that wrote our row. Handing it out has no steps to remember: a run that is handed out twice is begun once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from dbos import DBOS, DBOSPortableJSONSerializer, Queue

# One queue for everything; tenants are its partitions, so that none waits behind another's flood.
QUEUE = "runs"
_APPLICATION = "deputize"
# Of what is handed out, which never changes, and not of Deputize: the engine gives a run to workers of one version
# only, and releases must be able to carry each other's.
_VERSION = "deputize-1"
_CONNECTIONS = 6
_MOST_AT_ONCE = 500
_ENDED = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]

# (tenant, call id): carries one run as far as it goes. Raises nothing: its outcome is in our tables.
Carry = Callable[[str, str], Awaitable[None]]


class Engine:
    """One per process: the library underneath keeps one set of workflows for a whole process."""

    def __init__(self, dsn: str, *, executor: str, at_once: int, poll_seconds: float) -> None:
        self._dsn = dsn
        self._executor = executor
        self._at_once = at_once
        self._poll_seconds = poll_seconds
        self._share = _fair_share(at_once, 1)
        self._queue: Queue | None = None

    async def start(self, carry: Carry) -> None:
        """Begins to take runs, on the running loop: launched from a thread, coroutines would get another one."""
        config: Any = {
            "name": _APPLICATION,
            "system_database_url": self._dsn,
            "sys_db_pool_size": _CONNECTIONS,
            "db_engine_kwargs": {"pool_pre_ping": False, "connect_args": _connection(self._dsn)},
            "executor_id": self._executor,
            "application_version": _VERSION,
            "run_migrations": False,
            "serializer": DBOSPortableJSONSerializer(),
            "log_level": "WARNING",
        }
        engine: Any = DBOS(config=config)

        async def body(tenant: str, call_id: str) -> None:
            await carry(tenant, call_id)

        DBOS.workflow(name="carry", max_recovery_attempts=None)(body)
        DBOS.listen_queues([QUEUE])
        try:
            DBOS.launch()
            # When the database is away the library waits ever longer, up to a minute, and everything handed out here
            # would wait with it. There is no setting for it. What it fails to note down is handed out again, and found
            # to be done.
            engine._sys_db._retry_connection_errors = False
            self._queue = await DBOS.register_queue_async(
                QUEUE,
                worker_concurrency=self._at_once,
                partition_worker_concurrency=self._share,
                polling_interval_sec=self._poll_seconds,
            )
        except BaseException:
            await _destroy(0)
            raise

    async def stop(self, *, seconds: float) -> None:
        """Takes no more; waits so long for what runs. What is still running then is a live peer's to take over."""
        if self._queue is not None:
            self._queue = None
            await _destroy(seconds)

    async def share_among(self, tenants: int) -> None:
        """Divides the places of every worker among so many tenants that have runs, with room for one that comes."""
        share = _fair_share(self._at_once, tenants)
        if share != self._share and self._queue is not None:
            await self._queue.set_partition_worker_concurrency_async(share)
            self._share = share

    async def held_by(self, *executors: str) -> Sequence[str]:
        """Some of the runs that were handed to these processes and not finished there, by the engine's names for them.
        Each begins with the run's own id.
        """
        found = await DBOS.list_workflows_async(
            status="PENDING", executor_id=list(executors), limit=_MOST_AT_ONCE, load_input=False, load_output=False
        )
        return [each.workflow_id for each in found]

    async def hand_out_again(self, names: Sequence[str]) -> None:
        """To whoever is there. Nothing is compared and set here: two may get the same run, and one begins it."""
        await DBOS.resume_workflows_async(list(names), queue_name=QUEUE)

    async def forget_ended(self) -> int:
        """Some of those that were handed out and came back; our tables tell all there is to tell of them. How many."""
        found = await DBOS.list_workflows_async(status=_ENDED, limit=_MOST_AT_ONCE, load_input=False, load_output=False)
        if found:
            await DBOS.delete_workflows_async([each.workflow_id for each in found])
        return len(found)


def _connection(dsn: str) -> dict[str, str]:
    """What the engine writes need not be durable: forgotten in a crash, a run is handed out again. So its commits wait
    for no disk, and keep none busy that others wait for. What we enqueue is in a commit of ours, which does.
    """
    given = dict(parse_qsl(urlsplit(dsn).query)).get("options", "")
    return {"application_name": "deputize runs", "options": f"{given} -c synchronous_commit=off".strip()}


async def _destroy(seconds: float) -> None:
    # The library made the loop's threads its own and ends them; whoever stays needs new ones.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio"))
    await asyncio.to_thread(DBOS.destroy, destroy_registry=True, workflow_completion_timeout_sec=int(seconds))


def _fair_share(at_once: int, tenants: int) -> int:
    """How many places of a worker one tenant may take: an equal part of all but a quarter, which is for newcomers."""
    spare = max(1, at_once // 4) if at_once > 1 else 0
    return max(1, (at_once - spare) // max(tenants, 1))
