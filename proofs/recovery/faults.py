"""Inject faults: killed and frozen workers, a database that dies and comes back, an emptied Redis."""

import asyncio
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime

from deputize.store.local_postgres import LocalPostgres
from proofs.kit.child_process import ChildProcess
from proofs.kit.sandbox import Sandbox
from proofs.kit.worker_pool import WorkerPool
from proofs.recovery.judge import LEASE_SECONDS, Downtime

_FREEZE_SECONDS = LEASE_SECONDS + 3.0


@dataclass(kw_only=True, slots=True)
class FaultInjector:
    sandbox: Sandbox
    postgres: LocalPostgres
    redis_port: int
    rng: random.Random
    downtimes: list[Downtime] = field(default_factory=list)
    redis_faults: int = 0
    _redis: ChildProcess | None = None

    async def inject_faults(self, pool: WorkerPool, *, is_brief: bool) -> None:
        """Until canceled. In a brief one everything comes sooner."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._kill_workers(pool, (1, 3) if is_brief else (1, 5)))
            group.create_task(self._freeze_workers(pool, 4 if is_brief else 15))
            group.create_task(self._kill_database((8, 12) if is_brief else (20, 60)))
            group.create_task(self._disrupt_redis())

    async def _kill_workers(self, pool: WorkerPool, between: tuple[float, float]) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(*between))
            slot = self.rng.choice([place for place in pool.workers if place not in pool.frozen_slots])
            await pool.kill_worker(slot)
            await pool.start_worker(slot)

    async def _freeze_workers(self, pool: WorkerPool, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await pool.freeze_worker(self.rng.choice(list(pool.workers)), _FREEZE_SECONDS)

    async def _kill_database(self, between: tuple[float, float]) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(*between))
            down_since = datetime.now(UTC)
            # To its end, whatever is canceled meanwhile: what follows needs a database.
            await asyncio.shield(asyncio.create_task(self._restart_database(down_since)))

    async def _restart_database(self, down_since: datetime) -> None:
        await asyncio.to_thread(self.postgres.kill)
        await asyncio.sleep(self.rng.uniform(0.2, 2))
        await asyncio.to_thread(self.postgres.start)
        self.downtimes.append((down_since, datetime.now(UTC)))

    async def start_redis(self) -> None:
        argv = [
            "redis-server",
            "--port",
            str(self.redis_port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        self._redis = await self.sandbox.start_process("redis", argv, ready_line="Ready to accept connections")

    async def _disrupt_redis(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(4, 8))
            self.redis_faults += 1
            if self.redis_faults % 2:
                await self.sandbox.run_command(["redis-cli", "-p", str(self.redis_port), "flushall"])
            elif self._redis is not None:
                self._redis.kill()
                await self._redis.wait_for_exit()
                await self.start_redis()
