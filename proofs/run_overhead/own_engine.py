"""The same steps as a governed run: submitted, queued, begun, carried and recorded, in one process.

python -m proofs.run_overhead.own_engine COUNT TOOL
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
from deputize.interfaces.cli.local.project_gateway import load_project, open_project_gateway
from deputize.operations.gateway import Gateway
from proofs.kit.cpu_metrics import START_LINE, print_figures
from proofs.kit.gateway_internals import get_runtime

# Each by an index of its own: to look must cost nothing.
_OPEN = """
select exists (select from deputize.calls where state = 'queued')
    or exists (select from deputize.calls where state = 'running')
"""


async def _measure_engine(count: int, tool: str) -> None:
    settings, clock = Settings(), Clock()
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            open_project_gateway(open_gateway, settings, load_project(settings, Path.cwd()), development=False)
        )
        await stack.enter_async_context(open_worker(gateway))
        caller = Caller(
            tenant="acme", user="ann", scopes=frozenset({"proof:write"}), issuer=settings.identity.issuers[0].issuer,
            token_id=clock.new_id(), expires_at=clock.epoch_ms() // 1000 + 3600, pseudonyms=("p-ann",),
        )  # fmt: skip
        await asyncio.sleep(2)
        print(START_LINE, flush=True)
        began, cpu = time.monotonic(), time.process_time()
        pending = iter(range(count))

        async def run_lane() -> None:
            for number in pending:
                await _submit_run(gateway, caller, tool, f"{clock.new_id()}-{number}")

        await asyncio.gather(*(run_lane() for _ in range(16)))
        database = await asyncpg.connect(get_runtime(gateway).store.dsn)
        while await database.fetchval(_OPEN):  # noqa: ASYNC110 -- it is rows that change
            await asyncio.sleep(0.05)
        print_figures(cpu_seconds=time.process_time() - cpu, seconds=time.monotonic() - began, count=count)
        await database.close()


async def _submit_run(gateway: Gateway, caller: Caller, tool: str, key: str) -> None:
    request = CallRequest(tool=tool, arguments={"label": key}, idempotency_key=key, mode="async")
    outcome = await gateway.run_call(caller, request)
    if not outcome.is_accepted:
        raise RuntimeError(f"a run was not accepted: {outcome.body[:500]!r}")


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_measure_engine(int(sys.argv[1]), sys.argv[2]))
