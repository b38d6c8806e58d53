"""The interpreter of programs runs in a sandbox that shows it itself alone, and who ended it is named."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic_monty._binary import find_monty_binary

from deputize.execute.job_processes import JobProcesses
from deputize.runs import interpreter
from deputize.runs.interpreter import (
    InterpreterSandboxes,
    list_libraries,
    open_interpreter,
)
from deputize.runs.program_job import replay_job
from deputize.sandboxes import stand_in
from deputize.sandboxes.client import SandboxClient, SandboxUnavailable
from deputize.sandboxes.port import Ending
from deputize.sandboxes.supervisor import list_marked_processes, mark_processes
from tests.integration.sandboxes.test_supervisor import find_supervisor
from tests.support.sandbox_host import needs_sandboxes
from tests.unit.runs.test_program_job import build_request

pytestmark = [pytest.mark.requirement("EXE-2"), needs_sandboxes]
ENDLESS = "while True:\n    pass"
GATEWAY = """
import asyncio, sys
from pathlib import Path
from deputize.execute.job_processes import JobProcesses
from deputize.runs.program_job import replay_job
asyncio.run(JobProcesses().begin_job("acme", replay_job, Path(sys.argv[1]).read_bytes(), seconds=600))
"""


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[SandboxClient]:
    client = SandboxClient(tmp_path / "sandboxes", accept_weak_limits=True, accept_shared_user=True)
    yield client
    await client.aclose()


async def run(client: SandboxClient, code: str, **more: Any) -> dict[str, Any]:
    request = build_request(code, sandbox=await InterpreterSandboxes(client).describe(), **more)
    end: dict[str, Any] = orjson.loads(await asyncio.to_thread(replay_job, request))["end"]
    return end


def list_sandboxed(client: SandboxClient) -> list[int]:
    """List the interpreters of a supervisor: what the first processes of its namespaces have started."""
    mark, pids = mark_processes(client.folder), []
    for bubblewrap in list_marked_processes(mark):
        # One that ends meanwhile has no children, and a child that has ended no words.
        with contextlib.suppress(OSError):
            for each in Path(f"/proc/{bubblewrap}/task/{bubblewrap}/children").read_text().split():
                words = Path("/proc", each, "cmdline").read_bytes()
                if words and not words.startswith(mark.encode()):
                    pids.append(int(each))
    return pids


async def wait_for_interpreter(client: SandboxClient) -> int:
    for _ in range(3_000):
        if pids := list_sandboxed(client):
            return pids[0]
        await asyncio.sleep(0.01)
    pytest.fail("no interpreter came within half a minute")


async def wait_until_gone(client: SandboxClient) -> None:
    for _ in range(3_000):
        if not list_marked_processes(mark_processes(client.folder)):
            return
        await asyncio.sleep(0.01)
    pytest.fail("the sandbox did not end within half a minute")


def list_files(root: Path) -> Iterator[str]:
    for folder, _, names in os.walk(root):
        yield from (f"/{Path(folder, each).relative_to(root)}" for each in names)


async def test_it_sees_its_own_files_and_nothing_else(client: SandboxClient) -> None:
    assert (await run(client, "sum(range(10))"))["result"] == 45
    running = asyncio.create_task(run(client, ENDLESS, seconds=3.0))
    process = Path("/proc", str(await wait_for_interpreter(client)))
    binary = find_monty_binary()
    assert set(list_files(process / "root")) == {binary, *list_libraries(binary)}
    assert [line.split(":")[0].strip() for line in (process / "net/dev").read_text().splitlines()[2:]] == ["lo"]
    environment = {each.split(b"=")[0] for each in (process / "environ").read_bytes().split(b"\0") if each}
    assert environment == {b"PATH", b"HOME", b"LANG", b"PWD"}
    assert len(list((process / "fd").iterdir())) <= 4
    assert (await running)["failure"]["kind"] == "time"
    await wait_until_gone(client)


@pytest.mark.skipif(os.geteuid() != 0, reason="only a supervisor of root runs it as another user")
async def test_one_that_only_its_gateway_finds_is_shown(
    client: SandboxClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("MONTY_BIN", shutil.copy(find_monty_binary(), str(tmp_path)))
    assert (await run(client, "1 + 1"))["result"] == 2


async def run_job(jobs: JobProcesses, client: SandboxClient, code: str, **more: Any) -> dict[str, Any]:
    request = build_request(code, sandbox=await InterpreterSandboxes(client).describe(), **more)
    reply = await jobs.run_job("acme", replay_job, request)
    assert reply is not None
    end: dict[str, Any] = orjson.loads(reply)["end"]
    return end


async def wait_for_spare(client: SandboxClient, used: int) -> int:
    """Wait until one interpreter is there, and it is another one than that which was used."""
    for _ in range(3_000):
        pids = list_sandboxed(client)
        if len(pids) == 1 and pids != [used]:
            return pids[0]
        await asyncio.sleep(0.01)
    pytest.fail("no spare came within half a minute")


async def test_one_waits_for_the_next_program_and_is_used_once(client: SandboxClient) -> None:
    jobs = JobProcesses()
    running = asyncio.create_task(run_job(jobs, client, ENDLESS, seconds=1.0))
    used = await wait_for_interpreter(client)
    assert (await running)["failure"]["kind"] == "time"
    for code, kind in ((ENDLESS, "time"), ("y = [0] * 10**9", "memory")):
        spare = await wait_for_spare(client, used)
        running = asyncio.create_task(run_job(jobs, client, code, seconds=1.0))
        while not running.done():
            # No other one is started while it is used.
            assert set(list_sandboxed(client)) <= {spare} or running.done()
            await asyncio.sleep(0.05)
        assert (await running)["failure"]["kind"] == kind
        used = spare
    await jobs.aclose()
    await wait_until_gone(client)


async def test_one_that_died_while_it_waited_is_seen_by_no_program(client: SandboxClient) -> None:
    jobs, used = JobProcesses(), 0
    for number in range(2):
        assert (await run_job(jobs, client, f"{number} + 1"))["result"] == number + 1
        used = await wait_for_spare(client, used)
        os.kill(used, signal.SIGKILL)
    assert (await run_job(jobs, client, "3"))["result"] == 3
    await wait_for_spare(client, used)
    os.kill(find_supervisor(client), signal.SIGKILL)
    await wait_until_gone(client)
    assert (await run_job(jobs, client, "4"))["result"] == 4
    # What waits has other limits than this one needs.
    assert (await run_job(jobs, client, "5", memory_bytes=16 << 20))["result"] == 5
    await jobs.aclose()
    await wait_until_gone(client)


async def test_the_time_of_a_program_ends_whatever_becomes_of_its_own_limit(client: SandboxClient) -> None:
    sandbox = await InterpreterSandboxes(client).describe()
    with (
        open_interpreter(find_monty_binary(), sandbox, memory_bytes=32 << 20) as interpreter,
        subprocess.Popen(interpreter.path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False) as process,
    ):
        await wait_for_interpreter(client)
        assert not interpreter.has_ended
        with interpreter.limit_time(0.1):
            await asyncio.to_thread(process.wait)
        assert interpreter.has_ended
        assert interpreter.explain_end().ending is Ending.CANCEL
    await wait_until_gone(client)


async def test_who_ended_it_is_named(client: SandboxClient, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[str, Any] = {"seconds": 30.0, "memory_bytes": 64 << 20}
    assert (await run(client, "y = [0] * 10**9", **limits))["failure"]["kind"] == "memory"
    # A value that the interpreter begins to make, and that then finds no memory.
    assert (await run(client, "','.join(['x' * 1000] * 10**6)", **limits))["failure"]["kind"] == "memory"
    with monkeypatch.context() as patch:
        # A sandbox that is too small for what the interpreter itself allows.
        patch.setattr(interpreter, "_OWN_MEMORY", -112 << 20)
        if client.weak_limits is None:
            assert (await run(client, "y = [0] * 3_000_000", **limits))["failure"]["kind"] == "memory"
    for number in (signal.SIGKILL, signal.SIGABRT):
        await wait_until_gone(client)
        running = asyncio.create_task(run(client, ENDLESS, **limits))
        os.kill(await wait_for_interpreter(client), number)
        assert (await running)["failure"]["kind"] == "crashed"


async def test_one_whose_supervisor_is_killed_did_not_crash(client: SandboxClient) -> None:
    running = asyncio.create_task(run(client, ENDLESS, seconds=30.0))
    pid = await wait_for_interpreter(client)
    while (parent := _read_parent(pid)) in list_marked_processes(mark_processes(client.folder)):
        pid = parent
    os.kill(parent, signal.SIGKILL)
    assert (await running)["failure"]["kind"] == "sandbox"
    assert (await run(client, "1 + 1"))["result"] == 2


def _read_parent(pid: int) -> int:
    return int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])


async def test_it_ends_with_its_gateway(client: SandboxClient, tmp_path: Path) -> None:
    request = tmp_path / "request"
    request.write_bytes(build_request(ENDLESS, sandbox=await InterpreterSandboxes(client).describe(), seconds=600.0))
    with subprocess.Popen([sys.executable, "-c", GATEWAY, str(request)]) as gateway:
        await wait_for_interpreter(client)
        gateway.kill()
    await wait_until_gone(client)


async def test_without_sandboxes_it_runs_bare_only_where_that_is_accepted() -> None:
    client = SandboxClient(Path("/proc/none"))
    with pytest.raises(SandboxUnavailable):
        await InterpreterSandboxes(client).describe()
    assert await InterpreterSandboxes(client, may_be_bare=True).describe() is None


async def test_what_cannot_be_started_is_no_fault_of_the_program(
    client: SandboxClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "_SCRIPT", "#!/none\n{python}{request}{connection}")
    failure = (await run(client, "1"))["failure"]
    assert (failure["kind"], "/none" in failure["message"] or "spawn" in failure["message"]) == ("sandbox", True)
