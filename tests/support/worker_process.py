"""A worker in a process of its own, for tests that kill it: `python -m tests.support.worker_process DSN FOLDER`."""

import asyncio
import sys
from pathlib import Path

from deputize.app import open_worker
from tests.support.checkpointed_tools import TOOLS
from tests.support.gateway_lab import open_lab


async def run_worker(dsn: str, folder: Path) -> None:
    async with open_lab(dsn, folder, tools=TOOLS, lease_seconds=10) as lab, open_worker(lab.gateway):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run_worker(sys.argv[1], Path(sys.argv[2])))
