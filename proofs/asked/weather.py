"""The storm: gateways and workers are killed and come back with a clock that is right, ahead or behind; and at times no
worker is there at all."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from proofs.asked.clocks import AHEAD, BEHIND, RIGHT
from proofs.asked.house import Gate, House

WORKERS = 2
# Calls that wait for people or for a worker, given to the engine once more, as if it had lost its memory.
_TWICE = """
select deputize.enqueue_run(r.tenant, r.id, r.priority) from deputize.runs r join deputize.calls k using (tenant, id)
where k.asked and k.state in ('awaiting_approval', 'queued', 'running') order by random() limit $1
"""


@dataclass(kw_only=True, slots=True)
class Weather:
    house: House
    brief: bool
    nights: int = 0
    handed_out_again: int = 0
    _workers: asyncio.Lock = field(default_factory=asyncio.Lock)
    _under_way: set[asyncio.Task[None]] = field(default_factory=set)

    async def rise(self) -> None:
        """From here on clocks differ."""
        gates = zip(self.house.gates, (RIGHT, AHEAD, BEHIND), strict=True)
        await asyncio.gather(*(self._set(gate, minutes) for gate, minutes in gates), self._man_all((AHEAD, BEHIND)))

    async def rage(self) -> None:
        """Until canceled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._kill_gates((3, 5)))
            group.create_task(self._kill_workers((2, 4)))
            group.create_task(self._nightfall(5 if self.brief else 8))
            group.create_task(self._hand_out_again())

    async def calm(self) -> None:
        """Everybody's clock is right."""
        await asyncio.gather(*self._under_way)
        await asyncio.gather(*(self._set(gate, RIGHT) for gate in self.house.gates), self._man_all((RIGHT, RIGHT)))

    async def _set(self, gate: Gate, minutes: int) -> None:
        if gate.minutes != minutes or gate.born is None:
            await self.house.kill_gate(gate)
            await self.house.open_gate(gate, minutes)

    async def _man_all(self, clocks: Sequence[int]) -> None:
        for place, minutes in zip(range(WORKERS), clocks, strict=True):
            if place in self.house.crew.hands:
                await self.house.crew.kill(place)
            await self.house.man(place, minutes)

    async def swap_in_the_dark(self, module: str, waiting: int) -> None:
        """Workers of another making, once so many have done in the dark what they had to."""
        house = self.house
        for place in list(house.crew.hands):
            await house.crew.kill(place)
        house.crew.module = module
        async with asyncio.timeout(180):
            while house.darkness.waiting < waiting:  # noqa: ASYNC110 -- they are on their way there
                await asyncio.sleep(0.05)
        await house.darkness.fall()
        await self._man_all((RIGHT, RIGHT))

    async def _kill_gates(self, between: tuple[float, float]) -> None:
        house = self.house
        while True:
            await asyncio.sleep(house.choose.uniform(*between))
            gate = house.choose.choice(house.gates)
            await self._wholly(self._another(gate))

    async def _another(self, gate: Gate) -> None:
        await self.house.kill_gate(gate)
        await self.house.open_gate(gate, self.house.clocks.any(self.house.choose))

    async def _hand_out_again(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self.handed_out_again += len(await self.house.database.fetch(_TWICE, 3))

    async def _kill_workers(self, between: tuple[float, float]) -> None:
        house = self.house
        while True:
            await asyncio.sleep(house.choose.uniform(*between))
            async with self._workers:
                place = house.choose.choice(list(house.crew.hands))
                await self._wholly(self._replace(place))

    async def _replace(self, place: int) -> None:
        await self.house.crew.kill(place)
        await self.house.man(place, self.house.clocks.any(self.house.choose))

    async def _wholly(self, blow: Coroutine[Any, Any, None]) -> None:
        """To its end, even if the storm ends meanwhile: what follows needs whoever was killed."""
        task = asyncio.create_task(blow)
        self._under_way.add(task)
        await asyncio.shield(task)
        self._under_way.discard(task)

    async def _nightfall(self, seconds: float) -> None:
        """Where somebody waits for it: everything that carries calls is gone, and comes back when they are done."""
        house = self.house
        while True:
            await asyncio.sleep(seconds)
            if house.darkness.waiting:
                async with self._workers:
                    await self._wholly(self._night())

    async def _night(self) -> None:
        house = self.house
        places = list(house.crew.hands)
        for place in places:
            await house.crew.kill(place)
        self.nights += 1
        await house.darkness.fall()
        for place in places:
            await house.man(place, house.clocks.any(house.choose))
