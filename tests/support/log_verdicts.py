"""Verify a tenant's whole log over a gateway's routes, as `deputize audit verify` does."""

import asyncio
from typing import Any

from deputize.interfaces.cli.local.log_audit import LogAudit, LogVerdict, load_checkpoint, load_keys


async def verify_log(gateway: Any, token: str, tenant: str = "dev") -> LogVerdict:
    """Walk the log of a tenant up to its newest checkpoint."""
    loop = asyncio.get_running_loop()

    def read_log(path: str) -> bytes | None:
        answer = asyncio.run_coroutine_threadsafe(gateway.get(f"/log/{tenant}/{path}", token=token), loop).result(60)
        assert answer.status_code in (200, 404), answer.text
        content: bytes = answer.content
        return content if answer.status_code == 200 else None

    def verify() -> LogVerdict:
        keys = load_keys(read_log)
        _, newest = load_checkpoint(read_log, keys)
        return LogAudit(read_log, keys).verify(newest)

    return await asyncio.to_thread(verify)


async def wait_for_signed_entries(gateway: Any, token: str, size: int, tenant: str = "dev") -> None:
    """Wait until a checkpoint covers so many entries."""
    async with asyncio.timeout(90):
        while True:
            answer = await gateway.get(f"/log/{tenant}/checkpoint", token=token)
            if answer.status_code == 200 and int(answer.text.split("\n")[1]) >= size:
                return
            await asyncio.sleep(0.05)
