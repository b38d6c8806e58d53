"""Sandboxes of this host, started for real: who ended them, what they saw, and that nothing of them is left."""

import asyncio
import contextlib
import errno
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deputize.sandboxes.client import SandboxClient, SandboxResult, SandboxUnavailable
from deputize.sandboxes.control_groups import ControlGroup, ControlGroups
from deputize.sandboxes.port import Ending, ResultFolder, SandboxFolder, SandboxLimits, SandboxSpec
from deputize.sandboxes.supervisor import SOCKET_NAME, Supervisor, list_marked_processes, mark_processes
from deputize.sandboxes.users import SandboxUsers, claim_users
from tests.support.sandbox_host import PYTHON, GatewayHost, needs_sandboxes

pytestmark = [pytest.mark.requirement("EXE-2"), needs_sandboxes]
SMALL = SandboxLimits(memory_bytes=64 * 1_048_576, processes=24, storage_bytes=4 * 1_048_576)
FLOOD_OF_THREADS = """
import threading, time
for _ in range(500):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
"""
FLOOD_OF_FORKS = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(60)
    except OSError:
        os._exit(1)
"""
REFUSED_FORKS = """
import os, time
pids = []
try:
    while True:
        pids.append(os.fork())
        if pids[-1] == 0:
            time.sleep(60)
except OSError:
    for each in pids:
        os.kill(each, 9)
"""
MEMORY_IN_A_CHILD = """
import os
if os.fork() == 0:
    b"x" * 500_000_000
raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]) != 0)
"""
ENDS = {
    "success": ("pass", Ending.EXIT, 0),
    "an exit code": ("raise SystemExit(3)", Ending.EXIT, 3),
    # Its own doing, whatever the number looks like: nobody else ended it.
    "exit 137": ("import os; os._exit(137)", Ending.CRASH, 137),
    "a signal to itself": ("import os; os.kill(os.getpid(), 9)", Ending.CRASH, 137),
    "a segmentation fault": ("import ctypes; ctypes.string_at(0)", Ending.CRASH, 139),
    "an abort": ("import os; os.abort()", Ending.CRASH, 134),
    "a full disk": ("open('/tmp/x', 'wb').write(bytes(9_000_000))", Ending.EXIT, 1),
    "the deadline": ("import time; time.sleep(60)", Ending.DEADLINE, None),
    # With version 2 of control groups, the kernel kills bubblewrap along with the program, and there is no code.
    "memory": ("b'x' * 500_000_000", Ending.MEMORY, {137, None}),
    "memory in a child": (MEMORY_IN_A_CHILD, Ending.MEMORY, {1, None}),
    "a flood of forks": (FLOOD_OF_FORKS, Ending.PROCESSES, 1),
    "a flood of threads": (FLOOD_OF_THREADS, Ending.PROCESSES, 1),
    "refused forks": (REFUSED_FORKS, Ending.EXIT, 0),
    "a flood of output": ("while True: print('x' * 9999)", Ending.OUTPUT, None),
}


@contextlib.asynccontextmanager
async def open_client(folder: Path) -> AsyncIterator[SandboxClient]:
    client = SandboxClient(folder, accept_weak_limits=True, accept_shared_user=True)
    yield client
    await client.aclose()


@pytest.fixture
async def client(gateway_host: GatewayHost) -> AsyncIterator[SandboxClient]:
    """A client of the supervisor's user, and one of another: what follows holds for both."""
    async with open_client(gateway_host.supervisor) as client:
        yield client


@pytest.fixture
async def own_client(tmp_path: Path) -> AsyncIterator[SandboxClient]:
    """A client that may end its supervisor, and starts the next one."""
    async with open_client(tmp_path / "sandboxes") as client:
        yield client


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Make a folder that every user can read, unlike those of pytest; with a client, in one that only it may enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


async def run_python(client: SandboxClient, code: str, *, seconds: float = 30.0, stdin: bytes = b"") -> SandboxResult:
    return await client.run(SandboxSpec(command=(PYTHON, "-c", code), seconds=seconds, limits=SMALL), stdin)


async def wait_until(client: SandboxClient, has_come: Callable[[int], bool]) -> None:
    """Wait for a number of bubblewrap's processes: one outside, and the first one of the namespace."""
    for _ in range(3_000):
        if has_come(len(list_marked_processes(mark_processes(client.folder)))):
            return
        await asyncio.sleep(0.01)
    pytest.fail("waited for half a minute")


async def wait_until_gone(client: SandboxClient) -> None:
    await wait_until(client, lambda count: count == 0)


async def wait_until_running(client: SandboxClient) -> None:
    await wait_until(client, lambda count: count >= 2)


def find_supervisor(client: SandboxClient) -> int:
    words = ["-m", "deputize.sandboxes.supervisor", str(client.folder)]
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if [word.decode() for word in each.read_bytes().split(b"\0")[1:4]] == words:
                return int(each.parent.name)
        except OSError:
            continue
    raise LookupError("no supervisor runs")


async def test_a_program_gets_its_input_and_nothing_of_the_host(client: SandboxClient) -> None:
    code = "import os, sys; print(sys.stdin.read(), sorted(os.environ), os.getuid(), os.listdir('/tmp'), os.getppid())"
    result = await run_python(client, code, stdin=b"hello")
    assert result.end.ending is Ending.EXIT, (result.end, result.stderr)
    assert result.stdout == b"hello ['HOME', 'LANG', 'PATH', 'PWD'] 65534 [] 1\n"


async def test_only_the_pinned_program_is_executed(client: SandboxClient, open_folder: Path) -> None:
    program = open_folder / "report"
    program.write_text("#!/bin/sh\necho pinned $1\n")
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    spec = SandboxSpec(command=(str(program), "it"), program_sha256=digest, seconds=30)
    first = await client.run(spec)
    assert (first.end.ending, first.stdout) == (Ending.EXIT, b"pinned it\n"), (first.end, first.stderr)
    program.write_text("#!/bin/sh\necho changed\n")
    changed = await client.run(spec)
    assert changed.end.ending is Ending.FAILURE
    assert "not the pinned" in changed.end.note
    assert changed.stdout == b""


async def test_a_listed_folder_is_read_and_not_written_and_no_other_is_seen(
    client: SandboxClient, open_folder: Path
) -> None:
    shown, hidden = open_folder / "shown", open_folder / "hidden"
    for each in (shown, hidden):
        each.mkdir()
        (each / "file").write_text(each.name)
        each.chmod(0o777)
    script = f"cat {shown}/file; cat {hidden}/file; echo more > {shown}/new"
    spec = SandboxSpec(command=("/bin/sh", "-c", script), seconds=30, folders=(SandboxFolder(path=str(shown)),))
    result = await client.run(spec)
    assert result.stdout == b"shown"
    assert not (shown / "new").exists()
    refused = await client.run(SandboxSpec(command=("/bin/true",), seconds=30, folders=(SandboxFolder(path="/run"),)))
    assert refused.end.ending is Ending.FAILURE
    assert "never shown" in refused.end.note


async def test_a_folder_that_may_be_written_is_and_starts_the_program(client: SandboxClient, open_folder: Path) -> None:
    shared, other = open_folder / "shared", open_folder / "other"
    for each in (shared, other):
        each.mkdir()
        each.chmod(0o777)
    (other / "file").write_text("from elsewhere")
    folders = (
        SandboxFolder(path=str(shared / "inner"), source=str(other)),
        SandboxFolder(path=str(shared), is_writable=True),
    )
    spec = SandboxSpec(
        command=("/bin/sh", "-c", "pwd > new; cat inner/file; echo x > inner/new"),
        seconds=30,
        folders=folders,
        working_folder=str(shared),
    )
    (shared / "inner").mkdir()
    result = await client.run(spec)
    assert result.stdout == b"from elsewhere", result
    assert (shared / "new").read_text() == f"{shared}\n"
    assert not (other / "new").exists()


async def test_what_a_program_leaves_is_read_after_its_end_and_nothing_in_its_place(
    client: SandboxClient, open_folder: Path
) -> None:
    (open_folder / "out").mkdir()
    spec = SandboxSpec(
        command=(PYTHON, "-c", "open('/tmp/a/out/x', 'w').write('kept')"), seconds=30, limits=SMALL,
        folders=(SandboxFolder(path=str(open_folder)),),
        result_folder=ResultFolder(path="/tmp/a/out", size_bytes=8_192),
    )  # fmt: skip
    async with contextlib.aclosing(await client.start(spec)) as sandbox:
        result = await sandbox.finish()
        assert sandbox.result_folder is not None, (result.end, result.stderr)
        assert (sandbox.result_folder / "x").read_text() == "kept"
    assert not list_marked_processes(mark_processes(client.folder))
    code = f"import os; os.rename('/tmp/a', '/tmp/b'); os.symlink({str(open_folder)!r}, '/tmp/a')"
    async with contextlib.aclosing(await client.start(replace(spec, command=(PYTHON, "-c", code)))) as sandbox:
        result = await sandbox.finish()
    assert (result.end.ending, result.end.has_started) == (Ending.FAILURE, True), (result.end, result.stderr)
    assert sandbox.result_folder is None


async def test_a_running_program_is_talked_to_until_it_is_no_longer_needed(client: SandboxClient) -> None:
    sandbox = await client.start(SandboxSpec(command=("/bin/cat",), seconds=None, limits=SMALL))
    for word in (b"one\n", b"two\n"):
        sandbox.stdin.write(word)
        assert await sandbox.stdout.readline() == word
    sandbox.kill()
    assert (await sandbox.wait()).ending is Ending.CANCEL
    await sandbox.aclose()
    await wait_until_gone(client)


async def test_a_running_program_ends_with_the_connection_of_its_gateway(client: SandboxClient) -> None:
    code = "import os, time\nif os.fork() == 0: os.setsid()\nprint(1, flush=True); time.sleep(600)"
    sandbox = await client.start(SandboxSpec(command=(PYTHON, "-c", code), seconds=None, limits=SMALL))
    assert await sandbox.stdout.readline() == b"1\n"
    await sandbox.aclose()
    await wait_until_gone(client)


async def test_a_running_program_ends_with_its_supervisor_and_says_so(own_client: SandboxClient) -> None:
    sandbox = await own_client.start(SandboxSpec(command=("/bin/cat",), seconds=None, limits=SMALL))
    sandbox.stdin.write(b"here\n")
    assert await sandbox.stdout.readline() == b"here\n"
    os.kill(find_supervisor(own_client), signal.SIGKILL)
    assert await sandbox.stdout.readline() == b""
    assert (await sandbox.wait()).ending is Ending.FAILURE
    await sandbox.aclose()
    await wait_until_gone(own_client)


async def test_a_program_connects_to_its_gateway_and_nowhere_else(client: SandboxClient) -> None:
    code = (
        "import socket\n"
        "for place in (('127.0.0.1', 3128), ('127.0.0.1', 22), ('192.0.2.1', 80)):\n"
        "    try: print(socket.create_connection(place, 5).recv(9), flush=True)\n"
        "    except OSError as error: print(error.errno, flush=True)\n"
    )
    spec = SandboxSpec(command=(PYTHON, "-c", code), seconds=60, limits=SMALL, proxy_port=3128)
    async with contextlib.aclosing(await client.start(spec)) as sandbox:
        assert sandbox.listener is not None
        # Another process would keep the network of the sandbox when that has ended.
        assert not os.get_inheritable(sandbox.listener.fileno())
        connection, _ = await asyncio.get_running_loop().sock_accept(sandbox.listener)
        with connection:
            connection.send(b"hello")
        refused = f"{errno.ECONNREFUSED}\n{errno.ENETUNREACH}\n".encode()
        assert await sandbox.stdout.read() == b"b'hello'\n" + refused
        assert (await sandbox.wait()).ending is Ending.EXIT
    never = SandboxSpec(command=("/bin/true",), seconds=30, folders=(SandboxFolder(path="/run"),), proxy_port=3128)
    async with contextlib.aclosing(await client.start(never)) as sandbox:
        assert sandbox.listener is None
        assert not (await sandbox.wait()).has_started
    await wait_until_gone(client)


async def test_a_cancelled_call_leaves_no_process(client: SandboxClient) -> None:
    running = asyncio.create_task(run_python(client, "import time; time.sleep(60)"))
    await wait_until_running(client)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await wait_until_gone(client)


async def test_a_killed_supervisor_takes_its_sandboxes_along_and_the_next_call_starts_another(
    own_client: SandboxClient,
) -> None:
    running = asyncio.create_task(run_python(own_client, "import time; time.sleep(60)"))
    await wait_until_running(own_client)
    os.kill(find_supervisor(own_client), signal.SIGKILL)
    result = await running
    assert result.end.ending is Ending.FAILURE
    await wait_until_gone(own_client)
    assert (await run_python(own_client, "print(1)")).stdout == b"1\n"


async def test_weak_limits_are_refused_unless_they_are_accepted(client: SandboxClient) -> None:
    await run_python(client, "pass")
    if client.weak_limits is None:
        pytest.skip("this host has control groups")
    with pytest.raises(SandboxUnavailable, match="weak limits"):
        await run_python(SandboxClient(client.folder), "pass")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process as another user")
async def test_a_socket_of_another_user_is_given_nothing(open_folder: Path) -> None:
    open_folder.chmod(0o777)
    code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print(); s.accept()"
    words = [PYTHON, "-uc", code, str(open_folder / SOCKET_NAME)]
    with subprocess.Popen(words, user=64_123, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"\n"
        with pytest.raises(SandboxUnavailable, match="another user serves"):
            await run_python(SandboxClient(open_folder), "pass")
        stranger.kill()


async def test_input_and_arguments_may_be_large(client: SandboxClient) -> None:
    code = "import sys; print(len(sys.stdin.read()), len(sys.argv[1]))"
    spec = SandboxSpec(command=(PYTHON, "-c", code, "x" * 100_000), seconds=30)
    assert (await client.run(spec, b"y" * 2_000_000)).stdout == b"2000000 100000\n"
    ignored = await client.run(SandboxSpec(command=("/bin/true",), seconds=30), b"y" * 2_000_000)
    assert (ignored.end.ending, ignored.end.exit_code) == (Ending.EXIT, 0)


async def test_output_that_is_cut_is_told_although_the_program_has_ended(client: SandboxClient) -> None:
    spec = SandboxSpec(command=("/bin/sh", "-c", f"sleep 1; echo {'x' * 5_000}"), seconds=30)
    running = asyncio.create_task(client.run(spec, max_output_bytes=1_000))
    await wait_until_running(client)
    # Until it has ended, this gateway reads nothing.
    time.sleep(4)
    result = await running
    assert (result.end.ending, result.end.exit_code, result.stdout) == (Ending.OUTPUT, 0, b"x" * 1_000)


async def test_a_program_that_handles_a_refused_fork_ends_by_itself(client: SandboxClient) -> None:
    result = await run_python(client, REFUSED_FORKS)
    assert (result.end.ending, result.end.exit_code) == (Ending.EXIT, 0), (result.end, result.stderr[-500:])
    if client.weak_limits is None:
        assert "refused" in result.end.note


async def test_a_failure_says_whether_the_program_has_started(own_client: SandboxClient) -> None:
    for folder in ("/none", "/run"):
        never = await own_client.run(
            SandboxSpec(command=("/bin/true",), seconds=30, folders=(SandboxFolder(path=folder),))
        )
        assert (never.end.ending, never.end.has_started) == (Ending.FAILURE, False), never
    running = asyncio.create_task(run_python(own_client, "import time; time.sleep(60)"))
    await wait_until_running(own_client)
    outside = min(list_marked_processes(mark_processes(own_client.folder)))
    os.kill(outside, signal.SIGKILL)
    killed = (await running).end
    assert (killed.ending, killed.has_started) == (Ending.FAILURE, True), killed


async def test_the_folder_of_the_supervisor_is_shown_to_no_sandbox(own_client: SandboxClient) -> None:
    await run_python(own_client, "pass")
    inside = own_client.folder / "inside"
    inside.mkdir()
    for folder in (own_client.folder, own_client.folder.parent, inside):
        refused = await own_client.run(
            SandboxSpec(command=("/bin/true",), seconds=30, folders=(SandboxFolder(path=str(folder)),))
        )
        assert (refused.end.ending, refused.end.has_started) == (Ending.FAILURE, False)
        assert "supervisor's socket" in refused.end.note


@contextlib.asynccontextmanager
async def serve_here(folder: Path) -> AsyncIterator[SandboxClient]:
    """Serve sandboxes from this process."""
    folder.mkdir()
    users = claim_users(None, ()) if os.geteuid() == 0 else None
    supervisor = Supervisor(folder, users=users, allowed_uids=frozenset({os.geteuid()}), stay=False)
    serving = asyncio.create_task(supervisor.serve())
    for _ in range(3_000):
        if (folder / SOCKET_NAME).exists():
            break
        await asyncio.sleep(0.01)
    async with open_client(folder) as client:
        yield client
    await serving
    supervisor.close()


async def test_weak_limits_bound_processes_and_do_not_count_what_else_the_user_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ControlGroups, "find", lambda name: "no control groups, for this test")
    if os.geteuid() == 0:
        # All of them as one user.
        monkeypatch.setattr(SandboxUsers, "take", lambda users: users.owner)
    count = "import os, time; " + REFUSED_FORKS.replace("os.kill(each, 9)", "os.kill(each, 9)\n    print(len(pids))")
    limits = SandboxLimits(processes=8)
    async with serve_here(tmp_path / "sandboxes") as client, contextlib.AsyncExitStack() as stack:
        for _ in range(10):
            spec = SandboxSpec(command=("/bin/sleep", "60"), seconds=60, limits=limits)
            await stack.enter_async_context(contextlib.aclosing(await client.start(spec)))
        result = await client.run(SandboxSpec(command=(PYTHON, "-c", count), seconds=30, limits=limits))
    assert (result.end.ending, result.stdout) == (Ending.EXIT, b"7\n"), (result.end, result.stderr)


async def test_a_sandbox_that_cannot_be_watched_leaves_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with serve_here(tmp_path / "sandboxes") as client:
        monkeypatch.setattr(os, "pidfd_open", fail)
        result = await client.run(SandboxSpec(command=("/bin/sleep", "60"), seconds=30))
        monkeypatch.undo()
        assert (result.end.ending, "Too many open files" in result.end.note) == (Ending.FAILURE, True), result.end
        await wait_until_gone(client)
        groups = Path("/sys/fs/cgroup").rglob(f"{mark_processes(client.folder)}/*")
        assert [each for each in groups if each.is_dir()] == []


ACT_AFTER_A_CHILD = """
import os, time
if os.fork() == 0:
    time.sleep(60)
os.wait()
os.write(1, b"acted")
"""


async def test_a_program_that_is_ended_does_not_act_on_the_end_of_its_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_slowly(group: ControlGroup) -> None:
        for pid in sorted(group.list_processes(), reverse=True):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)

    monkeypatch.setattr(ControlGroup, "kill", kill_slowly)
    async with serve_here(tmp_path / "sandboxes") as client:
        result = await run_python(client, ACT_AFTER_A_CHILD, seconds=1.0)
    assert (result.end.ending, result.stdout) == (Ending.DEADLINE, b"")


async def test_a_host_without_user_namespaces_has_no_sandboxes_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "sandboxes"
    folder.mkdir()
    words = ["--unshare-user", "--disable-userns", "--uid", "1000", "--dev-bind", "/", "/", "--proc", "/proc"]
    supervisor = [sys.executable, "-m", "deputize.sandboxes.supervisor", str(folder), "--stay"]
    command = ["/usr/bin/bwrap", *words, "--die-with-parent", "--", *supervisor]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = await asyncio.to_thread(process.stderr.readline)
            assert line.startswith(f"Serving at {folder / SOCKET_NAME} for gateways of the users 0, 1000: ")
            assert " Missing: this host lets bubblewrap make no namespaces" in line
            with pytest.raises(SandboxUnavailable, match="no namespaces"):
                await run_python(SandboxClient(folder, accept_weak_limits=True, accept_shared_user=True), "pass")
        finally:
            process.kill()


async def test_a_supervisor_that_stays_says_what_it_serves_and_a_second_one_that_it_does_not(tmp_path: Path) -> None:
    supervisor = [sys.executable, "-m", "deputize.sandboxes.supervisor", str(tmp_path), "--stay", "--allow", "999"]
    with subprocess.Popen(supervisor, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = await asyncio.to_thread(process.stderr.readline)
            assert line.startswith(f"Serving at {tmp_path / SOCKET_NAME} for gateways of the users 0, ")
            assert "999: sandboxes of namespaces" in line
            second = subprocess.run(supervisor, capture_output=True, text=True, timeout=60)
            assert (second.returncode, second.stderr) == (
                1, f"{tmp_path} is served already: stop the supervisor there first.\n",
            )  # fmt: skip
        finally:
            process.kill()


@pytest.mark.nightly
async def test_nothing_is_left_of_400_sandboxes_whose_supervisor_is_killed_again_and_again(
    own_client: SandboxClient,
) -> None:
    kills = 0

    async def run_some(count: int) -> None:
        for _ in range(count):
            with contextlib.suppress(SandboxUnavailable):
                await own_client.run(SandboxSpec(command=("/bin/sh", "-c", "sleep 300 & sleep 0.01"), seconds=30))

    async def kill_again_and_again() -> None:
        nonlocal kills
        while True:
            await asyncio.sleep(1.5)
            try:
                os.kill(find_supervisor(own_client), signal.SIGKILL)
            except (LookupError, ProcessLookupError):
                continue
            kills += 1

    killer = asyncio.create_task(kill_again_and_again())
    await asyncio.gather(*(run_some(50) for _ in range(8)))
    killer.cancel()
    assert kills >= 3
    await own_client.run(SandboxSpec(command=("/bin/true",), seconds=30))
    await wait_until_gone(own_client)
    mark = mark_processes(own_client.folder)
    left = [each for each in Path("/sys/fs/cgroup").rglob(f"{mark}/*") if each.is_dir()]
    assert left == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", ENDS)
async def test_who_ended_a_sandbox_is_named_whatever_its_exit_code_says(client: SandboxClient, name: str) -> None:
    code, ending, exit_codes = ENDS[name]
    result = await run_python(client, code, seconds=3.0 if ending is Ending.DEADLINE else 60.0)
    if client.weak_limits is not None and ending in (Ending.MEMORY, Ending.PROCESSES):
        pytest.skip("this host has no control groups, whose counters tell")
    assert result.end.ending is ending, (result.end, result.stderr[-500:])
    assert result.end.exit_code in (exit_codes if isinstance(exit_codes, set) else {exit_codes})
    await wait_until_gone(client)
