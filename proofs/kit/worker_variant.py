"""A worker with one part changed on purpose: what `deputize work` runs, re-composed here, never by a switch in it."""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

import uvloop

from deputize.app import open_gateway, open_worker
from deputize.core.settings import Settings
from deputize.interfaces.cli.local.logs import configure_logs
from deputize.interfaces.cli.local.project_gateway import load_project, open_project_gateway
from deputize.operations.gateway import Gateway


async def _run_worker(change: Callable[[Gateway], Gateway]) -> None:
    settings = Settings()
    configure_logs(settings.telemetry)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            open_project_gateway(open_gateway, settings, load_project(settings, Path.cwd()), development=False)
        )
        await stack.enter_async_context(open_worker(change(gateway)))
        await stop.wait()


def run_worker_variant(change: Callable[[Gateway], Gateway]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run_worker(change))
