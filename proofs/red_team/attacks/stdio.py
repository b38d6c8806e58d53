"""Take from a gateway what the program of a server must not have, and replace the program after it was reviewed.

The server is hostile from the start: it runs any code that it is given, as the user that the gateway chose for it.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from deputize.core.settings import McpServerSettings
from deputize.interfaces.cli.local.program_pins import compute_pins, render_toml_value
from proofs.kit.child_process import ProcessNotReady
from proofs.kit.gateway import GatewayHandle
from proofs.kit.http_client import HttpConnection
from proofs.red_team.arena import Arena
from proofs.red_team.attack import AttackLog, Control, Finding

NAME = "stdio"
_SCRIPT_SWAPPED = "the script is replaced after the review"
_KEY = "the master key is read"
_ENVIRONMENT = "the gateway's environment is read"
_UNPINNED = "a program without digests is started"
CONTROL = Control(
    variant="red_team_trusted_programs", attempts=frozenset({_SCRIPT_SWAPPED, _KEY, _ENVIRONMENT, _UNPINNED})
)
_THIEF = Path(__file__).parent.parent / "stdio_thief.py"
_HELPER = 'WORD = "reviewed"\n'
# How the server begins what it says.
_ANSWERS = ("done", "refused")
_SECRET = "only-the-gateway-knows"
# Attempts as code that the server runs; each sets `result` if it got what it wanted.
_CODE = {
    _ENVIRONMENT: "result = open(f'/proc/{gateway}/environ', 'rb').read()[:40]",
    "the gateway's memory is read": "result = open(f'/proc/{gateway}/mem', 'rb')",
    "the map of the gateway's memory is read": "result = open(f'/proc/{gateway}/maps').read()[:40]",
    "the gateway's descriptors are listed": "import os; result = os.listdir(f'/proc/{gateway}/fd')",
    "the supervisor's environment is read": "result = open(f'/proc/{supervisor}/environ', 'rb').read()[:40]",
    "the supervisor's memory is read": "result = open(f'/proc/{supervisor}/mem', 'rb')",
    "the gateway is traced": (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.ptrace(16, gateway, 0, 0): raise OSError(ctypes.get_errno(), 'ptrace')"
    ),
    "the gateway is stopped by a signal": "import os; os.kill(gateway, 0)",
    "the supervisor is stopped by a signal": "import os; os.kill(supervisor, 0)",
    "a descriptor was inherited": (
        "import os\nfound = []\n"
        "for name in os.listdir('/proc/self/fd'):\n"
        "    if int(name) > 2 and os.path.exists(f'/proc/self/fd/{name}'):\n"
        "        found.append(os.readlink(f'/proc/self/fd/{name}'))\n"
        "if not found: raise OSError('none')\nresult = found"
    ),
    "the environment of the program holds the gateway's": (
        f"import os; result = [k for k, v in os.environ.items() if 'DEPUTIZE' in k or {_SECRET!r} in v]\n"
        "if not result: raise OSError('none')"
    ),
    "the program's own files are changed for its next start": "open(__import__('sys').argv[0], 'a').write('#')",
    "a file is put beside the program's own": (
        "import os, sys; open(os.path.join(os.path.dirname(sys.argv[0]), 'json.py'), 'w').close()"
    ),
    "the program becomes root again": "import os; os.setuid(0); result = os.getuid()",
}

# Each would run the rest of the command, whose files nobody pins then.
_LAUNCHERS = {
    "env": ("/usr/bin/env",),
    "timeout": ("/usr/bin/timeout", "600"),
    "a shell": ("/bin/sh", "-c", "exec {command}"),
}


async def attack(arena: Arena, log: AttackLog) -> None:
    if os.geteuid() != 0:
        raise RuntimeError("this class attacks a gateway that runs as root")
    servers = [_ServerFiles.create(arena, number) for number in range(7)]
    settings = "".join(each.render_settings() for each in servers)
    gateway = await arena.start_gateway(tools="effects.py", settings=settings, env={"PROOF_SECRET": _SECRET})
    thief = Thief(gateway=gateway, token=arena.issuer.issue_token("ann"), arena=arena)
    for name, code in _CODE.items():

        async def run_code(code: str = code) -> Finding:
            return await thief.take(code)

        await log.attempt(name, run_code)
    await log.attempt(_KEY, lambda: thief.read_file(arena.sandbox.folder / "master.key"))
    await log.attempt("the settings with the database's password are read", lambda: thief.read_file(thief.settings))
    await log.attempt("a set-user-id program gives privileges", thief.run_set_user_id_program)
    swaps: dict[str, Callable[[_ServerFiles], None]] = {
        _SCRIPT_SWAPPED: _ServerFiles.swap_script,
        "a listed file is replaced after the review": _ServerFiles.swap_helper,
        "the interpreter is replaced after the review": _ServerFiles.swap_interpreter,
        "the script becomes a link to another": _ServerFiles.link_script,
        "the script becomes a pipe that never ends": _ServerFiles.block_script,
        "a module beside the script takes the place of a library": _ServerFiles.shadow_library,
    }
    for server, (name, swap) in zip(servers[1:], swaps.items(), strict=True):

        async def swap_files(server: _ServerFiles = server, swap: Callable[[_ServerFiles], None] = swap) -> Finding:
            return await thief.swap(server, swap)

        await log.attempt(name, swap_files)
    await log.attempt("the program outlives a gateway that was killed", thief.outlive_gateway)
    await log.attempt(_UNPINNED, thief.start_unpinned)
    for launcher, words in _LAUNCHERS.items():
        hidden = _ServerFiles.create(arena, len(servers), words)
        servers.append(hidden)
        await log.attempt(
            f"a program is started by {launcher}, which alone is pinned", partial(thief.start_with, hidden)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _ServerFiles:
    """The files of one server, pinned as they are at first."""

    name: str
    folder: Path
    launcher: tuple[str, ...] = ()

    @classmethod
    def create(cls, arena: Arena, number: int, launcher: tuple[str, ...] = ()) -> "_ServerFiles":
        name = f"thief{number}"
        folder = arena.sandbox.folder / f"{arena.name}-{arena.variant or 'product'}-{name}"
        folder.mkdir()
        shutil.copy(_THIEF, folder / "server.py")
        (folder / "helper.py").write_text(_HELPER)
        (folder / "python").symlink_to(os.path.realpath(sys.executable))
        return cls(name=name, folder=folder, launcher=launcher)

    def render_settings(self) -> str:
        # A tool of a name that another server has would wait for a review.
        command = [str(self.folder / "python"), "-S", "server.py", f"run_{self.name}"]
        if self.launcher:
            command = [each.format(command=" ".join(command)) for each in self.launcher] + command
        # What protects a gateway from a program that its operator trusts without a sandbox.
        risk = {"sandbox": False, "accept_risk": ["unsandboxed"]}
        table: dict[str, Any] = {
            "name": self.name,
            "command": command,
            "folder": str(self.folder),
            "reads": ["*"],
            **risk,
        }
        pins, _ = compute_pins(McpServerSettings.model_validate(table), ["helper.py"])
        rows = "".join(f"{key} = {render_toml_value(value)}\n" for key, value in {**table, **pins}.items())
        return f"\n[[servers]]\n{rows}start_seconds = 60\nprobe_seconds = 3600\n"

    @property
    def _hostile_script(self) -> str:
        return _THIEF.read_text().replace("helper.WORD", "'swapped'").replace("import helper ", "# ")

    def swap_script(self) -> None:
        (self.folder / "server.py").write_text(self._hostile_script)

    def swap_helper(self) -> None:
        (self.folder / "helper.py").write_text('WORD = "swapped"\n')

    def swap_interpreter(self) -> None:
        self.swap_by_link(self.folder / "python", f"#!{os.path.realpath(sys.executable)} -S\n{self._hostile_script}")

    def link_script(self) -> None:
        self.swap_by_link(self.folder / "server.py", self._hostile_script)

    def swap_by_link(self, path: Path, text: str) -> None:
        other = self.folder / "other"
        other.write_text(text)
        other.chmod(0o755)
        path.unlink()
        path.symlink_to(other)

    def block_script(self) -> None:
        (self.folder / "server.py").unlink()
        os.mkfifo(self.folder / "server.py")

    def shadow_library(self) -> None:
        (self.folder / "json.py").write_text("import helper\nhelper.WORD = 'swapped'\nfrom orjson import *\n")


@dataclass(kw_only=True, slots=True)
class Thief:
    """The author of the server, who can also write to the folder that it was installed in."""

    gateway: GatewayHandle
    token: str
    arena: Arena

    @property
    def settings(self) -> Path:
        return self.gateway.folder / "deputize.toml"

    async def take(self, code: str) -> Finding:
        """Let the server run code; it succeeds if nothing refused it."""
        text = await self._run("thief0", code)
        return Finding(succeeded=text.startswith("done"), evidence=text[:160])

    async def read_file(self, path: Path) -> Finding:
        return await self.take(f"result = len(open({str(path)!r}, 'rb').read())")

    async def run_set_user_id_program(self) -> Finding:
        """Leave a program of root with its set-user-id bit where the server can execute it."""
        program = self.arena.sandbox.folder / f"{self.gateway.name}-id"
        shutil.copy(shutil.which("id") or "/usr/bin/id", program)
        program.chmod(0o4755)
        return await self.take(
            f"import subprocess; done = subprocess.run([{str(program)!r}, '-u'], capture_output=True)\n"
            "result = done.stdout.decode()\n"
            "if int(result) != 0: raise PermissionError(f'runs as {result}')"
        )

    async def swap(self, server: _ServerFiles, swap: Callable[[_ServerFiles], None]) -> Finding:
        """Replace a file while the server runs, end the server, and see what the gateway starts in its place."""
        before = await self._run(server.name, "result = WORD")
        if before != "done reviewed":
            raise RuntimeError(f"the server did not start: {before}")
        swap(server)
        await self._call(server.name, "import os; os._exit(1)", 1000)
        text = await self._start(server.name)
        return Finding(succeeded="swapped" in text, evidence=text[:200])

    async def _start(self, server: str) -> str:
        """Have the server started again; return what it says, or why the gateway did not start it."""
        connection = HttpConnection.for_url(
            self.gateway.url, token=self.arena.issuer.issue_token("root", scopes=("deputize:admin",))
        )
        try:
            async with asyncio.timeout(60):
                # The gateway delays a start after a failed one.
                while True:
                    answer = await connection.post(f"/v1/servers/{server}/test", {})
                    if answer.status == 200:
                        return await self._run(server, "result = WORD")
                    text = str(answer.json()["error"]["message"])
                    if "was not started" in text:
                        return text
                    await asyncio.sleep(0.1)
        finally:
            connection.close()

    async def outlive_gateway(self) -> Finding:
        """Leave a process in a session of its own, kill the gateway, and look whether it still runs."""
        marker = f"{self.gateway.name}-survivor"
        text = await self._run(
            "thief0",
            "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
            "        os.closerange(0, 64)\n"
            f"        os.execv('/bin/sh', ['sh', '-c', 'sleep 600; : {marker}'])\n    os._exit(0)",
        )
        if not text.startswith("done") or not await _wait_for_process(marker, is_running=True):
            raise RuntimeError(f"the server left no process: {text}")
        self.gateway.child.kill()
        is_gone = await _wait_for_process(marker, is_running=False)
        await self._restart()
        return Finding(succeeded=not is_gone, evidence="it ended" if is_gone else "it runs 10 s later")

    async def start_unpinned(self) -> Finding:
        """Start a gateway whose settings name a program without a digest."""
        text = self.settings.read_text()
        rows = [row for row in text.splitlines() if not row.startswith(("sha256 = ", "files = {"))]
        self.settings.write_text("\n".join(rows))
        try:
            await self._restart()
        except ProcessNotReady as refusal:
            return Finding(succeeded=False, evidence=str(refusal).strip().splitlines()[-1][:160])
        finally:
            self.settings.write_text(text)
        return Finding(succeeded=True, evidence="the gateway answers")

    async def start_with(self, server: _ServerFiles) -> Finding:
        """Start a gateway with one more server, and replace its script if it runs."""
        text = self.settings.read_text()
        self.settings.write_text(text + server.render_settings())
        try:
            await self._restart()
            started = await self._start(server.name)
            return (
                await self.swap(server, _ServerFiles.swap_script)
                if started == "done reviewed"
                else Finding(succeeded=False, evidence=started[:160])
            )
        except ProcessNotReady as refusal:
            return Finding(succeeded=False, evidence=str(refusal).strip().splitlines()[-1][:160])
        finally:
            self.settings.write_text(text)

    async def _restart(self) -> None:
        await (self.gateway.restart() if self.arena.variant is None else self.arena.restart_variant(self.gateway))

    async def _run(self, server: str, code: str) -> str:
        """Run code in a server, once its tool is registered, and return what the server says."""
        text = ""
        async with asyncio.timeout(60):
            while not text.startswith(_ANSWERS):
                text = await self._call(server, code)
        return text

    async def _call(self, server: str, code: str, deadline_ms: int = 10_000) -> str:
        connection = HttpConnection.for_url(self.gateway.url, token=self.token)
        body = {"tool": f"{server}.run_{server}", "arguments": {"code": code}, "deadline_ms": deadline_ms}
        answer = (await connection.post("/v1/calls", body)).json()
        connection.close()
        if "error" not in answer:
            return str(answer["result"]["content"][0]["text"])
        # A refused call returns at once.
        await asyncio.sleep(0.1)
        return str(answer["error"]["message"])


async def _wait_for_process(marker: str, *, is_running: bool) -> bool:
    """Wait until a process with this text in its command runs, or none does; tell whether that came true."""
    for _ in range(100):
        if _has_process(marker) == is_running:
            return True
        await asyncio.sleep(0.1)
    return False


def _has_process(marker: str) -> bool:
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in each.read_bytes():
                return True
        except OSError:
            continue
    return False
