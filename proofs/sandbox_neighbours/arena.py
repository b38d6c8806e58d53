"""Let a sandbox take what it can while others need it, as the user of this process, and print what they missed.

    python -m proofs.sandbox_neighbours.arena FOLDER own|shared

With `shared`, all sandboxes have one user: the control.
"""

import asyncio
import contextlib
import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from deputize.sandboxes.client import SandboxClient, SandboxUnavailable
from deputize.sandboxes.port import SandboxFolder, SandboxLimits, SandboxSpec
from deputize.sandboxes.supervisor import SOCKET_NAME
from proofs.sandbox_neighbours import takers

_PYTHON: Final = "/usr/bin/python3"
_TAKE_SECONDS: Final = 60.0
_LIMITS: Final = SandboxLimits(memory_bytes=2 << 30, cpus=2.0)
# One user for all, as if no host could give another.
_SHARED_SUPERVISOR: Final = """
from deputize.sandboxes import supervisor
from deputize.sandboxes.users import NoUsers, SandboxUsers
def find_none():
    raise NoUsers("this is a control")
SandboxUsers.take = lambda users: users.owner
supervisor.enter_subordinate_users = find_none
supervisor._SHARED_OPEN_FILES = 1_024
supervisor._SIGNALS = 1 << 30
supervisor.main()
"""
_SUPERVISOR: Final = "from deputize.sandboxes import supervisor; supervisor.main()"


async def observe(folder: Path, *, is_shared: bool) -> dict[str, Any]:
    """Return what was taken, what was missed meanwhile in another sandbox and outside, and what was left."""
    words = [sys.executable, "-c", _SHARED_SUPERVISOR if is_shared else _SUPERVISOR, str(folder), "--stay"]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    client = SandboxClient(folder, accept_weak_limits=True, accept_shared_user=True)
    try:
        async with asyncio.timeout(30):
            while not (folder / SOCKET_NAME).exists():  # noqa: ASYNC110  # another process makes it
                await asyncio.sleep(0.05)
        attacks = {name: await _attack(client, name) for name in takers.TAKERS}
        return {"attacks": attacks, "left": await _leave(client), "shared_user": client.shared_user}
    finally:
        await client.aclose()
        process.kill()
        process.wait()


async def _attack(client: SandboxClient, name: str) -> dict[str, Any]:
    source = Path(takers.__file__).read_text()
    taking = SandboxSpec(command=(_PYTHON, "-c", source, "take", name), seconds=None, limits=_LIMITS)
    looking = SandboxSpec(command=(_PYTHON, "-c", source, "look"), seconds=_TAKE_SECONDS)
    missed: dict[str, list[str]] = {}
    async with contextlib.aclosing(await client.start(taking)) as taker:
        was_taken = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TAKE_SECONDS):
                was_taken = await taker.stdout.readline() == b"taken\n"
        outside = await asyncio.to_thread(
            subprocess.run, [_PYTHON, "-c", source, "look"], capture_output=True, text=True, check=False
        )
        missed["outside"] = _split(outside.stdout)
        try:
            inside = await client.run(looking)
            missed["sandbox"] = _split(inside.stdout.decode()) if inside.end.has_started else [name]
        except (OSError, SandboxUnavailable):
            # What starts a sandbox needs it, too.
            missed["sandbox"] = [name]
        taker.kill()
        await taker.wait()
    return {"was_taken": was_taken, "missed": missed}


async def _leave(client: SandboxClient) -> dict[str, list[str]]:
    source, left = Path(takers.__file__).read_text(), {}
    for where in ("sandbox", "outside"):
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            Path(folder).chmod(0o777)
            words = (_PYTHON, "-c", source, "leave", folder)
            if where == "sandbox":
                shown = (SandboxFolder(path=folder, is_writable=True),)
                await client.run(SandboxSpec(command=words, seconds=_TAKE_SECONDS, folders=shown))
            else:
                await asyncio.to_thread(subprocess.run, words, check=True)
            modes = {each.name: each.stat().st_mode for each in Path(folder).iterdir()}
            left[where] = [name for name, mode in modes.items() if mode & (stat.S_ISUID | stat.S_ISGID)]
            left[where] += [] if "changed" in modes else ["nothing was tried"]
    return left


def _split(text: str) -> list[str]:
    return [each for each in text.strip().split(",") if each]


def main() -> None:
    # What is in flight may be as much as a process may open.
    print(json.dumps(asyncio.run(observe(Path(sys.argv[1]), is_shared=sys.argv[2] == "shared"))))


if __name__ == "__main__":
    os.umask(0o022)
    main()
