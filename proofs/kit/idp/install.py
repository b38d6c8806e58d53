"""Puts what comes through npm, and a node new enough for it, into a folder of the checkout that git does not see."""

import asyncio
import fcntl
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from proofs.kit.sandbox import Sandbox

_PROVIDER = Path(__file__).resolve().with_name("package.json")
NODE = {"node": json.loads(_PROVIDER.read_bytes())["dependencies"]["node"]}
"""The node that what comes through npm runs under here, for whoever writes a `package.json`."""
_CACHES = _PROVIDER.parents[3] / ".cache"
_SECONDS = 300.0
_TELL_SECONDS = 5.0
# No lock file: it would hold a registry's address. The versions in package.json are exact.
_INSTALL = ("install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")


class CannotInstall(Exception):
    """What a proof needs cannot be had here, in one sentence."""


async def install_package(sandbox: Sandbox, package: Path = _PROVIDER) -> Path:
    """The folder with `node_modules`, filled on first use; anyone who comes at the same time waits."""
    manifest = package.read_bytes()
    cache = _CACHES / str(json.loads(manifest)["name"])
    cache.mkdir(parents=True, exist_ok=True)
    async with _lock_folder(cache / "lock"):
        mark = cache / "installed.json"
        if not (mark.exists() and mark.read_bytes() == manifest and get_node_path(cache).exists()):
            mark.unlink(missing_ok=True)
            (cache / "package.json").write_bytes(manifest)
            await _run_npm(sandbox, cache, " and ".join(json.loads(manifest)["dependencies"]))
            mark.write_bytes(manifest)
    return cache


def get_node_path(folder: Path) -> Path:
    return folder / "node_modules" / "node" / "bin" / "node"


async def _run_npm(sandbox: Sandbox, cache: Path, what: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise CannotInstall(f"npm is not installed, and {what} of this proof come through it.")
    sandbox.log(f"installing {what}, once per checkout (about 200 MB)")
    child = await sandbox.start_process("npm", [npm, *_INSTALL], cwd=cache)
    exit_task = asyncio.create_task(child.wait_for_exit(_SECONDS))
    try:
        while not (await asyncio.wait({exit_task}, timeout=_TELL_SECONDS))[0]:
            sandbox.log("still installing")
        code = exit_task.result()
    except TimeoutError:
        raise CannotInstall(f"npm did not end within {_SECONDS:g} s.") from None
    if code != 0 or not get_node_path(cache).exists():
        raise CannotInstall(f"npm could not install {what} (exit {code}); see its lines in the log.")
    sandbox.log("installed")


@asynccontextmanager
async def _lock_folder(path: Path) -> AsyncIterator[None]:
    with path.open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        yield
