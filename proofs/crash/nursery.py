"""Starts gateways quickly: a process that has imported what `deputize serve` imports, and forks one whenever asked.

Above: `lane`, which needs thousands of starts. Below: `deputize.__main__` or a module of `proofs/variants`, run
unchanged in the fork: the same command, settings and folder, only the time for imports is spared.

    python -m proofs.crash.nursery SOCKET
"""

import asyncio
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from proofs.kit.child import Child
from proofs.kit.wire import Line
from proofs.kit.world import World

UNMODIFIED = "deputize"
_ROOT = Path(__file__).resolve().parents[2]
_READY = "nursery is open"
_IMPORTED_BY_SERVE = (
    "deputize.doors.cli.main",
    "deputize.app",
    "deputize.doors.cli.serving",
    "deputize.doors.cli.working",
    "deputize.doors.rest.app",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Born:
    """A gateway that was forked. It is no child of ours, so its end is watched through a handle on it."""

    pid: int
    handle: int
    log: Path

    async def gone(self, timeout: float = 60.0) -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.handle, over.set)
        try:
            async with asyncio.timeout(timeout):
                await over.wait()
        finally:
            loop.remove_reader(self.handle)

    async def end(self) -> None:
        """Kill it if it lives, and let go of it."""
        if not select.select([self.handle], [], [], 0)[0]:
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
            await self.gone()
        os.close(self.handle)


@dataclass(frozen=True, kw_only=True, slots=True)
class Nursery:
    process: Child
    address: Path
    folder: Path

    async def bear(
        self,
        folder: Path,
        env: Mapping[str, str],
        url: str | None,
        *,
        module: str = UNMODIFIED,
        command: str = "serve",
        log: Path | None = None,
        ready: str = "/readyz",
    ) -> Born:
        """`deputize serve` in that folder, another command or a variant of it; returns when it answers at the url."""
        log = log or self.folder / f"{folder.name}.log"
        reader, writer = await asyncio.open_unix_connection(str(self.address))
        asked = {"folder": str(folder), "env": dict(env), "log": str(log), "module": module, "command": command}
        writer.write(json.dumps(asked).encode() + b"\n")
        pid = int(await reader.readline())
        writer.close()
        born = Born(pid=pid, handle=os.pidfd_open(pid), log=log)
        if url is not None:
            await _answers(born, url, ready)
        return born


async def open_nursery(world: World, name: str = "nursery", env: Mapping[str, str] | None = None) -> Nursery:
    """`env` is that of everybody who is born there."""
    # A socket's address is short, whatever the folder of the proof.
    address = world.folder / f"{name[:12]}.sock"
    argv = [sys.executable, "-m", "proofs.crash.nursery", str(address)]
    process = await world.start(name, argv, env=env, cwd=_ROOT, ready_line=_READY)
    return Nursery(process=process, address=address, folder=world.folder)


async def _answers(born: Born, url: str, ready: str) -> None:
    line = Line.to(url)
    last = "no answer"
    try:
        async with asyncio.timeout(180):
            while not select.select([born.handle], [], [], 0)[0]:
                try:
                    answer = await line.get(ready)
                    if answer.status == 200:
                        return
                    last = str(answer.status)
                except (OSError, EOFError) as error:
                    last = type(error).__name__
                await asyncio.sleep(0.02)
    except TimeoutError:
        pass
    finally:
        line.close()
    raise RuntimeError(f"a gateway was not ready (last: {last}):\n{born.log.read_text()[-2000:]}")


def _serve(address: str) -> None:
    """Forks for whoever asks. Nothing here has started a thread or a loop, so a fork is a clean beginning."""
    if "FAKETIME" in os.environ:
        # Python sleeps until a moment of a clock that faketime leaves alone, and faketime moves that moment anyway.
        vars(time)["sleep"] = lambda seconds: select.select([], [], [], seconds)
    for module in _IMPORTED_BY_SERVE:
        importlib.import_module(module)
    # The dead are not waited for; those who asked for them watch them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        print(_READY, flush=True)
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                asked = json.loads(lines.readline())
                pid = os.fork()
                if pid == 0:
                    listener.close()
                    break
                connection.sendall(b"%d\n" % pid)
    _become(asked)


def _become(asked: dict[str, str | dict[str, str]]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output = os.open(str(asked["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(str(asked["folder"]))
    os.environ.update(asked["env"] if isinstance(asked["env"], dict) else {})
    sys.argv = ["deputize", str(asked["command"])]
    runpy.run_module(str(asked["module"]), run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    _serve(sys.argv[1])
