"""Starts gateways quickly: a process that has imported what `deputize serve` imports, and forks one whenever asked.

python -m proofs.kit.fork_server SOCKET
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

from proofs.kit.child_process import ChildProcess
from proofs.kit.http_client import HttpConnection
from proofs.kit.sandbox import Sandbox

DEPUTIZE_MODULE = "deputize"
_ROOT = Path(__file__).resolve().parents[2]
_READY = "fork server is ready"
_IMPORTED_BY_SERVE = (
    "deputize.interfaces.cli.main",
    "deputize.app",
    "deputize.interfaces.cli.commands.service.serve",
    "deputize.interfaces.cli.commands.service.work",
    "deputize.interfaces.rest.app",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkedProcess:
    """A gateway that was forked. It is no child of ours, so its end is watched through a handle on it."""

    pid: int
    handle: int
    log: Path

    async def wait_for_exit(self, timeout: float = 60.0) -> None:
        loop, exit_event = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.handle, exit_event.set)
        try:
            async with asyncio.timeout(timeout):
                await exit_event.wait()
        finally:
            loop.remove_reader(self.handle)

    async def close(self) -> None:
        """Kill it if it lives, and let go of it."""
        if not select.select([self.handle], [], [], 0)[0]:
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
            await self.wait_for_exit()
        os.close(self.handle)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkServer:
    process: ChildProcess
    address: Path
    folder: Path

    async def fork_process(
        self,
        folder: Path,
        env: Mapping[str, str],
        url: str | None,
        *,
        module: str = DEPUTIZE_MODULE,
        command: str = "serve",
        log: Path | None = None,
        ready_path: str = "/readyz",
    ) -> ForkedProcess:
        """`deputize serve` in that folder, another command or a variant of it; returns when it answers at the url."""
        log = log or self.folder / f"{folder.name}.log"
        reader, writer = await asyncio.open_unix_connection(str(self.address))
        request = {"folder": str(folder), "env": dict(env), "log": str(log), "module": module, "command": command}
        writer.write(json.dumps(request).encode() + b"\n")
        pid = int(await reader.readline())
        writer.close()
        process = ForkedProcess(pid=pid, handle=os.pidfd_open(pid), log=log)
        if url is not None:
            await _wait_until_ready(process, url, ready_path)
        return process


async def start_fork_server(
    sandbox: Sandbox, name: str = "fork-server", env: Mapping[str, str] | None = None
) -> ForkServer:
    """Start the server; every process it forks inherits `env`."""
    # A socket's address is short, whatever the folder of the proof.
    address = sandbox.folder / f"{name[:12]}.sock"
    argv = [sys.executable, "-m", "proofs.kit.fork_server", str(address)]
    process = await sandbox.start_process(name, argv, env=env, cwd=_ROOT, ready_line=_READY)
    return ForkServer(process=process, address=address, folder=sandbox.folder)


async def _wait_until_ready(process: ForkedProcess, url: str, ready_path: str) -> None:
    http = HttpConnection.for_url(url)
    last = "no answer"
    try:
        async with asyncio.timeout(180):
            while not select.select([process.handle], [], [], 0)[0]:
                try:
                    answer = await http.get(ready_path)
                    if answer.status == 200:
                        return
                    last = str(answer.status)
                except (OSError, EOFError) as error:
                    last = type(error).__name__
                await asyncio.sleep(0.02)
    except TimeoutError as error:
        raise TimeoutError(f"a gateway is not ready after 180 s (last: {last})") from error
    finally:
        http.close()
    raise RuntimeError(f"a gateway ended (last: {last}):\n{process.log.read_text()[-2000:]}")


def _serve_forks(address: str) -> None:
    """Forks for anyone who asks. Nothing here has started a thread or a loop, so a fork is a clean beginning."""
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
                request = json.loads(lines.readline())
                pid = os.fork()
                if pid == 0:
                    listener.close()
                    break
                connection.sendall(b"%d\n" % pid)
    _run_in_fork(request)


def _run_in_fork(request: dict[str, str | dict[str, str]]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output = os.open(str(request["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(str(request["folder"]))
    os.environ.update(request["env"] if isinstance(request["env"], dict) else {})
    command = str(request["command"])
    # A worker is a process of its own in proofs, to be killed apart from the gateway.
    sys.argv = ["deputize", command, *(["--no-worker"] if command == "serve" else [])]
    runpy.run_module(str(request["module"]), run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    _serve_forks(sys.argv[1])
