"""Sweeps tickets until it is killed: `python -m tests.integration.approvals.sweeping DSN FOLDER`."""

import asyncio
import sys
from pathlib import Path

from deputize.lifecycle.approvals.clockwork import Clockwork
from tests.integration.lifecycle.lab import open_lab


async def sweep(dsn: str, folder: Path) -> None:
    async with open_lab(dsn, folder) as lab:
        clockwork = Clockwork(lab.rooms)
        print("sweeping", flush=True)
        while True:
            await clockwork.sweep()


if __name__ == "__main__":
    asyncio.run(sweep(sys.argv[1], Path(sys.argv[2])))
