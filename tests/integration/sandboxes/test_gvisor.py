"""Programs on gVisor: who ended them, what they saw, and that neither a process nor a file of them is left."""

import asyncio
import contextlib
import hashlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from deputize.core.settings import SandboxSettings, Settings
from deputize.interfaces.cli.diagnostics.sandbox_checks import check_sandboxes
from deputize.runs.interpreter import InterpreterSandboxes
from deputize.runs.program_job import replay_job
from deputize.sandboxes.client import SandboxClient, find_problem
from deputize.sandboxes.port import Backend, Ending, SandboxFolder, SandboxSpec, choose_stronger
from tests.integration.sandboxes.test_supervisor import ENDS, SMALL, find_supervisor
from tests.support.sandbox_host import PYTHON, needs_gvisor, needs_sandboxes
from tests.unit.runs.test_program_job import build_request

pytestmark = [pytest.mark.requirement("EXE-2"), needs_sandboxes]
# Its own kernel refuses processes, so that the host's does not count them.
_REFUSED_INSIDE = frozenset({"a flood of forks", "a flood of threads"})


@pytest.fixture
async def client() -> AsyncIterator[SandboxClient]:
    # The user of sandboxes must be able to get to the bundles.
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        client = SandboxClient(Path(name), accept_weak_limits=True, accept_shared_user=True, backend=Backend.GVISOR)
        yield client
        await client.aclose()


def python(code: str, **fields: Any) -> SandboxSpec:
    return SandboxSpec(command=(PYTHON, "-c", code), **{"seconds": 60.0, "limits": SMALL, **fields})


def list_left(client: SandboxClient) -> list[str]:
    """List the processes of gVisor, and the bundles, of a supervisor."""
    left = [each.name for each in (client.folder / "gvisor").glob("*")]
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{client.folder}/gvisor/".encode() in each.read_bytes():
                left.append(each.parent.name)
    return left


async def wait_for(client: SandboxClient, *, is_left: bool) -> None:
    for _ in range(3_000):
        if bool(list_left(client)) == is_left:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"waited for half a minute: {list_left(client)}")


@needs_gvisor
@pytest.mark.parametrize("name", ["success", "exit 137", "memory in a child", "a flood of forks", "a full disk"])
async def test_who_ended_a_program_is_named(client: SandboxClient, name: str) -> None:
    code, ending, exit_code = ENDS[name]
    result = await client.run(python(code))
    if ending is Ending.MEMORY:
        if client.weak_limits is not None:
            pytest.skip("this host has no control groups")
        exit_code = result.end.exit_code
    expected = Ending.EXIT if name in _REFUSED_INSIDE else ending
    assert (result.end.ending, result.end.exit_code) == (expected, exit_code), (result.end, result.stderr)
    assert list_left(client) == []


@needs_gvisor
async def test_a_program_sees_a_kernel_of_its_own_and_what_is_listed(client: SandboxClient) -> None:
    folder = client.folder.parent / f"{client.folder.name}-shown"
    folder.mkdir()
    folder.chmod(0o777)
    try:
        (folder / "file").write_text("shown")
        code = (
            "import os\n"
            f"print(os.uname().release, os.getuid(), open('{folder}/file').read(), sorted(os.environ))\n"
            f"open('{folder}/new', 'w').write('left')\n"
            "for path in ('/usr/x', '/x', '/etc/passwd'):\n"
            "    try: print(open(path, 'r' if 'etc' in path else 'w'))\n"
            "    except OSError as error: print(error.errno)\n"
        )
        shown = SandboxFolder(path=str(folder), is_writable=True)
        result = await client.run(python(code, folders=(shown,), environment={"TOKEN": "t"}))
        assert result.end.ending is Ending.EXIT, result
        words = result.stdout.decode().split("\n")
        assert words[0] == "4.4.0 0 shown ['HOME', 'LANG', 'PATH', 'PWD', 'TOKEN']"
        assert words[1:4] == ["13", "30", "2"]
        assert (folder / "new").read_text() == "left"
        refused = await client.run(python("", folders=(SandboxFolder(path="/run"),)))
        assert (refused.end.ending, refused.end.has_started) == (Ending.FAILURE, False)
    finally:
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()


@needs_gvisor
async def test_only_the_pinned_program_is_executed(client: SandboxClient) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        program = Path(name, "report")
        program.write_text("#!/bin/sh\necho pinned $1\n")
        digest = hashlib.sha256(program.read_bytes()).hexdigest()
        spec = SandboxSpec(command=(str(program), "it"), program_sha256=digest, seconds=60)
        assert (await client.run(spec)).stdout == b"pinned it\n"
        program.write_text("#!/bin/sh\necho changed\n")
        assert "not the pinned" in (await client.run(spec)).end.note


@needs_gvisor
async def test_a_program_ends_with_its_gateway_and_with_its_supervisor(client: SandboxClient) -> None:
    for is_supervisor in (False, True):
        sandbox = await client.start(python("print(1, flush=True); import time; time.sleep(600)", seconds=None))
        assert await sandbox.stdout.readline() == b"1\n"
        if is_supervisor:
            os.kill(find_supervisor(client), signal.SIGKILL)
            assert (await sandbox.wait()).ending is Ending.FAILURE
            # Its files stay until the next one sweeps.
            await client.run(python("pass"))
        await sandbox.aclose()
        await wait_for(client, is_left=False)


@needs_gvisor
async def test_what_is_not_there_says_so(client: SandboxClient) -> None:
    missing = await client.run(SandboxSpec(command=("/none",), seconds=60))
    assert (missing.end.ending, missing.end.has_started) == (Ending.FAILURE, False)
    assert "/none" in missing.end.note
    async with contextlib.aclosing(await client.start(python("", proxy_port=3128))) as sandbox:
        assert "reach no hosts" in (await sandbox.wait()).note


@needs_gvisor
async def test_the_interpreter_runs_on_it_where_settings_say_so(client: SandboxClient) -> None:
    request = build_request("1 + 1", sandbox=await InterpreterSandboxes(client).describe())
    reply = orjson.loads(await asyncio.to_thread(replay_job, request))
    assert reply["end"]["result"] == 2, reply


@needs_gvisor
async def test_the_check_of_a_host_finds_all_ways_out_closed(client: SandboxClient) -> None:
    sandboxes = SandboxSettings(folder=client.folder, backend="gvisor", accept=("weak_limits",))
    findings = await check_sandboxes(Settings(sandboxes=sandboxes))
    assert {each.check: each.summary for each in findings}["gvisor"] == "11 ways out, all closed"
    assert {each.status for each in findings} <= {"good", "warning"}, findings


def test_what_a_contract_and_the_settings_demand_is_never_weakened() -> None:
    for pair in ((Backend.GVISOR, Backend.NAMESPACES), (Backend.NAMESPACES, Backend.GVISOR)):
        assert choose_stronger(*pair) is Backend.GVISOR
    # A supervisor of an earlier release, and a host without it.
    for backend in Backend:
        assert "earlier release" in str(find_problem({"problem": None, "gvisor": None}, backend))
    greeting = {"problem": "no bubblewrap", "gvisor": "not installed", "shared_user": None}
    assert find_problem(greeting, Backend.GVISOR) == "not installed"
    assert find_problem({**greeting, "gvisor": None}, Backend.GVISOR) is None


def test_a_supervisor_of_an_earlier_release_is_sent_nothing_that_it_does_not_know() -> None:
    fields = orjson.loads(SandboxSpec(command=("/bin/true",), seconds=1).to_json())
    assert fields.keys().isdisjoint({"has_base", "backend", "result_folder"})
    spec = SandboxSpec(command=("/bin/true",), seconds=1, has_base=False, backend=Backend.GVISOR)
    assert SandboxSpec.from_json(orjson.loads(spec.to_json())) == spec
