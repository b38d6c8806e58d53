"""What befalls workers and what they stand on: kills, a freeze, a database that dies and comes back, an emptied Redis.

Above: `recovery`. Below: `crew`, the local PostgreSQL, a Redis of the proof's own.
"""

import asyncio
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime

from deputize.store.local import LocalPostgres
from proofs.fleet.crew import Crew
from proofs.fleet.judge import LEASE_SECONDS, Downtime
from proofs.kit.child import Child
from proofs.kit.world import World

_FROZEN_SECONDS = LEASE_SECONDS + 3.0


@dataclass(kw_only=True, slots=True)
class Weather:
    world: World
    postgres: LocalPostgres
    redis_port: int
    choose: random.Random
    downtimes: list[Downtime] = field(default_factory=list)
    redis_blows: int = 0
    _redis: Child | None = None

    async def rage(self, crew: Crew, *, brief: bool) -> None:
        """Until canceled. In a brief one everything comes sooner."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._kill_workers(crew, (1, 3) if brief else (1, 5)))
            group.create_task(self._freeze_workers(crew, 4 if brief else 15))
            group.create_task(self._kill_database((8, 12) if brief else (20, 60)))
            group.create_task(self._trouble_redis())

    async def _kill_workers(self, crew: Crew, between: tuple[float, float]) -> None:
        while True:
            await asyncio.sleep(self.choose.uniform(*between))
            place = self.choose.choice([place for place in crew.hands if place not in crew.frozen])
            await crew.kill(place)
            await crew.man(place)

    async def _freeze_workers(self, crew: Crew, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await crew.freeze(self.choose.choice(list(crew.hands)), _FROZEN_SECONDS)

    async def _kill_database(self, between: tuple[float, float]) -> None:
        while True:
            await asyncio.sleep(self.choose.uniform(*between))
            went = datetime.now(UTC)
            # To its end, whatever is canceled meanwhile: what follows needs a database.
            await asyncio.shield(asyncio.create_task(self._restart(went)))

    async def _restart(self, went: datetime) -> None:
        await asyncio.to_thread(self.postgres.kill)
        await asyncio.sleep(self.choose.uniform(0.2, 2))
        await asyncio.to_thread(self.postgres.start)
        self.downtimes.append((went, datetime.now(UTC)))

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
        self._redis = await self.world.start("redis", argv, ready_line="Ready to accept connections")

    async def _trouble_redis(self) -> None:
        while True:
            await asyncio.sleep(self.choose.uniform(4, 8))
            self.redis_blows += 1
            if self.redis_blows % 2:
                await self.world.run(["redis-cli", "-p", str(self.redis_port), "flushall"])
            elif self._redis is not None:
                self._redis.kill()
                await self._redis.gone()
                await self.start_redis()
