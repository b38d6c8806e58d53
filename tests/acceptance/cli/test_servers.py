"""`deputize servers` and `deputize import` as a person uses them, with a real MCP server behind the gateway."""

import hashlib
import json
import os
import pty
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli.cli_process import (
    PROGRAM,
    TIMEOUT_SECONDS,
    BackgroundCommand,
    CompletedCommand,
    make_project,
    read_code,
    read_terminal,
    run_as_operator,
    run_deputize,
)
from tests.support.mcp_servers.upstream import Upstream, make_definition, run_upstream

pytestmark = [pytest.mark.requirement("REG-2"), pytest.mark.nightly]


@pytest.fixture(scope="module")
def orders_server() -> Iterator[Upstream]:
    with run_upstream() as server:
        yield server


@pytest.fixture(scope="module")
def project_with_server(workspace: Path, orders_server: Upstream) -> Iterator[Path]:
    """A project whose settings name the server, and its running gateway."""
    folder = make_project(workspace / "served")
    with (folder / "deputize.toml").open("a") as file:
        file.write(
            f'\n[[servers]]\nname = "orders"\nurl = "{orders_server.url}"\nreads = ["get_*"]\nwrites = ["cancel_*"]\n'
        )
        # The gateway probes by itself all the time; the test must pass whether it or the command is first.
        file.write('slow = ["*"]\nstart_seconds = 60\nprobe_seconds = 1\n')
    with BackgroundCommand("dev", folder=folder) as dev:
        dev.wait_for_line("▶")
        yield folder
        assert dev.interrupt() == 0


def test_a_server_is_seen_tested_and_its_change_reviewed(project_with_server: Path, orders_server: Upstream) -> None:
    shop = project_with_server
    tested = run_deputize("servers", "test", "orders", folder=shop)
    assert tested.code == 0, tested.output
    listed = run_deputize("servers", "list", folder=shop).out
    assert "connected" in listed
    assert "Orders" in listed
    shown = run_deputize("servers", "show", "orders", folder=shop).out
    assert "orders.cancel_order 1.0.0" in shown
    assert run_deputize("servers", "show", "orders", "--json", folder=shop).json["tools"] == 2
    assert run_deputize("servers", "review", "orders", folder=shop).out == "No changes to review.\n"

    orders_server.tools = [
        make_definition("get_order"),
        make_definition("cancel_order", "Cancels \u202eit all."),
        make_definition("list_orders"),
    ]
    assert "2 changes to review" in run_deputize("servers", "test", "orders", folder=shop).err
    refused = run_deputize("call", "orders.cancel_order", "name=Ana", folder=shop)
    assert (refused.code, "(E3109)" in refused.err) == (1, True), refused.output
    review = run_deputize("servers", "review", "orders", folder=shop).out
    assert "\u202e" not in review
    assert '+ "Cancels' in review
    assert "hidden_text at /description" in review
    assert len(run_deputize("servers", "review", "orders", "--json", folder=shop).json["changes"]) == 2

    accepted = run_as_operator("servers", "review", "orders", "--accept", "list_*", folder=shop)
    assert accepted.out == "✓ tool:list_orders accepted: orders.list_orders@1.0.0\n"
    rejected = run_deputize("servers", "review", "orders", "--reject", "cancel_order", folder=shop)
    assert (rejected.code, "--reason" in rejected.err) == (2, True)
    said = ("--reject", "tool:cancel_order", "--reason", "it hides something", "--json")
    assert run_deputize("servers", "review", "orders", *said, folder=shop).json["decided"][0]["decision"] == "reject"
    assert run_deputize("servers", "review", "orders", folder=shop).out == "No changes to review.\n"
    assert run_deputize("call", "orders.cancel_order", "name=Ana", folder=shop).code == 1
    orders_server.tools = [
        make_definition("get_order"),
        make_definition("cancel_order"),
        make_definition("list_orders"),
    ]
    assert run_deputize("servers", "test", "orders", folder=shop).code == 0
    assert run_deputize("call", "orders.cancel_order", "name=Ana", folder=shop).code == 0


@pytest.mark.requirement("NEW-4")
def test_effects_are_confirmed_at_a_terminal(project_with_server: Path, orders_server: Upstream) -> None:
    shop = project_with_server
    orders_server.tools = [
        make_definition(name) for name in ("get_order", "cancel_order", "list_orders", "pay", "stat")
    ]
    assert run_deputize("servers", "test", "orders", folder=shop).code == 0
    for name in ("pay", "stat"):
        accepted = run_as_operator("servers", "review", "orders", "--accept", name, folder=shop)
        assert accepted.code == 0, accepted.output
    listed = run_deputize("servers", "effects", "orders", folder=shop)
    assert "3 tools not confirmed" in listed.err
    assert "Accept the proposals: deputize servers effects orders --accept" in listed.err

    # One by one: a wrong word is asked about again, one tool is left as it is, and one is said to be something else.
    shown = _answer_prompts(
        shop, ("no", "edit"), ("[read]", "what"), ("[read]", ""), ("[destructive]", "wri"), ("[read]", "skip")
    )
    assert "Answer read, write, destructive or skip." in shown
    assert "list_orders is read: orders.list_orders@1.1.0" in shown
    assert "pay is write: orders.pay@1.1.0" in shown
    tools = {
        each["name"]: (each["effects"], each["source"])
        for each in run_deputize("servers", "effects", "orders", "--json", folder=shop).json["tools"]
    }
    assert tools == {
        "cancel_order": ("write", "settings"), "get_order": ("read", "settings"), "list_orders": ("read", "confirmed"),
        "pay": ("write", "confirmed"), "stat": ("destructive", "unconfirmed"),
    }  # fmt: skip
    assert run_deputize("call", "orders.list_orders", "name=Ana", folder=shop).code == 0
    # What only tightens needs no operator.
    tightened = run_deputize("servers", "effects", "orders", "--set", "pay=destructive", folder=shop)
    assert tightened.out == "✓ pay is destructive: orders.pay@1.2.0\n"
    wrong = run_deputize("servers", "effects", "orders", "--set", "pay=none", folder=shop)
    assert (wrong.code, "the effects are read, write, destructive" in wrong.err) == (2, True)


@pytest.mark.requirement("NEW-4")
def test_rules_about_a_servers_tools_are_tested_without_the_gateway(project_with_server: Path) -> None:
    shop = project_with_server
    exported = run_deputize("servers", "export", "--json", folder=shop).json
    assert (exported["written"], exported["servers"]) == ("servers.json", ["orders"])
    settings = (shop / "deputize.toml").read_text()
    (shop / "deputize.toml").write_text(settings + 'facts.customer = "arguments.name"\n')
    (shop / "policies/orders.cedar").write_text(
        '@id("no-zoe") forbid (principal, action, resource in Server::"orders")\n'
        'unless { context.facts has customer && context.facts.customer like "A*" };\n'
    )
    checked = run_deputize("policy", "check", folder=shop)
    assert (checked.code, f"checked against {3 + exported['tools']} tools" in checked.out, checked.err) == (
        0,
        True,
        "",
    ), checked.output
    words = ("policy", "explain", "--tool", "orders.get_order", "--json", "--arguments")
    decisions = [
        run_deputize(*words, json.dumps(arguments), folder=shop).json["behavior"]
        for arguments in ({"name": "Ana"}, {"name": "Zoe"})
    ]
    assert decisions == ["allow", "deny"]
    (shop / "policies/orders.cedar").unlink()


def _answer_prompts(folder: Path, *answers: tuple[str, str]) -> str:
    """Run `servers effects` at a terminal, type each answer when its prompt is there, then the operator's code."""
    mine, theirs = pty.openpty()
    command = [PROGRAM, "servers", "effects", "orders"]
    with subprocess.Popen(command, cwd=folder, env={}, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = ""
        for prompt, answer in answers:
            shown += read_terminal(mine, f"{prompt}: " if prompt.startswith("[") else f"[{prompt}]: ")
            os.write(mine, f"{answer}\n".encode())
        shown += read_terminal(mine, "Code shown in the terminal of deputize dev")
        os.write(mine, f"{read_code(folder)}\n".encode())
        shown += read_terminal(mine, "orders.pay@1.1.0")
        assert process.wait(TIMEOUT_SECONDS) == 0
    os.close(mine)
    return shown


def test_server_command_errors_are_readable(project_with_server: Path) -> None:
    shop = project_with_server
    unknown = run_deputize("servers", "show", "parcels", folder=shop)
    assert (unknown.code, "MCP server not found (E3110)" in unknown.err) == (1, True)
    nothing = run_deputize("servers", "review", "orders", "--accept", "get_order", folder=shop)
    assert (nothing.code, "get_order has no change to review" in nothing.err) == (2, True)
    assert run_deputize("servers", "review", "orders", "--accept", "x", "--json", folder=shop).json["error"]["message"]


def test_an_unreachable_server_is_reported_with_the_reason(project_with_server: Path, orders_server: Upstream) -> None:
    orders_server.failure_status = 503
    try:
        away = run_deputize("servers", "test", "orders", folder=project_with_server)
        assert (away.code, "503" in away.err) == (1, True)
        assert "unavailable" in run_deputize("servers", "list", folder=project_with_server).out
    finally:
        orders_server.failure_status = 0
        run_deputize("servers", "test", "orders", folder=project_with_server)


def test_servers_of_another_client_are_imported_without_their_keys(workspace: Path) -> None:
    folder = make_project(workspace / "taking")
    before = (folder / "deputize.toml").read_text()
    servers = {
        "GitHub": {"command": "npx", "args": ["-y", "github-mcp"], "env": {"GITHUB_TOKEN": "ghp_of_ana"}},
        "old": {"type": "sse", "url": "https://old.example/sse"},
        "web": {"url": "https://web.example/mcp"},
        "own": {"command": "/bin/sh", "args": ["own.sh"]},
    }
    (folder / "own.sh").write_text("exit 0")
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    tried = run_deputize("import", ".mcp.json", "--plan", folder=folder)
    assert "[[servers]]" in tried.out
    assert (folder / "deputize.toml").read_text() == before

    done = run_deputize("import", ".mcp.json", folder=folder)
    assert done.code == 0, done.output
    assert "Store its credential: deputize secrets set github/github-token" in done.out
    assert "old was not imported" in done.err
    assert "Added 3 servers to deputize.toml; the previous file is deputize.toml.1.bak" in done.out
    assert "ghp_of_ana" not in (folder / "deputize.toml").read_text() + done.output
    assert (folder / "deputize.toml.1.bak").read_text() == before
    for name in ("deputize.toml", "deputize.toml.1.bak"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    written = tomllib.loads((folder / "deputize.toml").read_text())["servers"]
    assert [each["name"] for each in written] == ["github", "web", "own"]
    assert written[0]["secret_env"] == "GITHUB_TOKEN"
    assert written[2]["sha256"] == hashlib.sha256(Path("/bin/sh").read_bytes()).hexdigest()
    assert written[2]["files"] == {"own.sh": hashlib.sha256(b"exit 0").hexdigest()}
    # The program of a launcher is not all it runs, so it is not pinned, and the output says so.
    assert "files" not in written[0]

    again = run_deputize("import", ".mcp.json", "--json", folder=folder).json
    assert (again["taken"], again["changed"], again["written"], len(again["left_out"])) == ([], [], None, 1)
    assert again["unchanged"] == ["github", "web", "own"]
    # What was written are settings that every other command reads.
    assert run_deputize("policy", "check", folder=folder).code == 0


def test_a_second_import_shows_what_changed_and_takes_it_over_when_asked(workspace: Path) -> None:
    folder, home = make_project(workspace / "again"), workspace / "home"
    file = home / ".cursor" / "mcp.json"
    file.parent.mkdir(parents=True)

    def write(**servers: object) -> None:
        own = {"command": PROGRAM, "args": ["mcp", "--project", str(folder)]}
        file.write_text(json.dumps({"mcpServers": {**servers, "shop": own}}))

    def run(*words: str) -> CompletedCommand:
        return run_deputize("import", "cursor", *words, folder=folder, env={"HOME": str(home)})

    web, other = {"url": "https://web.example/mcp"}, {"url": "https://other.example/mcp"}
    write(web=web, other=other, third=other)
    done = run("--include", "*e*", "--exclude", "other")
    assert (done.code, f"from {file}" in done.err) == (0, True), done.output
    settings = folder / "deputize.toml"
    assert [each["name"] for each in tomllib.loads(settings.read_text())["servers"]] == ["web"]
    settings.write_text(settings.read_text() + 'reads = ["get_*"]  # mine\n')
    confirmed = settings.read_text()

    write(web={"url": "https://new.example/mcp", "headers": {"X-Api-Key": "k3y"}})
    for words in ((), ("--plan", "--update")):
        shown = run(*words)
        assert (shown.code, settings.read_text()) == (0, confirmed), shown.output
        assert '  - url = "https://web.example/mcp"\n  + url = "https://new.example/mcp"\n' in shown.out
        assert "Nothing was written." in shown.out
    updated = run("--update")
    assert "Updated 1 server in deputize.toml" in updated.out, updated.output
    assert "k3y" not in settings.read_text() + updated.output
    [table] = tomllib.loads(settings.read_text())["servers"]
    assert (table["url"], table["reads"], table["header"]) == ("https://new.example/mcp", ["get_*"], "X-Api-Key")
    assert "# mine" in settings.read_text()
    assert run("--json").json["unchanged"] == ["web"]


def test_an_openapi_document_is_imported_by_the_same_command(workspace: Path) -> None:
    folder = make_project(workspace / "described")
    operation = {"operationId": "listPets", "responses": {"200": {"description": "Pets"}}}
    document = {
        "info": {"title": "Pets", "version": "1"},
        "openapi": "3.1.0",
        "servers": [{"url": "https://pets.example/v1"}],
        "paths": {"/pets": {"get": operation, "delete": {**operation, "operationId": "dropPets"}}},
    }
    (folder / "pets.json").write_text(json.dumps(document, indent=1))

    assert run_deputize("import", "pets.json", "more.json", folder=folder).code == 2
    planned = run_deputize("import", "openapi", "pets.json", "--plan", folder=folder)
    assert (planned.code, "services" in tomllib.loads((folder / "deputize.toml").read_text())) == (0, False)
    assert "read" in planned.out
    assert "destructive" in planned.out
    done = run_deputize("import", "pets.json", "--exclude", "drop*", folder=folder)
    assert done.code == 0, done.output
    [service] = tomllib.loads((folder / "deputize.toml").read_text())["services"]
    assert (service["name"], service["excluded_operations"]) == ("pets", ["drop*"])


def test_client_files_that_cannot_be_imported_explain_why(workspace: Path) -> None:
    folder = make_project(workspace / "mistaken")
    (folder / "bad.json").write_text("{")
    (folder / "large.json").write_text(" " * 1_048_577)
    for file, said in (
        ("none.json", "cannot be read"),
        ("bad.json", "not valid JSON"),
        ("large.json", "larger than 1 MB"),
        (".", "cannot be read"),
    ):
        done = run_deputize("import", file, folder=folder)
        assert (done.code, said in done.err) == (2, True), done.output
    assert run_deputize("import", "bad.json", folder=workspace).code == 2


@pytest.mark.parametrize(
    ("package", "options", "tool"),
    [
        (
            "npm:@modelcontextprotocol/server-filesystem",
            ("--write", "notes", "--", "notes"),
            "filesystem.list_directory",
        ),
        ("pypi:mcp-server-time", (), "time.get_current_time"),
    ],
)
def test_a_server_is_installed_pinned_and_reached_in_its_sandbox(
    workspace: Path, package: str, options: tuple[str, ...], tool: str
) -> None:
    name = tool.partition(".")[0]
    folder = make_project(workspace / name)
    (folder / "notes").mkdir()
    # Which certificates of a registry npm trusts is in the environment, and in the home of who runs it.
    installed = run_deputize("servers", "install", package, *options, folder=folder, env=os.environ)
    assert installed.code == 0, installed.output
    (server,) = tomllib.loads((folder / "deputize.toml").read_text())["servers"]
    assert server["name"] == name
    assert server["sha256"]
    again = run_deputize("servers", "install", package, folder=folder)
    assert "has a server named" in again.output
    with BackgroundCommand("dev", folder=folder) as dev:
        dev.wait_for_line("▶")
        tested = run_deputize("servers", "test", name, folder=folder)
        assert "in a sandbox (namespaces)" in tested.out, tested.output
        assert tool in tested.out
        assert dev.interrupt() == 0
