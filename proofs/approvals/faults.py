"""The storm: gateways and workers are killed and come back with a clock that is right, ahead or behind; and at times no
worker is there at all."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from proofs.approvals.clock_skew import AHEAD, BEHIND, RIGHT
from proofs.approvals.testbed import GatewaySlot, Testbed

WORKERS = 2
# Calls that wait for people or for a worker, given to the engine once more, as if it had lost its memory.
_ENQUEUE_AGAIN = """
select deputize.enqueue_run(r.tenant, r.id, r.priority) from deputize.runs r join deputize.calls k using (tenant, id)
where k.needs_approval and k.state in ('awaiting_approval', 'queued', 'running') order by random() limit $1
"""


@dataclass(kw_only=True, slots=True)
class FaultInjector:
    testbed: Testbed
    is_brief: bool
    outage_count: int = 0
    requeue_count: int = 0
    _worker_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _active_tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def skew_clocks(self) -> None:
        """From here on clocks differ."""
        slots = zip(self.testbed.gateway_slots, (RIGHT, AHEAD, BEHIND), strict=True)
        await asyncio.gather(
            *(self._set_clock(slot, minutes) for slot, minutes in slots), self._start_workers((AHEAD, BEHIND))
        )

    async def inject_faults(self) -> None:
        """Until canceled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._kill_gateways((3, 5)))
            group.create_task(self._kill_workers((2, 4)))
            group.create_task(self._run_outages(5 if self.is_brief else 8))
            group.create_task(self._enqueue_again())

    async def restore_clocks(self) -> None:
        """Everybody's clock is right."""
        await asyncio.gather(*self._active_tasks)
        await asyncio.gather(
            *(self._set_clock(slot, RIGHT) for slot in self.testbed.gateway_slots), self._start_workers((RIGHT, RIGHT))
        )

    async def _set_clock(self, slot: GatewaySlot, minutes: int) -> None:
        if slot.minutes != minutes or slot.process is None:
            await self.testbed.kill_gateway(slot)
            await self.testbed.start_gateway(slot, minutes)

    async def _start_workers(self, clocks: Sequence[int]) -> None:
        for worker_slot, minutes in zip(range(WORKERS), clocks, strict=True):
            if worker_slot in self.testbed.pool.workers:
                await self.testbed.pool.kill_worker(worker_slot)
            await self.testbed.start_worker(worker_slot, minutes)

    async def swap_workers_in_outage(self, module: str, waiter_count: int) -> None:
        """Workers of another making, once so many have done in the dark what they had to."""
        testbed = self.testbed
        for worker_slot in list(testbed.pool.workers):
            await testbed.pool.kill_worker(worker_slot)
        testbed.pool.module = module
        async with asyncio.timeout(180):
            while testbed.outage.waiter_count < waiter_count:  # noqa: ASYNC110 -- they are on their way there
                await asyncio.sleep(0.05)
        await testbed.outage.run_outage()
        await self._start_workers((RIGHT, RIGHT))

    async def _kill_gateways(self, between: tuple[float, float]) -> None:
        testbed = self.testbed
        while True:
            await asyncio.sleep(testbed.rng.uniform(*between))
            slot = testbed.rng.choice(testbed.gateway_slots)
            await self._run_shielded(self._replace_gateway(slot))

    async def _replace_gateway(self, slot: GatewaySlot) -> None:
        await self.testbed.kill_gateway(slot)
        await self.testbed.start_gateway(slot, self.testbed.clocks.pick_any(self.testbed.rng))

    async def _enqueue_again(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self.requeue_count += len(await self.testbed.database.fetch(_ENQUEUE_AGAIN, 3))

    async def _kill_workers(self, between: tuple[float, float]) -> None:
        testbed = self.testbed
        while True:
            await asyncio.sleep(testbed.rng.uniform(*between))
            async with self._worker_lock:
                worker_slot = testbed.rng.choice(list(testbed.pool.workers))
                await self._run_shielded(self._replace_worker(worker_slot))

    async def _replace_worker(self, worker_slot: int) -> None:
        await self.testbed.pool.kill_worker(worker_slot)
        await self.testbed.start_worker(worker_slot, self.testbed.clocks.pick_any(self.testbed.rng))

    async def _run_shielded(self, fault: Coroutine[Any, Any, None]) -> None:
        """To its end, even if the storm ends meanwhile: what follows needs anyone who was killed."""
        task = asyncio.create_task(fault)
        self._active_tasks.add(task)
        await asyncio.shield(task)
        self._active_tasks.discard(task)

    async def _run_outages(self, seconds: float) -> None:
        """Where someone waits for it: everything that carries calls is gone, and comes back when they are done."""
        testbed = self.testbed
        while True:
            await asyncio.sleep(seconds)
            if testbed.outage.waiter_count:
                async with self._worker_lock:
                    await self._run_shielded(self._run_outage())

    async def _run_outage(self) -> None:
        testbed = self.testbed
        worker_slots = list(testbed.pool.workers)
        for worker_slot in worker_slots:
            await testbed.pool.kill_worker(worker_slot)
        self.outage_count += 1
        await testbed.outage.run_outage()
        for worker_slot in worker_slots:
            await testbed.start_worker(worker_slot, testbed.clocks.pick_any(testbed.rng))
