"""Escalate approval requests until killed: `python -m tests.support.escalation_process DSN FOLDER`."""

import asyncio
import sys
from pathlib import Path

from deputize.operations.approvals.escalation import ApprovalEscalator
from tests.support.gateway_lab import open_lab


async def sweep_forever(dsn: str, folder: Path) -> None:
    async with open_lab(dsn, folder) as lab:
        clockwork = ApprovalEscalator(lab.runtime)
        print("sweeping", flush=True)
        while True:
            await clockwork.sweep()


if __name__ == "__main__":
    asyncio.run(sweep_forever(sys.argv[1], Path(sys.argv[2])))
