"""A gateway with one part changed on purpose: what `deputize serve` runs, re-composed here, never by a switch in it.

A module of `proofs/variants` says what is changed and calls `serve_changed`; a proof starts it in the folder of an
unmodified gateway.
"""

import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from deputize.app import open_gateway
from deputize.interfaces.cli.main import run_cli
from deputize.operations.gateway import Gateway
from proofs.kit.gateway import GatewayHandle

_ROOT = Path(__file__).resolve().parents[2]


def serve_variant(change: Callable[[Gateway], Gateway]) -> None:
    """`deputize serve` in this folder, with every gateway it opens changed so."""

    @contextlib.asynccontextmanager
    async def open_variant(*positional: Any, **keywords: Any) -> AsyncIterator[Gateway]:
        async with open_gateway(*positional, **keywords) as gateway:
            yield change(gateway)

    sys.argv = ["deputize", "serve", "--no-worker"]
    run_cli(open_variant)


async def restart_as_variant(handle: GatewayHandle, variant: str) -> None:
    """The same folder, settings, database and port, served by `proofs/variants/{variant}.py` from now on."""
    await restart_as_module(handle, f"proofs.variants.{variant}")


async def restart_as_module(handle: GatewayHandle, module: str) -> None:
    """The same, served by any module that calls `serve_variant`."""
    await handle.child.stop()
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    handle.child = await handle.sandbox.start_process(
        f"{handle.name}-{module.rpartition('.')[2]}",
        [sys.executable, "-m", module],
        env={**handle.env, "PYTHONPATH": path},
        cwd=handle.folder,
        ready_url=f"{handle.url}/readyz",
        timeout=120,
    )
