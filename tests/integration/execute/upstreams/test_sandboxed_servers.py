"""Server processes in sandboxes: what they reach, who ended them, and that nothing of them is left."""

import asyncio
import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from deputize.core.contract.tools import Secret
from deputize.core.errors import OutOfMemory, ProgramCrashed, SandboxFailed, ToolRequiresSetup, UpstreamUnavailable
from deputize.core.settings import McpServerSettings, SandboxSettings, Settings
from deputize.execute.upstreams.server_pool import UpstreamPool
from deputize.interfaces.cli.diagnostics.sandbox_checks import check_guarded_paths
from deputize.sandboxes.supervisor import SOCKET_NAME, list_marked_processes, mark_processes
from tests.integration.execute.upstreams.conftest import SDK_SERVER, ShopServer
from tests.support.egress_server import make_certificate, make_ok_response, run_server
from tests.support.sandbox_host import PYTHON, needs_sandboxes

pytestmark = [pytest.mark.requirement("EXE-2"), needs_sandboxes]
SECRET = "only-the-host-knows"
BACKGROUND = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 64)
        os.execve("/bin/sleep", ["sleep", "86400"], {"MARK": "%s"})
    os._exit(0)
result = "left"
"""


@dataclass
class Host:
    """A folder that every user can read, the supervisor's folder, and the server's script."""

    folder: Path
    supervisor: Path
    script: Path

    def make_server(self, *arguments: str, **settings: Any) -> McpServerSettings:
        command = (PYTHON, "-S", str(self.script), *arguments)
        return McpServerSettings(name="shop", command=command, start_seconds=60, **settings)

    @contextlib.asynccontextmanager
    async def open(self, server: McpServerSettings) -> AsyncIterator[ShopServer]:
        sandboxes = SandboxSettings(folder=self.supervisor, accept=("weak_limits",))
        upstreams = UpstreamPool(Settings(servers=(server,), sandboxes=sandboxes))
        try:
            yield ShopServer(upstreams)
        finally:
            await upstreams.aclose()

    def list_processes(self) -> list[int]:
        return list_marked_processes(mark_processes(self.supervisor))

    async def wait_until_gone(self) -> None:
        async with asyncio.timeout(60):
            while self.list_processes():  # noqa: ASYNC110  # the end of another process is no event of ours
                await asyncio.sleep(0.02)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        script = folder / "server.py"
        shutil.copy(Path(__file__).with_name("exec_stdio_server.py"), script)
        script.chmod(0o644)
        yield Host(folder, tmp_path / "sandboxes", script)


async def run_code(shop: ShopServer, code: str, **more: Any) -> str:
    text: str = (await shop.call("run", {"code": code}, **more))["content"][0]["text"]
    return text


def list_processes_with(marker: str) -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if marker.encode() in each.read_bytes():
                found.append(int(each.parent.name))
    return found


@pytest.mark.parametrize("is_sandboxed", [False, True], ids=["without a sandbox", "in a sandbox"])
async def test_a_hostile_server_reaches_nothing_of_the_host_and_leaves_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch, is_sandboxed: bool
) -> None:
    monkeypatch.setenv("DEPUTIZE_SECRET", SECRET)
    key = host.folder / ".ssh" / "id_ed25519"
    key.parent.mkdir()
    key.write_text(SECRET)
    marker = f"shop-{os.urandom(8).hex()}"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        port = listener.getsockname()[1]
        attempts = {
            "file": f"result = open({str(key)!r}).read()",
            "beside": f"import os; result = os.path.exists({str(key.parent)!r})",
            "gateway": f"result = open('/proc/{os.getpid()}/environ').read()",
            "parent": "import os; result = open(f'/proc/{os.getppid()}/environ').read()",
            "network": f"import socket; socket.create_connection(('127.0.0.1', {port}), 5); result = 'connected'",
            "supervisor": (
                "import socket; s = socket.socket(socket.AF_UNIX); "
                f"s.connect({str(host.supervisor / SOCKET_NAME)!r}); result = 'connected'"
            ),
            "signal": f"import os; os.kill({os.getpid()}, 0); result = 'there'",
            "background": BACKGROUND % marker,
        }
        async with host.open(host.make_server(sandbox=is_sandboxed)) as shop:
            answers = {name: await run_code(shop, code) for name, code in attempts.items()}
            async with asyncio.timeout(60):
                while not list_processes_with(marker):  # noqa: ASYNC110  # another process's exec is no event of ours
                    await asyncio.sleep(0.02)
        try:
            listener.accept()[0].close()
            was_connected = True
        except BlockingIOError:
            was_connected = False
    if not is_sandboxed:
        # The attempts are real.
        assert (answers["file"], answers["beside"], answers["signal"], was_connected) == (SECRET, "True", "there", True)
        assert "PATH=" in answers["gateway"]
        return
    assert SECRET not in str(answers), answers
    assert (answers["beside"], was_connected, answers["background"]) == ("False", False, "left"), answers
    for name in ("file", "gateway", "network", "supervisor", "signal"):
        assert answers[name].startswith("refused"), answers
    await host.wait_until_gone()
    assert list_processes_with(marker) == []


async def test_a_server_sees_its_settings_alone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_SECRET", SECRET)
    server = host.make_server(env={"SHOP": "open"}, credential="vault", secret="shop", secret_env="SHOP_KEY")
    look = "import os; result = (sorted(os.environ), os.environ['SHOP_KEY'], os.getcwd(), os.listdir('/tmp'))"
    async with host.open(server) as shop:
        for value in ("key-of-ana", "key-of-ben"):
            seen = await run_code(shop, look, credential=Secret(value))
            inside = "/dev/shm" if str(host.folder).startswith("/dev/shm") else "/tmp"
            assert seen.startswith(f"(['HOME', 'LANG', 'PATH', 'PWD', 'SHOP', 'SHOP_KEY'], {value!r}, '/tmp'"), seen
            mounted = "[]" if inside == "/dev/shm" else f"['{host.folder.name}']"
            assert seen.endswith(f"{mounted})"), seen


async def test_folders_are_read_or_written_as_they_are_listed(host: Host) -> None:
    for name in ("data", "results"):
        (host.folder / name).mkdir()
        (host.folder / name).chmod(0o777)
    (host.folder / "data" / "orders.txt").write_text("7 lamps")
    folders = ({"path": "data"}, {"path": "results", "write": True})
    async with host.open(host.make_server(folder=host.folder, folders=folders)) as shop:
        assert await run_code(shop, "result = open('data/orders.txt').read()") == "7 lamps"
        assert "Read-only" in await run_code(shop, "open('data/new', 'w')")
        assert await run_code(shop, "open('results/new', 'w').write('sum')") == ""
    assert (host.folder / "results" / "new").read_text() == "sum"


FETCH = """
import ssl, urllib.request
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
result = urllib.request.urlopen("https://%s/", timeout=30, context=context).read().decode()
"""
DIRECT = "import socket; socket.create_connection((%r, %d), 5); result = 'connected'"
DATAGRAM = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', (%r, %d)); result = 'sent'"


async def test_a_server_leaves_nothing_that_git_runs_for_others(host: Host) -> None:
    notes = host.folder / "notes"
    (notes / "old" / ".git").mkdir(parents=True)
    (notes / "old" / ".git" / "config").write_text("")
    (notes / ".npmrc").write_text("")
    for each in (notes, *notes.rglob("*")):
        each.chmod(0o777)
    owned = host.folder / "owned"
    hook = f"[core]\\n\\tbare = false\\n\\tfsmonitor = touch {owned}\\n"
    attempts = {
        f"git{number}": (
            f"import os\nos.makedirs('{path}/objects', exist_ok=True); os.makedirs('{path}/refs', exist_ok=True)\n"
            f"open('{path}/HEAD', 'w').write('ref: refs/heads/a\\n'); open('{path}/config', 'w').write('{hook}')\n"
            "result = 'written'"
        )
        for number, path in enumerate((notes / ".git", notes / "old" / ".git", notes / "new" / ".git"))
    }
    attempts["moved"] = f"import os; os.rename('{notes}/.git', '{notes}/away'); result = 'written'"
    attempts["editor"] = f"open('{notes}/.vscode/tasks.json', 'w'); result = 'written'"
    attempts["npm"] = f"open('{notes}/.npmrc', 'w'); result = 'written'"
    attempts["own"] = f"open('{notes}/own.txt', 'w'); result = 'written'"
    with structlog.testing.capture_logs() as logs:
        async with host.open(host.make_server(folders=[{"path": str(notes), "write": True}])) as shop:
            answers = {name: await run_code(shop, code) for name, code in attempts.items()}
    # Deeper down, one can be made, and is told.
    assert {name for name, answer in answers.items() if answer == "written"} == {"git2", "own"}
    told = [each["paths"] for each in logs if each["event"] == "sandbox_left_files_that_others_run"]
    assert told == [[str(notes / "new" / ".git")]]
    for folder in (notes, notes / "old"):
        subprocess.run(["git", "-c", "safe.directory=*", "status"], cwd=folder, capture_output=True, check=False)
    assert not owned.exists()
    findings = check_guarded_paths(Settings(servers=(host.make_server(folders=[{"path": str(notes), "write": True}]),)))
    assert [each.summary.partition(" is in")[0] for each in findings] == [f"{notes}/new/.git and 1 more"]


async def test_a_link_in_the_place_of_what_is_guarded_is_refused(host: Host) -> None:
    notes = host.folder / "notes"
    notes.mkdir(mode=0o777)
    (notes / ".git").symlink_to("inside")
    async with host.open(host.make_server(folders=[{"path": str(notes), "write": True}])) as shop:
        with pytest.raises(ToolRequiresSetup, match="which a program could replace: remove it"):
            await run_code(shop, "result = 1")


async def test_listed_hosts_are_reached_and_no_other(host: Host, tmp_path: Path) -> None:
    tls, _ = make_certificate(tmp_path, "localhost")
    async with contextlib.AsyncExitStack() as stack:
        listed, other = [
            await stack.enter_async_context(run_server(lambda path, name: make_ok_response(b"hello"), tls))
            for _ in range(2)
        ]
        secret_service = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        secret_service.bind(("127.0.0.1", 0))
        secret_service.setblocking(False)
        shop = await stack.enter_async_context(host.open(host.make_server(private_hosts=(f"localhost:{listed.port}",))))
        assert await run_code(shop, FETCH % f"localhost:{listed.port}") == "hello"
        if shutil.which("curl", path="/usr/bin"):
            curl = f"['curl', '-sk', 'https://localhost:{listed.port}/']"
            assert await run_code(shop, f"import subprocess; result = subprocess.check_output({curl}).decode()") == (
                "hello"
            )
        assert len(listed.heads) >= 1
        for code in (
            FETCH % f"localhost:{other.port}",
            FETCH % f"127.0.0.1:{listed.port}",
            DIRECT % ("127.0.0.1", listed.port),
            DIRECT % ("::1", listed.port),
            DIRECT % ("192.0.2.1", 443),
            "import socket; result = socket.getaddrinfo('example.com', 443)",
            "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
            "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        ):
            assert (await run_code(shop, code)).startswith("refused"), code
        # Datagrams are sent into the sandbox's own network, where nobody is.
        await run_code(shop, DATAGRAM % secret_service.getsockname())
        with pytest.raises(BlockingIOError):
            secret_service.recv(1)
        assert other.heads == []
        refused = shop.upstreams.list_refused_hosts("dev", "shop")
        assert refused == sorted([f"localhost:{other.port}", f"127.0.0.1:{listed.port}"])
    await host.wait_until_gone()


async def test_a_virtual_environment_is_seen_with_its_packages(host: Host) -> None:
    if not all(each.stat().st_mode & 0o001 for each in Path(sys.prefix).parents):
        pytest.skip("the virtual environment of the tests lies in a folder that is closed to other users")
    shutil.copy(SDK_SERVER, host.script)
    server = McpServerSettings(name="shop", command=(sys.executable, str(host.script)), start_seconds=60, memory_mb=512)
    async with host.open(server) as shop:
        result = await shop.call("echo", {"text": "hello"})
        assert result["content"] == [{"type": "text", "text": "hello"}]


async def test_a_pinned_script_is_seen_as_what_was_verified(host: Host) -> None:
    digest = hashlib.sha256(host.script.read_bytes()).hexdigest()
    python = hashlib.sha256(Path(PYTHON).read_bytes()).hexdigest()
    server = host.make_server(sha256=python, files={str(host.script): digest})
    async with host.open(server) as shop:
        text = host.script.read_text()
        read = f"result = open({str(host.script)!r}).read()"
        assert await run_code(shop, "result = 1") == "1"
        host.script.write_text("raise SystemExit('changed')")
        assert await run_code(shop, read) == text
        assert "refused" in await run_code(shop, f"open({str(host.script)!r}, 'a')")
    async with host.open(server) as shop:
        with pytest.raises(UpstreamUnavailable, match="changed since it was pinned") as raised:
            await run_code(shop, read)
        assert raised.value.nothing_happened


async def test_who_ended_a_server_is_what_its_calls_end_with(host: Host) -> None:
    async with host.open(host.make_server(memory_mb=64)) as shop:
        with pytest.raises(ProgramCrashed) as crashed:
            await run_code(shop, "import ctypes; ctypes.string_at(0)")
        assert not crashed.value.nothing_happened
        assert await run_code(shop, "result = 1") == "1"
    if Path("/sys/fs/cgroup").is_dir() and os.geteuid() == 0:
        async with host.open(host.make_server(memory_mb=64)) as shop:
            with pytest.raises((OutOfMemory, ProgramCrashed)) as ended:
                await run_code(shop, "result = len(b'x' * 500_000_000)")
            assert not ended.value.nothing_happened
    await host.wait_until_gone()


async def test_a_killed_supervisor_ends_the_calls_of_its_servers_and_the_next_call_starts_them_again(
    host: Host,
) -> None:
    async with host.open(host.make_server()) as shop:
        assert await run_code(shop, "result = 1") == "1"
        before = host.list_processes()
        waiting = asyncio.create_task(run_code(shop, "import time; time.sleep(600)"))
        await asyncio.sleep(0.2)
        words = [b"-m", b"deputize.sandboxes.supervisor", os.fsencode(host.supervisor)]
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if each.read_bytes().split(b"\0")[1:4] == words:
                    os.kill(int(each.parent.name), signal.SIGKILL)
        with pytest.raises(SandboxFailed) as raised:
            await waiting
        assert not raised.value.nothing_happened
        assert await run_code(shop, "result = 2") == "2"
        assert not set(before) & set(host.list_processes())
    await host.wait_until_gone()


async def test_without_sandboxes_the_server_is_not_started(host: Host) -> None:
    host.supervisor = Path("/proc/none")
    async with host.open(host.make_server()) as shop:
        # The third is within the pause after two that failed.
        for _ in range(3):
            with pytest.raises(ToolRequiresSetup, match="needs a sandbox: the folder /proc/none") as raised:
                await run_code(shop, "result = 1")
            assert raised.value.nothing_happened
            assert "deputize sandboxes check" in raised.value.advice
            assert "sandbox = false" in raised.value.advice


async def test_what_is_fetched_at_each_start_is_not_started_without_a_network(host: Host) -> None:
    server = host.make_server().model_copy(update={"command": ("npx", "-y", "@acme/notes@latest", "data")})
    async with host.open(server) as shop:
        with pytest.raises(ToolRequiresSetup, match="npx fetches its package at each start") as raised:
            await run_code(shop, "result = 1")
        assert raised.value.advice.endswith("deputize servers install npm:@acme/notes --name shop")


async def test_a_folder_that_is_missing_or_never_shared_is_named(host: Host) -> None:
    for path, reason in (("/run", "never shown"), ("/nowhere", "does not exist"), (".deputize", "belongs to the")):
        async with host.open(host.make_server(folders=({"path": path},))) as shop:
            with pytest.raises(ToolRequiresSetup, match=reason) as raised:
                await run_code(shop, "result = 1")
            assert raised.value.nothing_happened
            assert "[[servers]]" in raised.value.advice
