"""`deputize connect` and `disconnect` as a person uses them, on a running gateway."""

import json
import os
import re
import shutil
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from deputize.interfaces.cli.local.client_setup.clients import CLIENTS, ClientName
from tests.acceptance.cli.cli_process import (
    PROGRAM,
    TIMEOUT_SECONDS,
    CompletedCommand,
    list_files_containing,
    make_project,
    run_deputize,
)

pytestmark = pytest.mark.nightly

FILES = {
    "claude-code": ".mcp.json",
    "claude-desktop": "{home}/.config/Claude/claude_desktop_config.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".vscode/mcp.json",
    "gemini-cli": ".gemini/settings.json",
    "codex": "{home}/.codex/config.toml",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def read_url(project: Path) -> str:
    return str(json.loads((project / ".deputize" / "dev.json").read_text())["url"])


def mint(project: Path, *words: str) -> str:
    return run_deputize("token", *words, folder=project).out.strip()


def find_entry(client: str, path: Path) -> Any:
    section = CLIENTS[ClientName(client)].section
    text = path.read_text()
    document = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    return document[section]["shop"]


@pytest.mark.parametrize("client", ["claude-code", "vscode", "codex"])
def test_a_client_is_connected_tried_and_disconnected(client: str, shop_project: Path, home: Path) -> None:
    env = {"HOME": str(home)}
    path = shop_project / FILES[client].format(home=home)
    planned = run_deputize("connect", client, "--plan", folder=shop_project, env=env)
    assert (planned.code, "deputize" in planned.out, path.exists()) == (0, True, False), planned.output

    # Not in the project's folder, and with an operator's token in the terminal, which the client must not get.
    (shop_project / "notes").mkdir(exist_ok=True)
    operator = (shop_project / ".deputize" / "token").read_text().strip()
    done = run_deputize("connect", client, folder=shop_project / "notes", env={**env, "DEPUTIZE_TOKEN": operator})
    assert done.code == 0, done.output
    visible = re.search(r"(\d+) tools visible", done.out)
    assert visible is not None, done.output
    assert int(visible[1]) > 1
    entry = find_entry(client, path)
    assert entry["args"] == ["mcp", "--project", str(shop_project.resolve())]
    secrets = [operator, (shop_project / ".deputize" / "agent-token").read_text().strip()]
    assert [each for secret in secrets for each in list_files_containing(home, secret)] == []
    assert not any(secret in path.read_text() for secret in secrets)

    before = path.read_bytes()
    again = run_deputize("connect", client, "--json", folder=shop_project, env=env).json
    assert (again["written"], again["tools"], path.read_bytes()) == (False, int(visible[1]), before)
    removed = run_deputize("disconnect", client, folder=shop_project, env=env)
    assert (removed.code, path.exists()) == (0, False), removed.output
    repeated = run_deputize("disconnect", client, "--json", folder=shop_project, env=env).json
    assert (repeated["removed"], repeated["restored"]) == (False, False)


def test_what_a_person_wrote_is_kept(shop_project: Path, home: Path) -> None:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    text = '{\n  // mine\n  "mcpServers": {"shop": {"command": "mine"}, "b": {"url": "https://b.example/mcp"}},\n}\n'
    path.write_text(text)

    def run(*words: str) -> CompletedCommand:
        return run_deputize(*words, "--user", folder=shop_project, env={"HOME": str(home)})

    refused = run("connect", "cursor")
    assert (refused.code, "choose another name with --name" in refused.err) == (1, True), refused.output
    assert run("disconnect", "cursor").code == 1
    assert path.read_text() == text

    done = run("connect", "cursor", "--name", "governed")
    assert done.code == 0, done.output
    assert "// mine" in path.read_text()
    backup = path.with_name("mcp.json.before-deputize-governed")
    assert backup.read_text() == text
    path.write_text(path.read_text().replace("// mine", "// all mine"))
    removed = run("disconnect", "cursor", "--name", "governed")
    assert (removed.code, "which was edited since" in removed.out) == (0, True), removed.output
    assert path.read_text().split() == text.replace("// mine", "// all mine").replace("}},", "} },").split()

    path.write_text("{ not json")
    broken = run("connect", "cursor")
    assert (broken.code, "was left as it is, because it is not valid JSON" in broken.err) == (2, True), broken.output
    assert path.read_text() == "{ not json"


def test_only_an_agents_token_is_given_to_a_client(shop_project: Path, home: Path) -> None:
    url = read_url(shop_project)
    tokens = {
        "not an agent's token": mint(shop_project),
        "can administer the gateway": mint(shop_project, "--agent", "bot", "--scope", "deputize:admin"),
    }
    for reason, token in tokens.items():
        env = {"HOME": str(home), "DEPUTIZE_TOKEN": token}
        for client in ("claude-desktop", "cursor"):
            refused = run_deputize("connect", client, "--url", url, folder=shop_project, env=env)
            assert (refused.code, reason in refused.err) == (2, True), refused.output
            assert not (shop_project / FILES[client].format(home=home)).exists()
    unset = run_deputize("connect", "cursor", "--url", url, folder=shop_project, env={"HOME": str(home)})
    assert (unset.code, "set DEPUTIZE_TOKEN to an agent's token" in unset.err) == (2, True), unset.output
    assert list_files_containing(home, "ey") == []


def test_no_token_stays_behind_if_the_file_of_the_client_is_refused(shop_project: Path, home: Path) -> None:
    url, token = read_url(shop_project), mint(shop_project, "--agent", "bot")
    path = shop_project / FILES["claude-desktop"].format(home=home)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    path.with_name(f"{path.name}.before-deputize-shop").mkdir()
    env = {"HOME": str(home), "DEPUTIZE_TOKEN": token}
    refused = run_deputize("connect", "claude-desktop", "--url", url, "--name", "shop", folder=shop_project, env=env)
    assert (refused.code, "was left as it is, because it is not a file" in refused.err) == (2, True), refused.output
    assert list_files_containing(home, token) == []


@pytest.mark.parametrize("client", ["claude-desktop", "cursor", "gemini-cli", "codex"])
def test_a_gateway_elsewhere_gets_a_reference_to_the_token(client: str, shop_project: Path, home: Path) -> None:
    url, token = read_url(shop_project), mint(shop_project, "--agent", "bot")
    env = {"HOME": str(home), "DEPUTIZE_TOKEN": token}
    path = shop_project / FILES[client].format(home=home)

    done = run_deputize("connect", client, "--url", url, folder=shop_project, env=env)

    assert (done.code, "tools visible" in done.out) == (0, True), done.output
    text, entry = path.read_text(), find_entry(client, path)
    assert token not in text
    saved_files = list_files_containing(home, token)
    if client == "claude-desktop":
        file = Path(entry["args"][-1])
        assert entry["args"] == ["mcp", "--url", url, "--token-file", str(file)]
        assert saved_files == [file]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    else:
        assert saved_files == []
        assert "DEPUTIZE_TOKEN" in text
    assert run_deputize("disconnect", client, folder=shop_project, env=env).code == 0
    assert (path.exists(), list_files_containing(home, token)) == (False, [])


def test_an_entry_for_other_clients_is_printed(shop_project: Path) -> None:
    done = run_deputize("connect", "json", folder=shop_project)

    assert (done.code, "Tried this entry as a client would: " in done.err) == (0, True), done.output
    assert json.loads(done.out)["mcpServers"]["shop"]["command"] == PROGRAM
    assert run_deputize("connect", "json", "--json", folder=shop_project).json["tools"] > 1


def test_without_a_gateway_the_reason_is_told(workspace: Path, home: Path) -> None:
    folder = make_project(workspace / "asleep")

    done = run_deputize("connect", "cursor", folder=folder, env={"HOME": str(home)})

    assert done.code == 1
    assert "No gateway is running for this folder" in done.err
    assert "deputize disconnect cursor" in done.err


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the clients that npm has."""
    if not os.environ.get("TESTS_FULL"):
        pytest.skip("installs clients: set TESTS_FULL=1")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    given = os.environ.get("MCP_CLIENTS")
    folder = Path(given) if given else tmp_path_factory.mktemp("clients")
    if not given:
        names = ("@anthropic-ai/claude-code@2.1.197", "@openai/codex@0.169.0", "@google/gemini-cli@0.61.0")
        options = ("--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
        subprocess.run([npm, "install", *options, *names], cwd=folder, check=True, timeout=1800)
    return folder / "node_modules" / ".bin"


@pytest.mark.parametrize(
    ("client", "words", "expected"),
    [
        ("claude-code", ("claude", "mcp", "list"), "Connected"),
        ("gemini-cli", ("gemini", "mcp", "list"), "Connected"),
        ("codex", ("codex", "mcp", "list"), "enabled"),
    ],
)
def test_a_real_client_reads_what_was_written(
    client: str, words: tuple[str, ...], expected: str, programs: Path, shop_project: Path, home: Path
) -> None:
    """Claude Code and Gemini CLI start the program and shake hands with it; Codex lists what it read."""
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    done = run_deputize("connect", client, "--user", folder=shop_project, env=env)
    assert done.code == 0, done.output

    listed = subprocess.run(
        [str(programs / words[0]), *words[1:]],
        cwd=shop_project,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )

    line = next((each for each in (listed.stdout + listed.stderr).splitlines() if str(shop_project) in each), "")
    assert expected in line, listed.stdout + listed.stderr
    assert run_deputize("disconnect", client, "--user", folder=shop_project, env=env).code == 0
