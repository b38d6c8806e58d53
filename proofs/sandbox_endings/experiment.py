"""End programs in every way there is, and hold what their calls say against what ended them; then count what is left.

Each program is a governed call: a command in a sandbox of its own, or a program of `code.run` on the interpreter. What
ended it is known here, because the program did it to itself or the proof did it from outside. Then sandboxes are
started by the thousand while their supervisor is killed, and the host is searched. The control is a gateway that
names an end by the exit code, as most do.
"""

import asyncio
import contextlib
import hashlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from proofs.kit.child_process import ChildProcess
from proofs.kit.gateway import GatewayHandle, create_issuer, start_gateway, start_worker
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.http_client import HttpConnection
from proofs.kit.process_usage import find_descendants, read_cpu_seconds
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox
from proofs.sandbox_endings.churn import churn
from proofs.sandbox_endings.host import Host
from proofs.sandbox_endings.judge import COMMAND, INTERPRETER, Ended, compute_figures
from proofs.sandbox_endings.programs import COMMANDS, INTERPRETED, PYTHON, Way, build_manifest

NAME = "sandbox_endings"
PROMISE = "However a program ends, its call says who ended it, and nothing of its sandbox is left."

_BY_EXIT_CODE = "sandbox_endings_by_exit_code"
_SCOPES = ("proof:write", "code:run")
_AT_ONCE = 4
_SECONDS = 120.0
_COMPUTING_SECONDS = 0.1
_OPEN_STATES = {"queued", "running"}
_SETTINGS = """
[sandboxes]
folder = "{folder}"
accept = ["weak_limits"]

[runs]
poll_seconds = 0.05

[timing]
lease_seconds = 3.0
sweep_seconds = 0.1
margin_seconds = 0.2

[builtin.code]
tools = ["lab.*"]
seconds = 3
memory_mb = 16
calls = 3

[[services]]
name = "lab"
kind = "commands"
document = "{document}"
sha256 = "{sha256}"
"""


@dataclass(kw_only=True, slots=True)
class Testbed:
    """A gateway with its worker, whose sandboxes are all of one folder."""

    sandbox: Sandbox
    gateway: GatewayHandle
    host: Host
    worker: ChildProcess
    idle: list[HttpConnection] = field(default_factory=list)
    workers: int = 1

    @contextlib.contextmanager
    def connect(self) -> Iterator[HttpConnection]:
        """Use a connection that nothing else uses meanwhile."""
        if self.idle:
            http = self.idle.pop()
        else:
            http = HttpConnection.for_url(
                self.gateway.url, token=self.gateway.issuer.issue_token("ana", scopes=_SCOPES)
            )
        yield http
        self.idle.append(http)

    async def run(self, backend: str, way: Way, *, mode: str = "sync") -> Ended:
        """Call a program, end it if that is its way, and return what its call says."""
        if backend == COMMAND:
            body: dict[str, Any] = {"tool": f"lab.{way.name}", "arguments": {}}
        else:
            body = {"tool": "code.run", "arguments": {"code": way.code}}
        body["mode"] = mode if way.strike is None else "async"
        computes = way in INTERPRETED and way.strike != "kill worker"
        find = self._list_interpreters if computes else self.host.list_used_sandboxes
        ran_on = 0.0
        async with asyncio.timeout(_SECONDS):
            with self.connect() as http:
                key = secrets.token_hex(8)
                envelope = (await http.post("/v1/calls", body, idempotency_key=key)).json()
                path = f"/v1/calls/{envelope['call_id']}"
                if way.strike is not None:
                    await self._strike(http, way, path, find)
                while envelope["state"] in _OPEN_STATES:
                    await asyncio.sleep(0.05)
                    envelope = (await http.get(path)).json()
            if way.strike == "cancel":
                ended_at = time.monotonic()
                while find():  # noqa: ASYNC110 -- the end of another process is no event of ours
                    await asyncio.sleep(0.02)
                ran_on = time.monotonic() - ended_at
        error = envelope.get("error") or {}
        return Ended(
            backend=backend, way=way, state=envelope["state"], number=error.get("number"),
            details=error.get("details") or {}, ran_on_seconds=ran_on,
        )  # fmt: skip

    async def _strike(self, http: HttpConnection, way: Way, path: str, find: Callable[[], list[int]]) -> None:
        """Wait until the program of a call runs, and end it."""
        while not (pids := find()):  # noqa: ASYNC110 -- what another process starts is no event of ours
            await asyncio.sleep(0.02)
        match way.strike:
            case "cancel":
                await http.post(f"{path}/cancel", {})
            case "kill supervisor":
                supervisor = self.host.find_supervisor()
                assert supervisor is not None
                os.kill(supervisor, signal.SIGKILL)
            case "kill sandbox":
                # The outermost process, which nothing inside can reach.
                os.kill(pids[0], signal.SIGKILL)
            case "kill interpreter":
                for each in pids:
                    os.kill(each, signal.SIGKILL)
            case "kill worker":
                self.worker.kill()
                await self.worker.wait_for_exit()
                self.workers += 1
                self.worker = await start_worker(self.gateway, name=f"worker-{self.workers}")
            case None:
                pass

    def _list_interpreters(self) -> list[int]:
        """List the interpreters that compute; one that waits for its program does not."""
        found = []
        for pid in set().union(*map(find_descendants, self.host.list_sandboxes())):
            with contextlib.suppress(OSError):
                if "monty" in os.readlink(f"/proc/{pid}/exe") and read_cpu_seconds(pid) > _COMPUTING_SECONDS:
                    found.append(pid)
        return found


async def prove(sandbox: Sandbox) -> Verdict:
    mark = secrets.token_hex(8)
    testbed = await _open_testbed(sandbox, mark)
    # The gateway and the worker each hold a connection to the supervisor from then on.
    for mode in ("sync", "async"):
        await testbed.run(COMMAND, COMMANDS[0], mode=mode)
    usual = testbed.host.count_descriptors()
    ended: list[Ended] = []
    for number in range(sandbox.pick_size(quick=1, full=10)):
        ended += await _run_all(testbed)
        sandbox.log(f"round {number + 1}: {sum(not each.is_right for each in ended)} of {len(ended)} misnamed")
    # The interpreter that waits for the next program ends with its worker.
    await testbed.worker.stop()
    left = await testbed.host.count_left(usual_descriptors=usual)
    await restart_as_variant(testbed.gateway, _BY_EXIT_CODE)
    testbed.idle.clear()
    by_code = await _run_together(testbed, COMMAND, [each for each in COMMANDS if each.strike is None])
    sandbox.log(f"by the exit code, {sum(not each.is_right for each in by_code)} of {len(by_code)} are misnamed")
    churned = await churn(
        sandbox, sandbox.pick_size(quick=300, full=2_000), sandbox.pick_size(quick=60, full=200), mark
    )
    wrong = sorted({str(each) for each in ended if not each.is_right})
    missed = sorted({each.way.name for each in by_code if not each.is_right})
    return Verdict(
        figures=compute_figures(ended, left, churned),
        controls={_BY_EXIT_CODE: bool(missed)},
        notes=[
            *wrong,
            *churned.untrue[:5],
            f"by the exit code: {', '.join(missed)}",
            f"left: {left}, of the churn: {churned.left}",
        ],
    )


async def _run_all(testbed: Testbed) -> list[Ended]:
    """Run each program once: several at a time, but those alone that are ended from outside."""
    ended = []
    for backend, ways in ((COMMAND, COMMANDS), (INTERPRETER, INTERPRETED)):
        ended += await _run_together(testbed, backend, [each for each in ways if each.strike is None])
        for each in ways:
            if each.strike is not None:
                ended.append(await testbed.run(backend, each))
    return ended


async def _run_together(testbed: Testbed, backend: str, ways: Sequence[Way]) -> list[Ended]:
    slots = asyncio.Semaphore(_AT_ONCE)

    async def run(way: Way) -> Ended:
        async with slots:
            return await testbed.run(backend, way)

    return await asyncio.gather(*map(run, ways))


async def _open_testbed(sandbox: Sandbox, mark: str) -> Testbed:
    folder, temporary = sandbox.folder / "sandboxes", sandbox.folder / "temporary"
    temporary.mkdir()
    temporary.chmod(0o711)
    document = sandbox.folder / "lab.json"
    document.write_bytes(orjson.dumps(build_manifest(_compute_digest(Path(PYTHON)), mark)))
    settings = _SETTINGS.format(folder=folder, document=document, sha256=_compute_digest(document))
    postgres = await sandbox.start_postgres()
    gateway = await start_gateway(
        sandbox, postgres.dsn, create_issuer(), tools="barrier.py", settings=settings, env={"TMPDIR": str(temporary)}
    )
    host = Host(folder=folder, mark=mark, temporary=temporary)
    return Testbed(sandbox=sandbox, gateway=gateway, host=host, worker=await start_worker(gateway))


def _compute_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
