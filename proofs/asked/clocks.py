"""Processes whose clock is off: nurseries that run under faketime, one for each difference.

Only the time of day is another; what measures durations goes as it should, as on a machine that was set wrongly.
"""

import asyncio
import random
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from proofs.crash.nursery import Nursery, open_nursery
from proofs.kit.world import World

MINUTES = 45
RIGHT, AHEAD, BEHIND = 0, MINUTES, -MINUTES


@dataclass(frozen=True, kw_only=True, slots=True)
class Clocks:
    nurseries: Mapping[int, Nursery]

    def any(self, choose: random.Random) -> int:
        return choose.choice((RIGHT, AHEAD, BEHIND))


async def open_clocks(world: World) -> Clocks:
    library = await asyncio.to_thread(_library)

    async def opened(minutes: int) -> Nursery:
        if minutes == RIGHT:
            return await open_nursery(world)
        shifted = {
            "LD_PRELOAD": library, "FAKETIME": f"{minutes:+d}m", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }  # fmt: skip
        return await open_nursery(world, f"born{minutes:+d}", shifted)

    shifts = (RIGHT, AHEAD, BEHIND)
    return Clocks(nurseries=dict(zip(shifts, await asyncio.gather(*map(opened, shifts)), strict=True)))


def _library() -> str:
    """Where faketime lies on this machine, as it would tell a program that it starts."""
    told = subprocess.run(
        ["faketime", "-m", "-f", "+0s", "printenv", "LD_PRELOAD"], capture_output=True, text=True, check=True
    )
    return told.stdout.strip()
