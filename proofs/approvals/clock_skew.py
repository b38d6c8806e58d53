"""Processes whose clock is off: fork servers that run under faketime, one for each difference.

Only the time of day is another; what measures durations goes as it should, as on a machine that was set wrongly.
"""

import asyncio
import random
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from proofs.kit.fork_server import ForkServer, start_fork_server
from proofs.kit.sandbox import Sandbox

MINUTES = 45
RIGHT, AHEAD, BEHIND = 0, MINUTES, -MINUTES


@dataclass(frozen=True, kw_only=True, slots=True)
class SkewedClocks:
    fork_servers: Mapping[int, ForkServer]

    def pick_any(self, rng: random.Random) -> int:
        return rng.choice((RIGHT, AHEAD, BEHIND))


async def start_clocks(sandbox: Sandbox) -> SkewedClocks:
    library = await asyncio.to_thread(_find_faketime)

    async def start_server(minutes: int) -> ForkServer:
        if minutes == RIGHT:
            return await start_fork_server(sandbox)
        faketime_env = {
            "LD_PRELOAD": library, "FAKETIME": f"{minutes:+d}m", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }  # fmt: skip
        return await start_fork_server(sandbox, f"born{minutes:+d}", faketime_env)

    shifts = (RIGHT, AHEAD, BEHIND)
    return SkewedClocks(fork_servers=dict(zip(shifts, await asyncio.gather(*map(start_server, shifts)), strict=True)))


def _find_faketime() -> str:
    """Where faketime lies on this machine, as it would tell a program that it starts."""
    result = subprocess.run(
        ["faketime", "-m", "-f", "+0s", "printenv", "LD_PRELOAD"], capture_output=True, text=True, check=True
    )
    return result.stdout.strip()
