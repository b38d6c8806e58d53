"""Packages of servers: what they are called, what launchers start, and which folders are ours to replace."""

import json
import re
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.commands import servers
from deputize.interfaces.cli.local import server_packages
from deputize.interfaces.cli.local.package_registries import Registry
from deputize.interfaces.cli.local.server_packages import (
    InstalledServer,
    ServerPackage,
    build_server_table,
    choose_program,
    find_launched_package,
    holds_home,
    install_package,
    lock_wheels,
    parse_package,
    remove_package,
    require_npm_registry,
    require_server_name,
)


@pytest.mark.parametrize(
    ("text", "name", "version", "server"),
    [
        ("npm:@acme/notes-mcp", "@acme/notes-mcp", None, "notes"),
        ("npm:@acme/server-files@2026.8.31", "@acme/server-files", "2026.8.31", "files"),
        ("pypi:mcp-server-time", "mcp-server-time", None, "time"),
        ("pypi:MCP.Server@1.0", "MCP.Server", "1.0", "server"),
        ("npm:7zip-mcp", "7zip-mcp", None, "s7zip"),
    ],
)  # fmt: skip
def test_a_package_names_its_server(text: str, name: str, version: str | None, server: str) -> None:
    package = parse_package(text)
    assert (package.name, package.version, package.server_name, str(package)) == (name, version, server, text)


@pytest.mark.parametrize(
    "text",
    [
        "notes", "npm:", "npm:../evil", "npm:a b", "npm:--global", "npm:@acme/x/y", "pypi:x[extra]", "pypi:-r",
        "npm:x@", "npm:x@^1 y", "git:x",
    ],
)  # fmt: skip
def test_what_is_no_name_of_a_package_never_reaches_npm_or_pip(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a package"):
        parse_package(text)


def test_a_launcher_names_its_package_and_the_arguments_of_its_program() -> None:
    npm = ServerPackage(registry="npm", name="@acme/orders")
    assert find_launched_package(["/usr/bin/npx", "-y", "@acme/orders@latest", "--root", "x"]) == (npm, ("--root", "x"))
    assert find_launched_package(["uvx", "orders"]) == (ServerPackage(registry="pypi", name="orders"), ())
    for command in ([], ["npx"], ["npx", "--package", "x", "y"], ["node", "x.js"], ["uvx", "git+https://x"]):
        assert find_launched_package(command) is None


def test_of_several_programs_one_is_chosen_or_asked_for() -> None:
    package = ServerPackage(registry="npm", name="@acme/orders")
    assert choose_program(package, {"serve": "a.js"}, None) == "serve"
    assert choose_program(package, {"orders": "a.js", "other": "b.js"}, None) == "orders"
    assert choose_program(package, {"a": "a.js", "b": "b.js"}, "b") == "b"
    for programs, wanted, told in (
        ({"a": "", "b": ""}, None, "a, b"),
        ({}, None, "no programs"),
        ({"a": ""}, "c", "'c'"),
    ):
        with pytest.raises(ConfigError, match=told):
            choose_program(package, programs, wanted)


def test_a_folder_that_is_not_from_here_is_neither_replaced_nor_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "servers" / "notes"
    own.mkdir(parents=True)
    (own / "work.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        install_package(parse_package("npm:notes"), "notes", None)
    remove_package("notes")
    assert (own / "work.txt").read_text() == "mine"


def test_what_an_interrupted_installation_left_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def fail(*_: object) -> NoReturn:
        Path("servers/notes/half").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(server_packages, "_install_npm", fail)
    with pytest.raises(KeyboardInterrupt):
        install_package(parse_package("npm:notes"), "notes", None)
    assert Path("servers/notes/half").exists()

    def fail_again(*_: object) -> NoReturn:
        raise ConfigError("no network")

    monkeypatch.setattr(server_packages, "_install_npm", fail_again)
    with pytest.raises(ConfigError, match="no network"):
        install_package(parse_package("npm:notes"), "notes", None)
    assert not Path("servers/notes/half").exists()


def test_an_argument_outside_of_the_listed_folders_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("code", "notes", "other"):
        Path(folder).mkdir()
    Path("code/server.py").write_text("")
    installed = InstalledServer(version="1", command=("sh", "code/server.py"), code_folder="code")
    table = build_server_table("notes", installed, ("notes",), (), ("notes",), ("api.example.com:443",))
    assert table["folders"] == [{"path": "notes", "write": True}]
    assert set(table["files"]) == {"code"}
    with pytest.raises(ConfigError, match="--read or --write"):
        build_server_table("notes", installed, ("other",), (), ("notes",), ())


@pytest.mark.parametrize("name", ["", "..", "../notes", "a/b", "Notes", "a__b", "n" * 49])
def test_what_is_no_name_of_a_server_never_becomes_a_folder(name: str) -> None:
    with pytest.raises(ConfigError, match="is no name of a server"):
        require_server_name(name)


def test_what_a_registry_does_not_have_is_named() -> None:
    package = parse_package("npm:notes")
    registry = Registry(urls=("https://npm.example/a/", "file:///srv/index/simple"), environment={})
    good = {"node_modules/a": {"resolved": "https://npm.example/a/-/a-1.tgz"}, "node_modules/b": {"inBundle": True}}
    require_npm_registry(package, {"packages": {"": {}, **good}}, registry)
    for entry in (
        {"resolved": "git+ssh://git@host.example/x.git#1"}, {"resolved": "https://npm.example.evil.example/x.tgz"},
        {"resolved": "http://npm.example/x.tgz"}, {"resolved": "../x", "link": True}, {},
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=r"it needs x, which comes from .* not from the registry"):
            require_npm_registry(package, {"packages": {**good, "node_modules/@a/b/node_modules/x": entry}}, registry)


@pytest.mark.parametrize(
    ("origin", "is_direct"),
    [
        ("https://npm.example/x-1.whl", True), ("https://npm.example/x-1.tar.gz", False),
        ("https://other.example/x-1.whl", False), ("file:///srv/index/../../etc/x-1.whl", False),
        ("file:///etc/x-1.whl", False),
    ],
)  # fmt: skip
def test_only_wheels_of_an_index_become_requirements(origin: str, is_direct: bool) -> None:
    registry = Registry(urls=("https://npm.example/a/", "file:///srv/index/simple"), environment={})

    def report(url: str, is_direct: bool) -> bytes:
        info = {"url": url}
        metadata = {"name": "x", "version": "1"}
        return json.dumps({"install": [{"is_direct": is_direct, "download_info": info, "metadata": metadata}]}).encode()

    package = parse_package("pypi:x")
    assert lock_wheels(package, report("file:///srv/index/files/x-1.whl", False), registry) == b"x==1\n"
    with pytest.raises(ConfigError, match="it needs x, which comes from"):
        lock_wheels(package, report(origin, is_direct), registry)
    with pytest.raises(ConfigError, match="pip does not say"):
        lock_wheels(package, b"{}", registry)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--write", "notes"], "--write notes would not be shown to the server, because it does not exist: create it"),
        (["--write", "."], "--write . would not be shown to the server, because .*deputize.* would be seen there"),
        (["--read", "tools", "--write", "tools"], "--write tools would not .* must not be changed by a program"),
        (["--host", "https://a.example/"], "--host https://a.example/ is no host: write HOST:PORT, as api.example.com"),
        (["--host", "a.example:99999"], "--host a.example:99999 is no host"),
    ],
)
def test_what_the_sandbox_would_not_take_is_refused_before_anything_is_fetched(
    options: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deputize.toml").write_text('[tools]\npython = ["tools/*.py"]\n')
    Path("tools").mkdir()
    monkeypatch.setattr(server_packages, "install_package", lambda *_: pytest.fail("the package was fetched"))
    result = CliRunner().invoke(servers.group, ["install", "pypi:notes", *options])
    assert re.search(told, str(result.exception))
    assert not Path("servers").exists()


def test_a_home_folder_is_known_from_above_and_not_from_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home/data").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "home")
    monkeypatch.setenv("HOME", str(tmp_path / "link"))
    assert [holds_home(each) for each in ("~", str(tmp_path), str(tmp_path / "home"), "/")] == [True] * 4
    assert [holds_home(each) for each in ("~/data", str(tmp_path / "other"))] == [False] * 2
