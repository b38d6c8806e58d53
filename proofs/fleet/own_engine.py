"""The same one step as a governed run: submitted, queued, begun, carried and recorded, in one process.

    python -m proofs.fleet.own_engine COUNT

Above: `beside`, in the folder of a gateway. Below: the composition root, as it is.
"""

import asyncio
import contextlib
import sys
import time
from pathlib import Path

import asyncpg
import uvloop

from deputize.app import open_gateway, open_worker
from deputize.core.call import CallRequest
from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.settings import Settings
from deputize.doors.cli.loading import load, opened
from deputize.lifecycle.gateway import Gateway
from proofs.fleet.measured import STARTS, say

# Each by an index of its own: to look must cost nothing.
_OPEN = """
select exists (select from deputize.calls where state = 'queued')
    or exists (select from deputize.calls where state = 'running')
"""


async def _measure(count: int) -> None:
    settings, clock = Settings(), Clock()
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            opened(open_gateway, settings, load(settings, Path.cwd()), development=False)
        )
        await stack.enter_async_context(open_worker(gateway))
        caller = Caller(
            tenant="acme", user="ann", scopes=frozenset({"proof:write"}), issuer=settings.identity.issuers[0].issuer,
            token_id=clock.new_id(), expires_at=clock.epoch_ms() // 1000 + 3600, pseudonyms=("p-ann",),
        )  # fmt: skip
        await asyncio.sleep(2)
        print(STARTS, flush=True)
        began, cpu = time.monotonic(), time.process_time()
        waiting = iter(range(count))

        async def lane() -> None:
            for number in waiting:
                await _ask(gateway, caller, f"{clock.new_id()}-{number}")

        await asyncio.gather(*(lane() for _ in range(16)))
        database = await asyncpg.connect(gateway.lifecycle.rooms.store.dsn)
        while await database.fetchval(_OPEN):  # noqa: ASYNC110 -- it is rows that change
            await asyncio.sleep(0.05)
        say(cpu_seconds=time.process_time() - cpu, seconds=time.monotonic() - began, count=count)
        await database.close()


async def _ask(gateway: Gateway, caller: Caller, key: str) -> None:
    request = CallRequest(tool="jobs.mark", arguments={"label": key}, idempotency_key=key, mode="async")
    outcome = await gateway.lifecycle.run(caller, request)
    if not outcome.accepted:
        raise RuntimeError(f"a run was not accepted: {outcome.body[:500]!r}")


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_measure(int(sys.argv[1])))
