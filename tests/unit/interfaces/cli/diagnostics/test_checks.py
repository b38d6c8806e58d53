"""The doctor names what keeps a gateway from working: each mistake has a finding, and without it there is none."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from deputize.core.settings import (
    BrowserSettings,
    BuildSettings,
    BuiltinSettings,
    CodeSettings,
    ConsoleGroup,
    ConsoleSettings,
    GitSettings,
    IdentitySettings,
    IssuerSettings,
    McpServerSettings,
    PolicySettings,
    SandboxSettings,
    Settings,
)
from deputize.govern.policy.active_policies import load_default_files
from deputize.interfaces.cli.diagnostics import checks
from deputize.interfaces.cli.diagnostics.environment_checks import check_environment
from deputize.interfaces.cli.diagnostics.finding import Finding
from deputize.interfaces.cli.diagnostics.policy_checks import check_rules, check_unconfirmed_edits
from deputize.interfaces.cli.diagnostics.sandbox_checks import check_isolation
from deputize.interfaces.cli.diagnostics.upstream_checks import check_upstreams
from deputize.interfaces.cli.local.edit_loop.confirmed_settings import record_settings
from deputize.store.database_checks import DatabaseFacts
from deputize.store.schema_revision import SchemaState

JWT = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhbmEifQ.c2lnbmF0dXJl"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DEPUTIZE_TOKEN", raising=False)
    (tmp_path / "deputize.toml").write_text("[tools]\n")
    return tmp_path


def collect(found: AsyncIterator[Finding]) -> list[tuple[str, str, str]]:
    async def read() -> list[tuple[str, str, str]]:
        return [(each.check, each.status, f"{each.summary}: {each.todo}") async for each in found]

    return asyncio.run(read())


def make_server(**values: Any) -> Settings:
    return Settings(servers=(McpServerSettings(name="orders", **values),))


def test_a_variable_that_nothing_expands_is_found(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert collect(check_environment(Settings())) == []

    (project / "deputize.toml").write_text('[server]\nhost = "${HOST}"\n')
    monkeypatch.setenv("DEPUTIZE_TOKEN", "${env:MY_TOKEN}")
    (project / ".mcp.json").write_text("{ broken")

    findings = collect(check_environment(Settings.model_construct(servers=())))
    assert [each[:2] for each in findings] == [("variables", "broken")] * 2
    assert "server.host in deputize.toml" in findings[0][2]
    assert "DEPUTIZE_TOKEN contains" in findings[1][2]


def test_tokens_and_wrong_references_in_clients_files_are_found(project: Path) -> None:
    def write(name: str, section: str, value: str) -> None:
        (project / name).parent.mkdir(exist_ok=True)
        entry = {"url": "http://127.0.0.1:7070/mcp", "headers": {"Authorization": value}}
        (project / name).write_text(json.dumps({section: {"shop": entry}}))

    write(".mcp.json", "mcpServers", "Bearer ${DEPUTIZE_TOKEN}")
    write(".cursor/mcp.json", "mcpServers", "Bearer ${env:DEPUTIZE_TOKEN}")
    write(".vscode/mcp.json", "servers", "Bearer ${input:token}")
    assert collect(check_environment(Settings())) == []

    write(".mcp.json", "mcpServers", "Bearer ${env:DEPUTIZE_TOKEN}")
    write(".cursor/mcp.json", "mcpServers", "Bearer ${DEPUTIZE_TOKEN}")
    write(".vscode/mcp.json", "servers", f"Bearer {JWT}")
    findings = collect(check_environment(Settings()))
    assert [each[:2] for each in findings] == [("clients", "broken"), ("clients", "broken"), ("clients", "warning")]
    assert "Claude Code does not expand ${env:DEPUTIZE_TOKEN}" in findings[0][2]
    assert "write ${env:DEPUTIZE_TOKEN} in .cursor/mcp.json" in findings[1][2]
    assert JWT not in findings[2][2]
    assert "deputize connect vscode" in findings[2][2]


@pytest.mark.parametrize(
    ("version", "status"),
    [("v12.22.9", "broken"), ("v18.0.0", "good"), ("v24.1.0", "good"), ("what?", "warning"), (None, "broken")],
)
def test_a_node_that_is_too_old_or_missing_is_found(
    project: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, status: str
) -> None:
    monkeypatch.setenv("PATH", str(project / "bin"))
    (project / "bin").mkdir()
    if version is not None:
        (project / "bin" / "node").write_text(f"#!/bin/sh\necho {version}\n")
        (project / "bin" / "node").chmod(0o755)

    [finding] = collect(check_environment(make_server(command=("npx", "-y", "orders"))))

    assert finding[:2] == ("node", status)
    if status != "good":
        assert "install node 18.0 or newer, which orders needs" in finding[2]


def test_a_python_that_is_too_old_is_found_and_programs_of_projects_are_not_started(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(project / "bin"))
    (project / "bin").mkdir()
    (project / "bin" / "python3").write_text(f"#!/bin/sh\necho started >> {project}/started\necho Python 3.8.1\n")
    (project / "bin" / "python3").chmod(0o755)

    [finding] = collect(check_environment(make_server(command=("python3", "server.py"))))
    assert finding[:2] == ("python3", "broken")
    (project / "started").unlink()
    command = (str(project / "bin" / "python3"), "server.py")
    assert collect(check_environment(make_server(command=command))) == []
    assert not (project / "started").exists()


def test_servers_that_cannot_be_reached_are_found(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        [finding] = asyncio.run(check_upstreams(make_server(url=f"http://127.0.0.1:{port}/mcp")))
        assert (finding.check, finding.status) == ("server orders", "good")
    [finding] = asyncio.run(check_upstreams(make_server(url=f"http://127.0.0.1:{port}/mcp")))
    assert (finding.status, "nothing answers at 127.0.0.1" in finding.summary) == ("warning", True)
    [finding] = asyncio.run(check_upstreams(make_server(url="http://169.254.169.254/mcp")))
    assert (finding.status, "never allowed" in finding.summary) == ("broken", True)
    [finding] = asyncio.run(check_upstreams(make_server(command=("/nowhere/orders",))))
    assert (finding.status, "/nowhere/orders was not found" in finding.summary) == ("warning", True)
    [finding] = asyncio.run(check_upstreams(make_server(command=("/bin/sh",))))
    assert (finding.status, finding.summary) == ("good", "/bin/sh is installed")


@pytest.mark.parametrize(
    ("values", "status", "summary", "todo"),
    [
        ({}, "good", "connected, 2 tools pinned", ""),
        (
            {"changes": 1, "tools": [{"source": "unconfirmed"}, {"source": "settings"}]}, "warning",
            "connected, 2 tools pinned, 1 change to review, the effects of 1 not confirmed",
            "deputize servers review orders; deputize servers effects orders",
        ),
        (
            {"status": "unavailable", "why": "it ended"}, "warning", "it ended; 2 tools pinned",
            "run deputize servers test orders; its tools are unavailable meanwhile",
        ),
    ],
)  # fmt: skip
def test_what_the_gateway_knows_of_a_server_is_said(
    values: dict[str, Any], status: str, summary: str, todo: str
) -> None:
    tools = [{"source": "confirmed"}, {"source": "settings"}]
    live = {"name": "orders", "status": "connected", "why": None, "changes": 0, "tools": tools, **values}
    [finding] = asyncio.run(check_upstreams(make_server(command=("/nowhere/orders",)), [live]))
    assert (finding.check, finding.status, finding.summary, finding.todo) == ("server orders", status, summary, todo)


def make_facts(**values: Any) -> DatabaseFacts:
    facts: dict[str, Any] = {
        "version_number": 170000,
        "version": "17.0",
        "has_vector": True,
        "is_standby": False,
        "is_durable": True,
        "synchronous_commit": "on",
        "standbys": "FIRST 1 (b)",
        "skew_seconds": 0.0,
        "bytes": 0,
        "schema": SchemaState(current=None, engine_version=None),
        "roles": (),
    }
    return DatabaseFacts(**(facts | values))


@pytest.mark.parametrize(
    ("values", "check", "status"),
    [
        ({"skew_seconds": 60.0}, "clock", "broken"),
        ({"skew_seconds": -60.0}, "clock", "broken"),
        ({"is_durable": False}, "durable writes", "broken"),
        ({"standbys": ""}, "synchronous replication", "warning"),
        ({"synchronous_commit": "local"}, "synchronous replication", "warning"),
        ({"synchronous_commit": "remote_write"}, "synchronous replication", "warning"),
        ({"synchronous_commit": "off"}, "synchronous replication", "warning"),
    ],
)
def test_what_may_lose_or_refuse_calls_is_found(values: dict[str, Any], check: str, status: str) -> None:
    def judge(facts: DatabaseFacts) -> dict[str, str]:
        found = checks._check_durability(facts, Settings(), development=False)
        return {each.check: each.status for each in found}

    good = judge(make_facts())
    assert set(good.values()) == {"good"}
    assert judge(make_facts(**values)) == {**good, check: status}


def test_the_issuer_of_development_is_found_in_production(project: Path) -> None:
    issuer = IssuerSettings(issuer="x", audience="y", tenant="z", development=True)
    settings = Settings(identity=IdentitySettings(issuers=(issuer,)))

    [finding] = collect(checks._check_issuers(settings, development=False))

    assert finding[:2] == ("issuers", "broken")
    assert "does not accept the development issuer" in finding[2]


def test_programs_of_code_run_need_a_sandbox_in_production(project: Path) -> None:
    def check(**values: Any) -> list[tuple[str, str]]:
        sandboxes = SandboxSettings(folder=Path("/proc/none"), **values.pop("sandboxes", {}))
        settings = Settings(sandboxes=sandboxes, builtin=BuiltinSettings(code=CodeSettings()), **values)
        return [(each.status, each.summary) for each in asyncio.run(check_isolation(settings))]

    [(status, summary)] = check()
    assert (status, summary.partition(":")[0]) == ("broken", "programs of code.run do not run")
    for accepted in ({"sandboxes": {"accept": ("unsandboxed_code",)}}, {"environment": "development"}):
        [(status, summary)] = check(**accepted)
        assert (status, summary.partition(":")[0]) == ("warning", "programs of code.run run on their interpreter alone")


@pytest.mark.parametrize(
    "values",
    [
        {"servers": (McpServerSettings(name="orders", command=("true",)),)},
        {"builtin": BuiltinSettings(browser=BrowserSettings(hosts=("shop.example.com",)))},
        {"builtin": BuiltinSettings(build=BuildSettings(test=("/usr/bin/make", "test")))},
        {"builtin": BuiltinSettings(git=GitSettings(repository=Path("code")))},
    ],
    ids=["server", "browser", "build", "git"],
)
def test_a_host_that_starts_no_sandbox_for_what_needs_one_is_broken(project: Path, values: dict[str, Any]) -> None:
    settings = Settings(sandboxes=SandboxSettings(folder=Path("/proc/none")), **values)
    found = {each.check: each for each in asyncio.run(check_isolation(settings))}
    assert {name: each.status for name, each in found.items()} == {"namespaces": "broken", "gvisor": "skipped"}
    assert found["gvisor"].todo.startswith("Needed only if a contract or a rule of the policies demands it.")


def test_git_in_development_needs_no_sandbox(project: Path) -> None:
    settings = Settings(
        environment="development",
        builtin=BuiltinSettings(git=GitSettings(repository=Path("code"))),
        sandboxes=SandboxSettings(folder=Path("/proc/none")),
    )
    assert asyncio.run(check_isolation(settings)) == []


def test_a_build_command_whose_program_is_missing_is_broken(project: Path) -> None:
    def check(**environment: str) -> set[tuple[str, str]]:
        commands = {"test": ("pytst", "-q"), "lint": ("/opt/none/ruff",), "build": ("sh", "x"), "typecheck": ("./a",)}
        build = BuildSettings.model_validate({**commands, "environment": environment})
        settings = Settings(builtin=BuiltinSettings(build=build), sandboxes=SandboxSettings(folder=Path("/proc/none")))
        found = asyncio.run(check_isolation(settings))
        return {(each.status, each.summary) for each in found if each.check == "build"}

    (project / "pytst").touch(mode=0o755)
    assert check() == {
        ("broken", "build.test runs pytst, which was not found"),
        ("broken", "build.lint runs /opt/none/ruff, which was not found"),
    }
    assert check(PATH=f"{project}:/bin") == {("broken", "build.lint runs /opt/none/ruff, which was not found")}


def test_programs_without_a_sandbox_are_named_unless_that_is_accepted(project: Path) -> None:
    def list_warnings(**values: Any) -> list[str]:
        findings = asyncio.run(check_isolation(make_server(command=("true",), **values)))
        return [each.summary for each in findings if each.check == "isolation"]

    [warning] = list_warnings(sandbox=False)
    assert warning.startswith("orders runs without a sandbox")
    assert list_warnings(sandbox=False, accept_risk=("unsandboxed",)) == list_warnings() == []


async def test_a_host_in_the_operators_network_is_named_unless_it_is_listed_as_one() -> None:
    server = McpServerSettings(
        name="shop", command=("/bin/true",), hosts=("10.96.0.1:443",), private_hosts=("10.0.0.1:1",)
    )
    findings = await check_upstreams(Settings(servers=(server,)))
    todo = 'move "10.96.0.1:443" from hosts of shop to private_hosts, if that is the host that you mean'
    assert [each.todo for each in findings if each.status == "warning"] == [todo]


def test_edits_that_wait_for_a_person_are_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rules = '@id("one") permit (principal, action, resource);'
    Path("rules.cedar").write_text(rules)
    Path("deputize.toml").write_text('[policy]\nfiles = ["rules.cedar"]\n')
    settings = Settings(folder=tmp_path, policy=PolicySettings(files=("rules.cedar",)))
    record_settings(tmp_path, Path("deputize.toml").read_bytes())
    assert not list(check_unconfirmed_edits(settings, {"rules.cedar": rules}))
    # No gateway runs, so what it uses is not known.
    assert not list(check_unconfirmed_edits(settings, None))
    Path("deputize.toml").write_text('[policy]\nfiles = ["*.cedar"]\n')
    (finding,) = check_unconfirmed_edits(settings, {"rules.cedar": rules.replace("permit", "forbid")})
    assert (finding.status, finding.summary) == (
        "warning", "not in use until you confirm: deputize.toml, rules.cedar",
    )  # fmt: skip


def test_production_without_roles_is_named() -> None:
    def list_warnings(*groups: ConsoleGroup, **issuer: Any) -> list[str]:
        provider = IssuerSettings(issuer="https://login.example.com", tenant="acme", human=True, **issuer)
        settings = Settings(
            identity=IdentitySettings(issuers=(provider,)), console=ConsoleSettings(client_id="web", groups=groups)
        )
        return [each.check for each in checks._check_roles(settings) if each.status == "warning"]

    assert list_warnings() == ["operators", "console roles", "undo"]
    auditors = ConsoleGroup(group="security", role="auditor")
    assert list_warnings(auditors, operator=True) == ["undo"]
    assert list_warnings(auditors, ConsoleGroup(group="support", scopes=("deputize:undo",)), operator=True) == []
    assert list_warnings(ConsoleGroup(group="platform", role="administrator"), operator=True) == []


def test_policies_that_ask_for_every_write_are_named_in_production(project: Path) -> None:
    def is_named(*, development: bool = False) -> bool:
        settings = Settings(policy=PolicySettings(files=("rules.cedar",)))
        findings = collect(check_rules(settings, development=development))
        return any("ask for every write" in words for name, _, words in findings if name == "policies")

    [default] = load_default_files()
    (project / "rules.cedar").write_text(default.text)
    assert (is_named(), is_named(development=True)) == (True, False)
    rule = '@id("notes") permit (principal, action == Action::"call", resource) when { resource.effects == "write" };'
    (project / "rules.cedar").write_text(f"{default.text}\n{rule}\n")
    assert not is_named()
