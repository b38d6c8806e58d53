"""Gateways of the supervisor's user and of another one: who a sandbox is, and what passes between both."""

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deputize.core.settings import McpServerSettings, SandboxSettings, Settings
from deputize.execute.folder_runs import FolderRuns
from deputize.execute.upstreams.server_pool import UpstreamPool
from deputize.runs.interpreter import InterpreterSandboxes
from deputize.sandboxes.client import SandboxClient, SandboxUnavailable
from deputize.sandboxes.port import Backend, Ending, ResultFolder, SandboxFolder, SandboxLimits, SandboxSpec
from deputize.sandboxes.supervisor import SOCKET_NAME, list_marked_processes, mark_processes
from deputize.sandboxes.users import NoUsers, SandboxUsers, UserRange
from tests.integration.execute.upstreams.conftest import ShopServer
from tests.support.sandbox_host import PYTHON, GatewayHost, needs_sandboxes

pytestmark = [pytest.mark.requirement("EXE-2"), needs_sandboxes]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a supervisor of root has users of its own")
# Read as the user of the tests: the gateway of another user may not get here.
SERVER = (Path(__file__).parents[1] / "execute" / "upstreams" / "exec_stdio_server.py").read_bytes()
TRY_INTERPRETER = """
import json, sys
from deputize.runs.program_job import try_interpreter
print(try_interpreter(json.loads(sys.argv[1])))
"""
LIMITS = SandboxLimits(memory_bytes=64 << 20, processes=24, storage_bytes=4 << 20)


@contextlib.asynccontextmanager
async def open_client(host: GatewayHost, *, accept_shared_user: bool = True) -> AsyncIterator[SandboxClient]:
    client = SandboxClient(host.supervisor, accept_weak_limits=True, accept_shared_user=accept_shared_user)
    yield client
    await client.aclose()


def read_users(client: SandboxClient) -> set[int]:
    return {Path("/proc", str(each)).stat().st_uid for each in list_marked_processes(mark_processes(client.folder))}


async def test_folders_that_only_the_gateway_enters_are_read_written_and_read_back(gateway_host: GatewayHost) -> None:
    shown, kept = gateway_host.folder / "shown", gateway_host.folder / "kept"
    shown.mkdir()
    kept.mkdir()
    if os.geteuid() == 0:
        # What root lists belongs to root, and is written by another user.
        kept.chmod(0o777)
    (shown / "file").write_text("for it")
    script = f"umask 077; cat {shown}/file; mkdir /out/deep {kept}/deep; echo r > /out/deep/r; echo k > {kept}/deep/k"
    spec = SandboxSpec(
        command=("/bin/sh", "-c", script), seconds=60, limits=LIMITS,
        folders=(SandboxFolder(path=str(shown)), SandboxFolder(path=str(kept), is_writable=True)),
        result_folder=ResultFolder(path="/out", size_bytes=65_536),
    )  # fmt: skip
    async with open_client(gateway_host) as client:
        for _ in range(2):
            async with contextlib.aclosing(await client.start(spec)) as sandbox:
                result = await sandbox.finish()
                assert (result.end.ending, result.stdout) == (Ending.EXIT, b"for it"), (result.end, result.stderr)
                assert sandbox.result_folder is not None
                assert (sandbox.result_folder / "deep" / "r").read_text() == "r\n"
            assert (kept / "deep" / "k").read_text() == "k\n"
            # The next sandbox is another user, and goes on with what this one left.
            spec = SandboxSpec(
                command=("/bin/sh", "-c", script.replace(f" {kept}/deep;", ";")), seconds=60, limits=LIMITS,
                folders=spec.folders, result_folder=spec.result_folder,
            )  # fmt: skip
    if os.geteuid() != 0:
        assert (kept / "deep" / "k").stat().st_uid == os.geteuid()
        shutil.rmtree(kept)


async def test_builds_servers_and_pinned_programs_run(gateway_host: GatewayHost) -> None:
    project, tool, script = gateway_host.folder / "project", gateway_host.folder / "tool", gateway_host.folder / "s.py"
    (project / "src").mkdir(parents=True, mode=0o700)
    (project / "src" / "a.txt").write_text("of the project")
    (project / "src" / "a.txt").chmod(0o600)
    tool.write_text("#!/bin/sh\necho pinned\n")
    script.write_bytes(SERVER)
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    server = McpServerSettings(
        name="shop", command=(PYTHON, "-S", str(script)), files={str(script): digest}, start_seconds=60,
        accept_risk=("unpinned",),
    )  # fmt: skip
    async with open_client(gateway_host) as client:
        runs = FolderRuns(client, limits=LIMITS)
        build = await runs.run(["/usr/bin/cat", "src/a.txt"], lambda: contextlib.nullcontext(project), 60)
        assert (build.ended_by, build.stdout) == ("exit", "of the project"), build
        sha256 = hashlib.sha256(tool.read_bytes()).hexdigest()
        pinned = await client.run(SandboxSpec(command=(str(tool),), program_sha256=sha256, seconds=60))
        assert pinned.stdout == b"pinned\n", (pinned.end, pinned.stderr)
        upstreams = UpstreamPool(
            Settings(servers=(server,), sandboxes=SandboxSettings(folder=client.folder, accept=("weak_limits",)))
        )
        try:
            answer = await ShopServer(upstreams).call("run", {"code": "result = 7"})
        finally:
            await upstreams.aclose()
    assert answer["content"][0]["text"] == "7"
    assert sorted(each.name for each in gateway_host.folder.iterdir()) == ["project", "s.py", "tool"]


async def test_an_interpreter_runs(gateway_host: GatewayHost) -> None:
    if not os.access(sys.executable, os.X_OK, effective_ids=True):
        pytest.skip("the Python of these tests is in a folder that other users cannot enter")
    async with open_client(gateway_host) as client:
        described = await InterpreterSandboxes(client).describe()
        # In a process of its own, as jobs are.
        words = [sys.executable, "-c", TRY_INTERPRETER, json.dumps(described)]
        tried = await asyncio.to_thread(
            subprocess.run, words, capture_output=True, text=True, user=os.geteuid(), group=os.getegid(), cwd="/"
        )
        assert tried.stdout == "None\n", (tried.stdout, tried.stderr)


@needs_root
async def test_each_sandbox_is_another_user_and_none_is_an_account(gateway_host: GatewayHost) -> None:
    async with open_client(gateway_host, accept_shared_user=False) as client, contextlib.AsyncExitStack() as stack:
        seen: set[int] = set()
        for _ in range(3):
            spec = SandboxSpec(command=("/bin/cat",), seconds=None, limits=LIMITS)
            sandbox = await stack.enter_async_context(contextlib.aclosing(await client.start(spec)))
            sandbox.stdin.write(b"x\n")
            assert await sandbox.stdout.readline() == b"x\n"
            new = read_users(client) - seen
            assert len(new) == 1, new
            seen |= new
        assert not seen & {0, 65_534, os.geteuid()}


@needs_root
async def test_a_gateway_names_no_folder_that_it_cannot_reach(gateway_host: GatewayHost) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reaches every folder")
    async with open_client(gateway_host) as client:
        end = (await client.run(SandboxSpec(
            command=("/bin/true",), seconds=9, folders=(SandboxFolder(path="/x", source="/root/x"),)
        ))).end  # fmt: skip
        assert (end.ending, end.has_started) == (Ending.FAILURE, False), end
        assert "/root/x cannot be shown" in end.note


@pytest.mark.parametrize(
    "wrong",
    [
        {"working_folder": "/../../etc/made"}, {"working_folder": "relative"}, {"working_folder": "/a\0b"},
        {"folders": [{"path": "/a/../b"}]}, {"folders": [{"path": "/a", "source": "/b/../c"}]},
        {"result_folder": {"path": "/a//b", "size_bytes": 1}}, {"folders": [{"path": "//a"}]},
    ],
)  # fmt: skip
def test_a_path_that_leads_elsewhere_is_no_request(wrong: dict[str, object]) -> None:
    request = json.loads(SandboxSpec(command=("/bin/true",), seconds=1, backend=Backend.GVISOR).to_json())
    with pytest.raises(ValueError, match="path"):
        SandboxSpec.from_json({**request, **wrong})


async def test_a_gateway_that_sends_descriptors_without_end_is_refused_and_others_go_on(
    gateway_host: GatewayHost,
) -> None:
    async with open_client(gateway_host) as client:
        running = await client.start(SandboxSpec(command=("/bin/cat",), seconds=None, limits=LIMITS))
        with socket.socket(socket.AF_UNIX) as hostile:
            await asyncio.to_thread(hostile.connect, str(client.folder / SOCKET_NAME))
            with contextlib.suppress(OSError):
                for _ in range(1_000):
                    socket.send_fds(hostile, [b" "], [0] * 200)
            # Its connection is closed.
            hostile.settimeout(30)
            with contextlib.suppress(ConnectionError):
                while await asyncio.to_thread(hostile.recv, 65_536):
                    continue
        running.stdin.write(b"still\n")
        assert await running.stdout.readline() == b"still\n"
        await running.aclose()


SMALL_SUPERVISOR = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (110, 110))
from deputize.sandboxes import supervisor
supervisor.main()
"""


async def test_a_supervisor_without_descriptors_refuses_and_goes_on(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SMALL_SUPERVISOR, str(tmp_path), "--stay"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "Serving" in await asyncio.to_thread(process.stderr.readline)
        client = SandboxClient(tmp_path, accept_weak_limits=True, accept_shared_user=True)
        first = await client.start(SandboxSpec(command=("/bin/cat",), seconds=None, limits=LIMITS))
        idle = []
        for _ in range(200):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(tmp_path / SOCKET_NAME))
            idle.append(connection)
        with pytest.raises(SandboxUnavailable, match="as many sandboxes as it can"):
            await client.run(SandboxSpec(command=("/bin/true",), seconds=9))
        for each in idle:
            each.close()
        first.stdin.write(b"still\n")
        assert await first.stdout.readline() == b"still\n"
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(SandboxUnavailable):
                    result = await client.run(SandboxSpec(command=("/bin/true",), seconds=30))
                    break
        assert result.end.ending is Ending.EXIT
        await first.aclose()
        await client.aclose()
        process.kill()


async def test_no_file_that_runs_as_its_owner_is_left_and_there_are_no_terminals(gateway_host: GatewayHost) -> None:
    kept = gateway_host.folder / "kept"
    kept.mkdir()
    kept.chmod(0o777)
    code = (
        "import os, resource\n"
        "open('tool', 'w').close(); os.chmod('tool', 0o755)\n"
        "for act in (lambda: os.chmod('tool', 0o4755), lambda: os.open('other', os.O_CREAT, 0o2755)):\n"
        "    try: act()\n"
        "    except PermissionError: print('refused')\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE), os.path.exists('/dev/ptmx'), os.path.exists('/dev/pts'))\n"
    )
    async with open_client(gateway_host) as client:
        result = await client.run(SandboxSpec(
            command=(PYTHON, "-c", code), seconds=60, limits=LIMITS, working_folder=str(kept),
            folders=(SandboxFolder(path=str(kept), is_writable=True),),
        ))  # fmt: skip
    assert result.stdout == b"refused\nrefused\n(1, 1) False False\n", (result.end, result.stderr)
    assert not (kept / "tool").stat().st_mode & (stat.S_ISUID | stat.S_ISGID)


def test_a_user_is_taken_again_last_and_only_when_nothing_of_it_lives() -> None:
    users = SandboxUsers(UserRange(first=1_950_000_000, count=3))
    first, second = users.take(), users.take()
    assert users.owner not in (first, second)
    with pytest.raises(NoUsers):
        users.take()
    users.give_back(second, is_gone=True)
    users.give_back(first, is_gone=True)
    assert users.take() == second
    users.give_back(os.geteuid(), is_gone=False)
    users.take()
    with pytest.raises(NoUsers):
        users.take()
