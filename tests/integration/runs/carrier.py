"""A worker in a process of its own, for tests that kill it: `python -m tests.integration.runs.carrier DSN FOLDER`."""

import asyncio
import sys
from pathlib import Path

from deputize.app import open_worker
from tests.integration.lifecycle.lab import open_lab
from tests.integration.runs.voyages import TOOLS


async def carry(dsn: str, folder: Path) -> None:
    async with open_lab(dsn, folder, tools=TOOLS, lease_seconds=1) as lab, open_worker(lab.gateway):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(carry(sys.argv[1], Path(sys.argv[2])))
