"""Puts oidc-provider, and a node new enough for it, into a folder of the checkout that git does not see.

Above: `provider`. Below: npm, which is the only thing that has to be there already.
"""

import asyncio
import fcntl
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from proofs.kit.world import World

_HERE = Path(__file__).resolve().parent
_CACHE = _HERE.parents[2] / ".cache" / "idp"
_SECONDS = 300.0
_TELL_SECONDS = 5.0
# No lock file: it would hold a registry's address. The versions in package.json are exact.
_INSTALL = ("install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")


class CannotInstall(Exception):
    """The provider cannot be had here, in one sentence."""


async def install(world: World) -> Path:
    """The folder with `node_modules`, filled on first use; whoever comes at the same time waits."""
    wanted = (_HERE / "package.json").read_bytes()
    _CACHE.mkdir(parents=True, exist_ok=True)
    async with _alone(_CACHE / "lock"):
        mark = _CACHE / "installed.json"
        if not (mark.exists() and mark.read_bytes() == wanted and node_of(_CACHE).exists()):
            mark.unlink(missing_ok=True)
            (_CACHE / "package.json").write_bytes(wanted)
            await _run_npm(world)
            mark.write_bytes(wanted)
    return _CACHE


def node_of(folder: Path) -> Path:
    return folder / "node_modules" / "node" / "bin" / "node"


async def _run_npm(world: World) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise CannotInstall("npm is not installed, and the OpenID provider of this proof comes through it.")
    world.say("installing oidc-provider and its node, once per checkout (about 190 MB)")
    child = await world.start("npm", [npm, *_INSTALL], cwd=_CACHE)
    ended = asyncio.create_task(child.gone(_SECONDS))
    try:
        while not (await asyncio.wait({ended}, timeout=_TELL_SECONDS))[0]:
            world.say("still installing")
        code = ended.result()
    except TimeoutError:
        raise CannotInstall(f"npm did not end within {_SECONDS:g} s.") from None
    if code != 0 or not node_of(_CACHE).exists():
        raise CannotInstall(f"npm could not install the OpenID provider (exit {code}); see its lines in the log.")
    world.say("installed")


@asynccontextmanager
async def _alone(path: Path) -> AsyncIterator[None]:
    with path.open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        yield
