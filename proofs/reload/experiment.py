"""Edit a project while `deputize dev` runs at a terminal, under load: saved code is soon in use, and no call is lost.

Code is saved as editors do, by a rename. What changes authority, here a policy, must wait for a key at the terminal.
"""

import asyncio
import math
import re
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from proofs.kit.dev_terminal import DevTerminal
from proofs.kit.http_client import HttpConnection
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox
from proofs.reload.judge import CallRecord, find_lost_calls, read_number

NAME = "reload"
PROMISE = "Saved code is in use within a second and drops no call; a saved policy waits for a key."
FULL_ONLY = True

_PROGRAM = Path(sys.executable).with_name("deputize")
_GREETING = 'return f"Hello, {name}!"'
_LANES = 4
_IN_USE_SECONDS = 30.0
_PERMIT_ALL = '@id("everything")\npermit(principal, action, resource);\n\n'


@dataclass(kw_only=True, slots=True)
class EditedProject:
    """A project under edit, the terminal it runs in, and a caller's token."""

    folder: Path
    terminal: DevTerminal
    url: str
    token: str
    source: str
    saved_number: int = 0
    used_number: int = 0
    records: list[CallRecord] = field(default_factory=list)

    def save_next(self) -> None:
        """Save the tool with the next number in its answer, by a rename."""
        self.saved_number += 1
        replace_file(
            self.folder / "tools" / "hello.py",
            self.source.replace(_GREETING, f'return f"Hello {self.saved_number}, {{name}}!"'),
        )

    async def call_once(self, http: HttpConnection) -> CallRecord:
        """Call the tool, and record what answered."""
        used_number = self.used_number
        try:
            response = await http.post("/v1/calls", {"tool": "hello.greet", "arguments": {"name": "Ana"}})
        except (OSError, EOFError) as error:
            http.close()
            return CallRecord(used_number=used_number, saved_number=self.saved_number, status=0, answer=repr(error))
        value = response.json().get("result") if response.status == 200 else response.body.decode(errors="replace")
        return CallRecord(
            used_number=used_number, saved_number=self.saved_number, status=response.status, answer=str(value)
        )

    async def wait_until_used(self, http: HttpConnection) -> bool:
        """Call until the last save answers; tell whether it did in time."""
        ends_at = time.monotonic() + _IN_USE_SECONDS
        while time.monotonic() < ends_at:
            record = await self.call_once(http)
            if read_number(record.answer) == self.saved_number:
                self.used_number = self.saved_number
                return True
        return False


def replace_file(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    draft.replace(path)


async def prove(sandbox: Sandbox) -> Verdict:
    async with open_project(sandbox, "edited", {}) as project:
        waits = await _measure_waits(project, sandbox.pick_size(quick=5, full=30))
        sandbox.log(f"in use after {sorted(round(each, 2) for each in waits)}")
        reload_count = await _reload_under_load(project, sandbox.pick_size(quick=20, full=200))
        lost = find_lost_calls(project.records)
        for sentence in lost[:20]:
            sandbox.log(f"lost: {sentence}")
        early_count, is_used_after_key = await _save_policy(project)
    return Verdict(
        figures={
            "in_use_p95_seconds": round(compute_p95(waits), 2),
            "saves": len(waits),
            "reloads_under_load": reload_count,
            "calls_under_load": len(project.records),
            "lost_calls": len(lost),
            "calls_by_an_unconfirmed_policy": early_count,
            "policy_in_use_after_the_key": int(is_used_after_key),
        },
        controls={
            "nothing is watched": not await _is_used_unwatched(sandbox),
            "restarted instead of reloaded": await _is_restart_noticed(sandbox),
        },
        notes=["A save is a file renamed over the old one; it counts as in use once a call is answered by it."],
    )


@asynccontextmanager
async def open_project(sandbox: Sandbox, name: str, env: Mapping[str, str]) -> AsyncIterator[EditedProject]:
    """Make a project and run `deputize dev` in it."""
    folder = sandbox.folder / name
    variables = {"PATH": f"{_PROGRAM.parent}:/usr/bin:/bin", "HOME": str(sandbox.folder), **env}
    result = await sandbox.run_command([str(_PROGRAM), "init", str(folder)], env=variables)
    if result.code:
        raise RuntimeError(f"init ended with {result.code}: {result.stderr[-500:]}")
    terminal = DevTerminal()
    sandbox.add_cleanup(terminal.stop)
    await terminal.start(_PROGRAM, folder, variables)
    address = re.search(r"REST (http://[0-9.:]+)", terminal.text)
    token_result = await sandbox.run_command(
        [str(_PROGRAM), "token", "--scope", "notes:write", "--minutes", "600"], env=variables, cwd=folder
    )
    if address is None or token_result.code:
        raise RuntimeError(
            f"dev told no address, or no token came: {token_result.stderr[-300:]} {terminal.text[-500:]}"
        )
    source = (folder / "tools" / "hello.py").read_text()
    if _GREETING not in source:
        raise RuntimeError("the starter's greeting changed: the proof has nothing to edit")
    try:
        yield EditedProject(
            folder=folder, terminal=terminal, url=address[1], token=token_result.stdout.strip(), source=source
        )
    finally:
        await terminal.stop()


async def _measure_waits(project: EditedProject, count: int) -> list[float]:
    """Save so many times, and measure how long it takes until a call is answered by what was saved."""
    http, waits = HttpConnection.for_url(project.url, token=project.token), []
    for _ in range(count):
        began = time.monotonic()
        project.save_next()
        is_used = await project.wait_until_used(http)
        waits.append(time.monotonic() - began if is_used else math.inf)
    http.close()
    return waits


async def _reload_under_load(project: EditedProject, count: int) -> int:
    """Save again and again while several callers call; return how many saves came into use."""
    is_over = asyncio.Event()

    async def run_lane() -> None:
        http = HttpConnection.for_url(project.url, token=project.token)
        while not is_over.is_set():
            project.records.append(await project.call_once(http))
        http.close()

    lanes = [asyncio.create_task(run_lane()) for _ in range(_LANES)]
    http, used_count = HttpConnection.for_url(project.url, token=project.token), 0
    for _ in range(count):
        project.save_next()
        used_count += await project.wait_until_used(http)
    is_over.set()
    await asyncio.gather(*lanes)
    http.close()
    return used_count


async def _save_policy(project: EditedProject) -> tuple[int, bool]:
    """Save a policy that permits everything: count the calls it decides before the key, and tell if it does after."""
    http = HttpConnection.for_url(project.url, token=project.token)
    await http.post("/v1/calls", {"tool": "hello.remember", "arguments": {"text": "milk"}}, idempotency_key="milk")
    path = project.folder / "policies" / "default.cedar"
    replace_file(path, _PERMIT_ALL + path.read_text())
    await project.terminal.wait_for("Press y to apply it")
    early_statuses = [await _forget_note(http, f"early-{number}") for number in range(5)]
    project.terminal.press_key("y")
    await project.terminal.wait_for("policies active")
    late_status = await _forget_note(http, "late")
    http.close()
    return sum(status != 202 for status in early_statuses), late_status == 200


async def _forget_note(http: HttpConnection, key: str) -> int:
    body = {"tool": "hello.forget", "arguments": {"number": 1}}
    return (await http.post("/v1/calls", body, idempotency_key=key)).status


async def _is_used_unwatched(sandbox: Sandbox) -> bool:
    """Tell whether saved code is used by a `dev` that cannot import its file watcher."""
    folder = sandbox.folder / "without-watchfiles"
    folder.mkdir()
    (folder / "watchfiles.py").write_text("raise ImportError('hidden on purpose')\n")
    async with open_project(sandbox, "unwatched", {"PYTHONPATH": str(folder)}) as project:
        http = HttpConnection.for_url(project.url, token=project.token)
        project.save_next()
        return await project.wait_until_used(http)


async def _is_restart_noticed(sandbox: Sandbox) -> bool:
    """Tell whether calls are lost, and counted, where `dev` is ended under load instead of reloading."""
    async with open_project(sandbox, "restarted", {}) as project:
        http = HttpConnection.for_url(project.url, token=project.token)
        project.save_next()
        await project.wait_until_used(http)
        stop_task = asyncio.create_task(project.terminal.stop())
        while not stop_task.done():
            project.records.append(await project.call_once(http))
            await asyncio.sleep(0.01)
        await stop_task
        project.records.append(await project.call_once(http))
        return bool(find_lost_calls(project.records))


def compute_p95(values: list[float]) -> float:
    """Compute the 95th percentile."""
    return sorted(values)[max(math.ceil(len(values) * 0.95) - 1, 0)]
