"""Workers in processes of their own that are killed, frozen and started again, and who holds what at that moment."""

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import asyncpg

from deputize.store.pool import CONNECTION_ERRORS
from proofs.kit.fork_server import DEPUTIZE_MODULE, ForkedProcess, ForkServer
from proofs.kit.sandbox import Sandbox

_PENDING_RUNS = """
select distinct left(workflow_uuid, 36)::uuid as id from dbos.workflow_status
where executor_id = $1 and status = 'PENDING'
"""
_BOOTS = "select boot from deputize.workers"
_MAX_STARTS = 20
_OPEN = "select id from deputize.calls where id = any($1::uuid[]) and state in ('queued', 'running')"


class Database:
    """A look into the database that survives its being killed."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: asyncpg.Connection | None = None
        self._one_at_a_time = asyncio.Lock()

    async def fetch(self, sql: str, *arguments: object) -> list[asyncpg.Record]:
        async with asyncio.timeout(120), self._one_at_a_time:
            while True:
                try:
                    if self._connection is None or self._connection.is_closed():
                        self._connection = await asyncpg.connect(self._dsn)
                    return await self._connection.fetch(sql, *arguments)
                except CONNECTION_ERRORS:
                    self._connection = None
                    await asyncio.sleep(0.1)

    async def fetch_value(self, sql: str, *arguments: object) -> object:
        return (await self.fetch(sql, *arguments))[0][0]

    async def wait_until(self, sql: str, *arguments: object, seconds: float = 180.0) -> None:
        """Waits until the value is there, and not nothing or none."""
        async with asyncio.timeout(seconds):
            while not await self.fetch_value(sql, *arguments):  # noqa: ASYNC110 -- what changes it is another process
                await asyncio.sleep(0.1)

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerFault:
    """A worker that was killed or frozen: when, which boot, and the open runs that were with it."""

    at: datetime
    boot: str
    open_runs: tuple[str, ...]
    is_freeze: bool = False


@dataclass(kw_only=True, slots=True)
class PoolWorker:
    """One slot of the pool; the worker in it changes."""

    process: ForkedProcess
    boot: str


@dataclass(kw_only=True, slots=True)
class WorkerPool:
    sandbox: Sandbox
    fork_server: ForkServer
    folder: Path
    env: dict[str, str]
    database: Database
    module: str = DEPUTIZE_MODULE
    name: str = "worker"
    workers: dict[int, PoolWorker] = field(default_factory=dict)
    faults: list[WorkerFault] = field(default_factory=list)
    frozen_slots: set[int] = field(default_factory=set)
    _start_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def start_worker(self, slot: int) -> None:
        """A new worker in this place, and another if it finds no database; returns when the others know of it."""
        async with self._start_lock, asyncio.timeout(120):
            known_boots = {str(row["boot"]) for row in await self.database.fetch(_BOOTS)}
            log = self.sandbox.folder / f"{self.name}-{slot}.log"
            for _ in range(_MAX_STARTS):
                env = {**self.env, "DEPUTIZE_SERVER__METRICS_PORT": "0"}
                process = await self.fork_server.fork_process(
                    self.folder, env, None, module=self.module, command="work", log=log
                )
                while _is_alive(process.pid):
                    new_boots = {str(row["boot"]) for row in await self.database.fetch(_BOOTS)} - known_boots
                    if new_boots:
                        self.workers[slot] = PoolWorker(process=process, boot=new_boots.pop())
                        return
                    await asyncio.sleep(0.05)
                await process.close()
        raise RuntimeError(f"a worker did not start:\n{log.read_text()[-3000:]}")

    async def kill_worker(self, slot: int) -> None:
        """SIGKILL, and note what was with it."""
        worker = self.workers.pop(slot)
        at = datetime.now(UTC)
        # Its handle is closed with it: it may have died by itself.
        await worker.process.close()
        self.faults.append(WorkerFault(at=at, boot=worker.boot, open_runs=await self._fetch_open_runs(worker.boot)))

    async def freeze_worker(self, slot: int, seconds: float) -> None:
        """SIGSTOP for so long, then SIGCONT: it wakes after others took over what it had."""
        worker = self.workers[slot]
        at = datetime.now(UTC)
        if not _is_alive(worker.process.pid):
            # It died by itself, as a process may whose database is killed under it; the next fault replaces it.
            return
        self.frozen_slots.add(slot)
        os.kill(worker.process.pid, signal.SIGSTOP)
        try:
            self.faults.append(
                WorkerFault(at=at, boot=worker.boot, open_runs=await self._fetch_open_runs(worker.boot), is_freeze=True)
            )
            await asyncio.sleep(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process.pid, signal.SIGCONT)
            self.frozen_slots.discard(slot)

    async def stop_all(self) -> None:
        for worker in self.workers.values():
            await worker.process.close()
        self.workers.clear()

    async def _fetch_open_runs(self, boot: str) -> tuple[str, ...]:
        run_ids = [row["id"] for row in await self.database.fetch(_PENDING_RUNS, boot)]
        return tuple(str(row["id"]) for row in await self.database.fetch(_OPEN, run_ids))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
