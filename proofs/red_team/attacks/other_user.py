"""Attack `deputize dev --user` with the account that owns the project: a shell, every file in it, the agents' token."""

import asyncio
import json
import os
import pwd
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deputize.interfaces.cli.local.separate_user.protected_folder import locate_protected_folder
from proofs.kit.child_process import ChildProcess, CommandResult
from proofs.kit.gateway import TOOLS
from proofs.kit.http_client import HttpConnection
from proofs.red_team.arena import Arena
from proofs.red_team.attack import AttackLog, Control, Finding, Form
from proofs.red_team.destructive_call import ASKING_POLICY, ERASING_TOOL, LOOSE_POLICY
from proofs.red_team.owner_programs import (
    CONNECT,
    OPEN_FILES,
    READ_PROCESSES,
    SIGN_TOKEN,
    SIGNAL_PROCESSES,
    WRITE_FILES,
    WRITE_TEXT,
)

NAME = "other_user"
_EDITED_FILES, _EDITED_TOOL = (
    "policies, settings and modules are edited before a restart",
    "the code of a tool is edited before a restart",
)
CONTROL = Control(variant="red_team_unconfirmed_files", attempts=frozenset({_EDITED_FILES, _EDITED_TOOL}))
FORM: Final[Form] = "dev with --user"
_GATEWAY_USER, _OWNER = "daemon", "games"
_SETTINGS = """
[server]
port = {port}
metrics_port = {metrics}
[tools]
python = ["tools/dev_shell.py"]
[policy]
files = ["policies/{policy}.cedar"]
"""
_DEPUTIZE = (sys.executable, "-P", "-m", "deputize")
_REFUSAL_SECONDS = 90.0


async def attack(arena: Arena, log: AttackLog) -> None:
    owner = OwnerShell.create(arena)
    await owner.start_gateway()
    attempts = {
        "the state of the gateway is read": owner.read_state,
        "the copy that the gateway runs is edited": owner.edit_copy,
        "the memory of the gateway and its database is read": owner.read_memory,
        "the gateway and its database are stopped": owner.stop_processes,
        "a permit is written into the development database": owner.connect_to_database,
        "a token is signed with a key of its own": owner.sign_token,
        "policies are put with the token for agents": owner.put_policies,
        "the lock file is deleted and a second gateway started": owner.start_second_gateway,
        "a gateway of its own is started to get codes": owner.start_own_gateway,
        "a permit is appended and a worker is started": owner.start_loose_worker,
        "the address of another gateway is planted": owner.plant_address,
        "the code of a tool is edited after its approval": owner.edit_after_approval,
        _EDITED_FILES: owner.edit_before_restart,
        _EDITED_TOOL: owner.edit_tool_before_restart,
        "a link to the gateway's token is planted in the project": owner.plant_link,
    }
    for name, attempt in attempts.items():
        await log.attempt(name, attempt, form=FORM)
    await owner.stop_gateway()


@dataclass(kw_only=True, slots=True)
class OwnerShell:
    """The project's owner, and the gateway that root runs for the project as another user."""

    arena: Arena
    folder: Path
    protected: Path
    url: str
    ports: Mapping[str, int]
    gateway: ChildProcess | None = None

    @classmethod
    def create(cls, arena: Arena) -> "OwnerShell":
        """Create the project, and give it to its owner."""
        if os.geteuid() != 0:
            raise PermissionError("deputize dev --user is attacked by another account, for which root is needed")
        folder = arena.sandbox.folder / ("dev-other-user" if arena.variant is None else "dev-other-user-control")
        for name in ("tools", "policies"):
            (folder / name).mkdir(parents=True)
        ports = {"port": arena.sandbox.pick_free_port(), "metrics": arena.sandbox.pick_free_port()}
        (folder / "tools" / "dev_shell.py").write_bytes((TOOLS / "dev_shell.py").read_bytes())
        (folder / "policies" / "asking.cedar").write_text(ASKING_POLICY)
        (folder / "deputize.toml").write_text(_SETTINGS.format(policy="asking", **ports))
        account = pwd.getpwnam(_OWNER)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid)
        return cls(
            arena=arena,
            folder=folder,
            protected=locate_protected_folder(folder.resolve()),
            url=f"http://127.0.0.1:{ports['port']}",
            ports=ports,
        )

    async def start_gateway(self) -> None:
        """Start it as the person who is root does, but without a terminal to confirm anything in."""
        module, env = self.arena.choose_module("deputize")
        self.gateway = await self.arena.sandbox.start_process(
            self.folder.name,
            [sys.executable, "-P", "-m", module, "dev", "--user", _GATEWAY_USER],
            env=env,
            cwd=self.folder,
            ready_url=f"{self.url}/readyz",
        )
        # The agents' token and the address are published before this line.
        await self.gateway.wait_for_line("Ctrl-C to stop")

    async def stop_gateway(self) -> None:
        if self.gateway is not None:
            await self.gateway.stop()
            self.gateway = None
        shutil.rmtree(self.protected, ignore_errors=True)

    async def read_state(self) -> Finding:
        names = ("token", "development-issuer.pem", "master.key", "pg.json", "pg.log", "pg/PG_VERSION", "dev.json")
        files = [self._state / name for name in names]
        files += [self.protected / "gateway" / "confirmed.json", self._copy / "tools" / "dev_shell.py"]
        return await self._try_program(OPEN_FILES, *_require_existing(files))

    async def edit_copy(self) -> Finding:
        files = [self._copy / "tools" / "dev_shell.py", self._copy / "deputize.toml", self._copy, self._state]
        files += [self.protected / "client" / "dev.json", self.protected / "client", self.protected]
        return await self._try_program(WRITE_FILES, *_require_existing(files))

    async def read_memory(self) -> Finding:
        return await self._try_program(READ_PROCESSES, *self._list_processes())

    async def stop_processes(self) -> Finding:
        return await self._try_program(SIGNAL_PROCESSES, *self._list_processes())

    async def connect_to_database(self) -> Finding:
        record = json.loads((self._state / "pg.json").read_bytes())
        return await self._try_program(CONNECT, str(record["port"]), record["sockets"])

    async def sign_token(self) -> Finding:
        done = await self._run_as_owner(*_DEPUTIZE, "token", "--scope", "deputize:admin")
        if done.code == 0:
            return Finding(succeeded=True, evidence="deputize token signed one")
        done = await self._run_as_owner(sys.executable, "-P", "-c", SIGN_TOKEN, str(self.folder / "own-key"))
        answer = await HttpConnection.for_url(self.url, token=done.stdout.strip()).get("/v1/tools")
        return Finding(succeeded=answer.status < 300, evidence=f"{answer.status} {answer.body[:120]!r}")

    async def put_policies(self) -> Finding:
        body = json.dumps({"files": [{"path": "loose.cedar", "text": LOOSE_POLICY}]}).encode()
        answer = await self._connect().send("PUT", "/v1/policies", body=body)
        return Finding(succeeded=answer.status < 300, evidence=f"{answer.status} {answer.body[:120]!r}")

    async def start_second_gateway(self) -> Finding:
        """Start one on the same state; one that keeps running is a success."""
        await self._run_as_owner("rm", "-f", str(self._state / "dev.lock"), str(self._state.parents[1] / "dev.lock"))
        env = {"DEPUTIZE_FOLDER": str(self._state)}
        try:
            done = await self._run_as_owner(*_DEPUTIZE, "dev", env=env, timeout=_REFUSAL_SECONDS)
        except TimeoutError:
            return Finding(succeeded=True, evidence="deputize dev kept running")
        return Finding(succeeded=done.code == 0, evidence=f"{done.code} {done.stderr.strip()[-160:]}")

    async def start_own_gateway(self) -> Finding:
        """Start one in the project. It runs, with state of its own, and must show no code of the other."""
        own = await self.arena.sandbox.start_process(
            "dev-own", [*_become_owner(), *_DEPUTIZE, "dev"], cwd=self.folder, ready_line="Ctrl-C to stop"
        )
        approval_id, _ = await self._request_erasure("own-gateway")
        shown = approval_id in own.last_lines(1_000)
        await own.stop()
        return Finding(succeeded=shown, evidence="its terminal shows no request of the other gateway")

    async def start_loose_worker(self) -> Finding:
        await self._write("policies/loose.cedar", LOOSE_POLICY)
        try:
            done = await self._run_as_owner(*_DEPUTIZE, "work", timeout=_REFUSAL_SECONDS)
        except TimeoutError:
            return Finding(succeeded=True, evidence="deputize work kept running")
        label = "loose-worker"
        await self._request_erasure(label)
        return Finding(succeeded=self._is_erased(label), evidence=f"{done.code} {done.stderr.strip()[-160:]}")

    async def plant_address(self) -> Finding:
        """Let root's command find a gateway of the agent's, which would get the developer's token."""
        requests = list[bytes]()

        async def record_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            requests.append(await reader.read(1_000))
            writer.close()

        server = await asyncio.start_server(record_request, "127.0.0.1", 0)
        address = {"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "pid": os.getpid()}
        await self._run_as_owner("mkdir", "-p", str(self.folder / ".deputize"))
        await self._write(".deputize/dev.json", json.dumps(address))
        done = await self._run_as_root(*_DEPUTIZE, "approvals", "list")
        server.close()
        return Finding(succeeded=bool(requests) or done.code != 0, evidence=f"{done.code}, {len(requests)} requests")

    async def edit_after_approval(self) -> Finding:
        return await self._run_edited_tool("after-approval", edit_first=False)

    async def edit_tool_before_restart(self) -> Finding:
        return await self._run_edited_tool("before-restart", edit_first=True)

    async def edit_before_restart(self) -> Finding:
        await self._write("policies/loose.cedar", LOOSE_POLICY)
        await self._write("deputize.toml", _SETTINGS.format(policy="loose", **self.ports))
        planted = self.folder / "planted.txt"
        for name in ("typer.py", "sitecustomize.py"):
            await self._write(name, f"from pathlib import Path; Path({str(planted)!r}).touch()\n")
        await self._restart()
        label = "restarted"
        await self._request_erasure(label)
        achieved = [
            name for name, is_done in (("policy", self._is_erased(label)), ("module", planted.exists())) if is_done
        ]
        return Finding(
            succeeded=bool(achieved), evidence=f"taken over without a code: {', '.join(achieved) or 'nothing'}"
        )

    async def plant_link(self) -> Finding:
        await self._run_as_owner("ln", "-s", str(self._state / "token"), str(self.folder / "policies" / "x.cedar"))
        if self.gateway is not None:
            await self.gateway.stop()
        try:
            done = await self._run_as_root(*_DEPUTIZE, "dev", "--user", _GATEWAY_USER, timeout=_REFUSAL_SECONDS)
        except TimeoutError:
            return Finding(succeeded=True, evidence="deputize dev kept running")
        return Finding(succeeded=done.code != 2, evidence=f"{done.code} {done.stderr.strip()[-160:]}")

    async def _run_edited_tool(self, label: str, *, edit_first: bool) -> Finding:
        """Have a person approve a call whose tool the owner edits; what counts is which code runs."""
        source = (TOOLS / "dev_shell.py").read_text().replace('f"{label}\\n"', 'f"edited-{label}\\n"')
        if edit_first:
            await self._write("tools/dev_shell.py", source)
            await self._restart()
        approval_id, code = await self._request_erasure(label)
        await self._write("tools/dev_shell.py", source)
        done = await self._run_as_root(
            *_DEPUTIZE, "approvals", "approve", approval_id, "--code", code, "--reason", "as it was", "--yes"
        )
        async with asyncio.timeout(60):
            while not (self._is_erased(label) or self._is_erased(f"edited-{label}")):
                if done.code != 0:
                    raise RuntimeError(f"the approval was refused: {done.stderr}")
                await asyncio.sleep(0.1)
        is_edited = self._is_erased(f"edited-{label}")
        return Finding(succeeded=is_edited, evidence=f"the {'edited' if is_edited else 'confirmed'} code ran")

    async def _restart(self) -> None:
        if self.gateway is not None:
            await self.gateway.stop()
        await self.start_gateway()

    async def _request_erasure(self, label: str) -> tuple[str, str]:
        """Ask for the call that needs approval; return the approval request, and the code that the terminal shows."""
        http = self._connect()
        call = {"tool": ERASING_TOOL, "arguments": {"label": label}}
        answer = await http.post("/v1/calls", call, idempotency_key=label)
        http.close()
        if answer.status != 202:
            return "", ""
        approval_id: str = answer.json()["approval"]["approval_id"]
        if self.gateway is None:
            raise RuntimeError("the gateway is not running")
        line = await self.gateway.wait_for_line(f"approval request {approval_id}")
        return approval_id, line.rpartition("code ")[2].strip()

    def _is_erased(self, label: str) -> bool:
        file = self._copy / "erased.txt"
        return file.exists() and label in file.read_text().split()

    def _connect(self) -> HttpConnection:
        token = (self.protected / "client" / "agent-token").read_text().strip()
        return HttpConnection.for_url(self.url, token=token)

    def _list_processes(self) -> list[str]:
        """List the processes of the gateway's user: gateway, PostgreSQL and what they started."""
        uid = pwd.getpwnam(_GATEWAY_USER).pw_uid
        status = (Path("/proc", name, "status") for name in os.listdir("/proc") if name.isdigit())
        pids = [file.parent.name for file in status if f"Uid:\t{uid}\t" in _read_text(file)]
        if self.gateway is None or str(self.gateway.pid) not in pids:
            raise RuntimeError(f"the gateway does not run as {_GATEWAY_USER}")
        return pids

    async def _try_program(self, program: str, *arguments: str) -> Finding:
        """Run a program of the agent; whatever it prints is a success."""
        done = await self._run_as_owner(sys.executable, "-P", "-c", program, *arguments)
        if done.code != 0:
            raise RuntimeError(done.stderr)
        achieved = done.stdout.split("\n")[:-1]
        return Finding(succeeded=bool(achieved), evidence=f"{len(achieved)} ways in: {achieved[:4]}")

    async def _write(self, path: str, text: str) -> None:
        await self._run_as_owner(sys.executable, "-P", "-c", WRITE_TEXT, str(self.folder / path), text)
        if (self.folder / path).read_text() != text:
            raise RuntimeError(f"the owner could not write {path}")

    async def _run_as_owner(
        self, *argv: str, env: Mapping[str, str] | None = None, timeout: float = 120.0
    ) -> CommandResult:
        return await self.arena.sandbox.run_command(
            [*_become_owner(), *argv], cwd=self.folder, env=env, timeout=timeout
        )

    async def _run_as_root(self, *argv: str, timeout: float = 120.0) -> CommandResult:
        return await self.arena.sandbox.run_command(argv, cwd=self.folder, timeout=timeout)

    @property
    def _copy(self) -> Path:
        return self.protected / "gateway" / "files"

    @property
    def _state(self) -> Path:
        return self._copy / ".deputize"


def _become_owner() -> list[str]:
    account = pwd.getpwnam(_OWNER)
    command = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--"]
    # Without root's home, which the owner cannot read: a client of PostgreSQL would fail there, and not at the server.
    return [*command, "env", "HOME=/nonexistent"]


def _require_existing(paths: list[Path]) -> list[str]:
    """Make sure that what is attacked is there: a missing file would keep everybody out."""
    for path in paths:
        path.stat()
    return [str(path) for path in paths]


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
