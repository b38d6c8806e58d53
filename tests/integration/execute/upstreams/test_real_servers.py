"""Ten MCP servers of others, as npm and PyPI have them: most work in a sandbox with folders and hosts alone."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deputize.core.errors import Problem
from deputize.core.settings import McpServerSettings, SandboxSettings, Settings
from deputize.core.settings.servers import SharedFolderSettings
from deputize.execute.upstreams.server_pool import UpstreamPool
from tests.integration.execute.upstreams.conftest import ShopServer
from tests.support.sandbox_host import PYTHON, needs_sandboxes

pytestmark = [
    pytest.mark.requirement("EXE-2"),
    pytest.mark.nightly,
    needs_sandboxes,
    pytest.mark.skipif(
        "TESTS_FULL" not in os.environ, reason="installs servers of others; .ci/nightly sets TESTS_FULL"
    ),
]
WORKING = 8
NODE, OLDER = "node_modules", "python-older"
_NOBODY = 65_534
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_INSTALL_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class RealServer:
    """A server as its registry has it: how it is started, what it is given, one call, and what that must answer.

    DATA stands for a folder that it may write to, and INSTALLED for where its packages are: `place`.
    """

    package: str
    command: tuple[str, ...]
    tool: str
    arguments: dict[str, Any]
    expected: str
    has_data: bool = False
    hosts: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    memory_mb: int = 512
    place: str = "python"


# Chosen before any of them was tried.
SERVERS = (
    RealServer(
        package="@modelcontextprotocol/server-filesystem", place=NODE,
        command=("node", "INSTALLED/@modelcontextprotocol/server-filesystem/dist/index.js", "DATA"),
        tool="write_file", arguments={"path": "DATA/note.txt", "content": "written"}, expected="Successfully wrote",
        has_data=True,
    ),
    RealServer(
        package="@modelcontextprotocol/server-memory", place=NODE,
        command=("node", "INSTALLED/@modelcontextprotocol/server-memory/dist/index.js"),
        tool="create_entities",
        arguments={"entities": [{"name": "Ana", "entityType": "customer", "observations": ["likes lamps"]}]},
        expected="likes lamps", has_data=True, env={"MEMORY_FILE_PATH": "DATA/memory.jsonl"},
    ),
    RealServer(
        package="@modelcontextprotocol/server-everything", place=NODE,
        command=("node", "INSTALLED/@modelcontextprotocol/server-everything/dist/index.js"),
        tool="echo", arguments={"message": "hello"}, expected="hello",
    ),
    RealServer(
        package="@modelcontextprotocol/server-sequential-thinking", place=NODE,
        command=("node", "INSTALLED/@modelcontextprotocol/server-sequential-thinking/dist/index.js"),
        tool="sequentialthinking",
        arguments={"thought": "begin", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
        expected="thoughtNumber",
    ),
    RealServer(
        # A browser has more threads than a sandbox of a server may.
        package="@playwright/mcp", place=NODE,
        command=("node", "INSTALLED/@playwright/mcp/cli.js", "--headless", "--isolated", "--no-sandbox",
                 "--executable-path", "/usr/lib/chromium/chromium"),
        tool="browser_navigate", arguments={"url": "data:text/html,<title>shop</title>"}, expected="shop",
        memory_mb=2_048,
    ),
    RealServer(
        package="mcp-server-time",
        command=("INSTALLED/bin/mcp-server-time", "--local-timezone", "Europe/Berlin"),
        tool="get_current_time", arguments={"timezone": "Europe/Berlin"}, expected="Europe/Berlin",
    ),
    RealServer(
        package="mcp-server-git",
        command=("INSTALLED/bin/mcp-server-git", "--repository", "DATA"),
        tool="git_log", arguments={"repo_path": "DATA", "max_count": 1}, expected="Add price", has_data=True,
    ),
    RealServer(
        package="mcp-server-fetch",
        command=("INSTALLED/bin/mcp-server-fetch",),
        # Otherwise it installs an npm package with its first call, from a host that it has not been given.
        tool="fetch", arguments={"url": "https://pypi.org/simple/idna/", "raw": True}, expected="idna",
        hosts=("pypi.org:443",), env={"SSL_CERT_FILE": _CERTIFICATES},
    ),
    RealServer(
        package="mcp-server-sqlite", place=OLDER,
        command=("INSTALLED/bin/mcp-server-sqlite", "--db-path", "DATA/shop.db"),
        tool="create_table", arguments={"query": "create table orders (id integer)"}, expected="created",
        has_data=True,
    ),
    RealServer(
        package="mcp-server-calculator", place=OLDER,
        command=("INSTALLED/bin/mcp-server-calculator",),
        tool="calculate", arguments={"expression": "6 * 7"}, expected="42",
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """Install all of them where every user can read them, as an operator does beforehand."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        by_place = {
            place: [each.package for each in SERVERS if each.place == place] for place in (NODE, "python", OLDER)
        }
        # Some were written for the SDK before its second version, and do not say so.
        by_place[OLDER].append("mcp<2")
        for place, packages in by_place.items():
            if place == NODE:
                options = ("--no-audit", "--no-fund", "--ignore-scripts")
                run_installer("npm", "install", *options, "--prefix", str(folder), *packages)
            else:
                run_installer(PYTHON, "-m", "venv", str(folder / place))
                run_installer(str(folder / place / "bin" / "pip"), "install", "--quiet", *packages)
        yield folder


def run_installer(*words: str) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    done = subprocess.run(words, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
    if done.returncode != 0:
        pytest.skip(f"the packages cannot be installed here: {done.stderr.strip()[-300:]}")


async def try_server(server: RealServer, installed: Path, supervisor: Path) -> str:
    """Call a server in a sandbox; return why it did not answer as it should, empty if it did."""
    place = str(installed / server.place)
    with tempfile.TemporaryDirectory() as data:
        make_repository(Path(data))

        def fill(text: str) -> str:
            return text.replace("INSTALLED", place).replace("DATA", data)

        folders = [SharedFolderSettings(path=Path(place))] if server.place == NODE else []
        if server.has_data:
            folders.append(SharedFolderSettings(path=Path(data), write=True))
        settings = McpServerSettings(
            name="shop", command=tuple(map(fill, server.command)), start_seconds=60,
            folders=tuple(folders), hosts=server.hosts, env={name: fill(value) for name, value in server.env.items()},
            memory_mb=server.memory_mb,
        )  # fmt: skip
        sandboxes = SandboxSettings(folder=supervisor, accept=("weak_limits",))
        upstreams = UpstreamPool(Settings(servers=(settings,), sandboxes=sandboxes))
        async with contextlib.aclosing(upstreams):
            try:
                result = await ShopServer(upstreams).call(server.tool, json.loads(fill(json.dumps(server.arguments))))
            except Problem as problem:
                return problem.message
            refused = upstreams.list_refused_hosts("dev", "shop")
        text = json.dumps(result)
        if not result.get("isError") and server.expected in text:
            return ""
        return " ".join((text[:3_000], *(f"refused {each}" for each in refused)))


def make_repository(folder: Path) -> None:
    """Make a repository that belongs to the user of sandboxes."""
    identity = ["-c", "user.name=Ana", "-c", "user.email=ana@example.com"]
    for words in (
        ["init", "--quiet"],
        [*identity, "commit", "--quiet", "--allow-empty", "--message", "Add price"],
    ):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    if os.geteuid() == 0:
        for each in (folder, *folder.rglob("*")):
            os.chown(each, _NOBODY, _NOBODY)


async def test_most_of_ten_servers_work_with_folders_and_hosts_alone(installed: Path, tmp_path: Path) -> None:
    table = {each.package: await try_server(each, installed, tmp_path / "sandboxes") for each in SERVERS}
    for package, reason in table.items():
        print(f"{package:52}{reason or 'works'}")
    assert len(table) == 10
    assert sum(not each for each in table.values()) >= WORKING, table
