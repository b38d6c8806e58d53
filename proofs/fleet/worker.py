"""A worker with one part changed on purpose: what `deputize work` runs, re-composed here, never by a switch in it.

Above: modules of `proofs/variants`, which `crew` starts in place of an unmodified worker. Below: the composition root.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

import uvloop

from deputize.app import open_gateway, open_worker
from deputize.core.settings import Settings
from deputize.doors.cli.loading import load, opened
from deputize.doors.cli.logs import configure_logs
from deputize.lifecycle.gateway import Gateway


async def _work(change: Callable[[Gateway], Gateway]) -> None:
    settings = Settings()
    configure_logs(settings.telemetry)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            opened(open_gateway, settings, load(settings, Path.cwd()), development=False)
        )
        await stack.enter_async_context(open_worker(change(gateway)))
        await stop.wait()


def work_changed(change: Callable[[Gateway], Gateway]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_work(change))
