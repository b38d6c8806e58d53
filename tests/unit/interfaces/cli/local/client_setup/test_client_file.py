"""The configuration of a client gets one entry, loses nothing else, and is restored byte for byte."""

import json
import random
import stat
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.client_configs import strip_comments
from deputize.interfaces.cli.local.client_setup.client_file import ClientFile
from deputize.interfaces.cli.local.client_setup.clients import (
    CLIENTS,
    ClientName,
    ConfigScope,
    build_http_entry,
    build_program_entry,
    locate_client_file,
    read_entry,
)

CURSOR, CODEX = CLIENTS[ClientName.CURSOR], CLIENTS[ClientName.CODEX]
ENTRY = build_program_entry(CURSOR, ["/opt/deputize", "mcp", "--project", "/home/ana/shop"])
COMMENTED = """// servers of the team
{
    "theme": "dark", // never change
    /* all of them */
    "mcpServers": {
        // the files
        "files": {"command": "npx", "args": ["-y", "files // no comment"],}, // last
    },
    "after": [1, 2, {"mcpServers": "no"}],
}
"""
TOML = """# mine
model = "o9"

[mcp_servers.docs]   # documents
command = "npx"

# what follows is about the theme
[tui]
theme = "dark"
"""


def parse(text: str) -> dict[str, Any]:
    return dict(json.loads(strip_comments(text)))


@pytest.mark.parametrize(
    "text",
    [
        COMMENTED,
        COMMENTED.replace("\n", "\r\n"),
        "{}",
        "{ }\n",
        "{\n}\n",
        '{"mcpServers":{}}',
        '{"mcpServers": {"a": {}}}',
        '{\n\t"mcpServers": {\n\t\t"a": {}\n\t}\n}\n',
        '{"a": "}", "mcpServers": {"{": {"x": "\\"}"}}}',
        '{\n  "mcpServers": {\n    // nothing yet\n  }\n}\n',
        '{"projects": {"mcpServers": {"shop": 1}}}',
        "\ufeff{}",
        "",
        "\n",
    ],
)
def test_an_entry_is_added_and_what_was_there_is_restored(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(text.encode())
    before = parse(text.lstrip("\ufeff") or "{}") if text.strip() else {}
    file = ClientFile(CURSOR, path, "shop")

    change = file.add_entry(ENTRY)

    assert change.is_changed
    written = path.read_text(encoding="utf-8")
    assert parse(written) == {**before, "mcpServers": {**before.get("mcpServers", {}), "shop": ENTRY}}
    assert [line for line in text.splitlines() if "//" in line or "/*" in line] == [
        line for line in written.splitlines() if "//" in line or "/*" in line
    ]
    assert change.backup is not None
    assert change.backup.read_bytes() == text.encode()
    again = file.add_entry(ENTRY)
    assert (again.is_changed, path.read_text(encoding="utf-8")) == (False, written)

    removal = file.remove_entry()
    assert (removal.is_restored, removal.entry) == (True, ENTRY)
    assert path.read_bytes() == text.encode()
    assert list(tmp_path.iterdir()) == [path]


def test_only_the_entry_is_removed_from_a_file_that_was_edited(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(COMMENTED)
    file = ClientFile(CURSOR, path, "shop")
    file.add_entry(ENTRY)
    path.write_text(path.read_text().replace('"dark"', '"light"'))

    removal = file.remove_entry()

    assert (removal.is_restored, removal.entry) == (False, ENTRY)
    assert path.read_text() == COMMENTED.replace('"dark"', '"light"')
    assert removal.backup is not None
    assert removal.backup.read_text() == COMMENTED
    assert file.remove_entry().entry is None


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("comma", ["", ","])
def test_an_entry_is_removed_from_any_place(tmp_path: Path, place: str, comma: str) -> None:
    names = {"first": ["shop", "a", "b"], "middle": ["a", "shop", "b"], "last": ["a", "b", "shop"]}[place]
    rows = ",\n".join(f'    "{name}": {{"command": "{name}"}}' for name in names)
    path = tmp_path / "mcp.json"
    path.write_text(f'{{\n  "mcpServers": {{\n{rows}{comma} // end\n  }}\n}}\n')

    assert ClientFile(CURSOR, path, "shop").remove_entry().entry == {"command": "shop"}

    text = path.read_text()
    assert parse(text) == {"mcpServers": {"a": {"command": "a"}, "b": {"command": "b"}}}
    assert "// end" in text
    assert "\n\n" not in text


def test_a_new_entry_replaces_the_old_one_and_the_backup_stays_the_first(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(COMMENTED)
    file = ClientFile(CURSOR, path, "shop")
    file.add_entry(ENTRY)

    file.add_entry(build_http_entry(CURSOR, "https://gateway.example.com"))

    assert file.find_entry()["url"] == "https://gateway.example.com/mcp"
    assert file.remove_entry().is_restored
    assert path.read_text() == COMMENTED


def test_a_file_of_its_own_is_deleted_again_with_its_folder(tmp_path: Path) -> None:
    path = tmp_path / ".cursor" / "mcp.json"
    file = ClientFile(CURSOR, path, "shop", inside=tmp_path)

    assert file.add_entry(ENTRY).backup is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert file.remove_entry().is_restored

    assert list(tmp_path.iterdir()) == []


def test_the_backup_of_a_file_that_was_deleted_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    file = ClientFile(CURSOR, path, "shop")
    for number in (1, 2):
        path.write_text(COMMENTED)
        file.add_entry(ENTRY)
        path.unlink()
        file.add_entry(ENTRY)
        assert path.with_name(f"mcp.json.before-deputize-shop.{number}").read_text() == COMMENTED
        assert file.remove_entry().is_restored
        assert not path.exists()


def test_a_file_keeps_its_permissions_and_the_link_to_it(tmp_path: Path) -> None:
    real, path = tmp_path / "dotfiles.json", tmp_path / "mcp.json"
    real.write_text("{}")
    real.chmod(0o640)
    path.symlink_to(real)
    file = ClientFile(CURSOR, path, "shop")

    backup = file.add_entry(ENTRY).backup

    assert path.is_symlink()
    assert backup is not None
    assert {stat.S_IMODE(each.stat().st_mode) for each in (real, backup)} == {0o640}


def test_a_link_out_of_the_project_is_refused(tmp_path: Path) -> None:
    outside, project = tmp_path / "elsewhere.json", tmp_path / "project"
    outside.write_text("{}")
    project.mkdir()
    (project / ".mcp.json").symlink_to(outside)

    with pytest.raises(ConfigError, match="leads out of the project"):
        ClientFile(CURSOR, project / ".mcp.json", "shop", inside=project)


@pytest.mark.parametrize(
    "text", ["{", "[]", "null", '{"mcpServers": []}', '{"mcpServers": {"a": 1', "\x00", '{"a": 1}}', "[" * 100_000]
)
def test_a_file_that_cannot_be_understood_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(text)

    with pytest.raises(ConfigError, match=r"mcp\.json was left as it is, because"):
        ClientFile(CURSOR, path, "shop").add_entry(ENTRY)

    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_no_text_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(b"\xff\xfe{")

    with pytest.raises(ConfigError, match="not UTF-8"):
        ClientFile(CURSOR, path, "shop").add_entry(ENTRY)


def test_random_files_are_changed_only_where_they_should_be(tmp_path: Path) -> None:
    """Compare with what parsers say, on files with comments, commas and braces in every place."""
    generator = random.Random(17)
    path = tmp_path / "mcp.json"
    for _ in range(300):
        text = _write_object(generator, 0)
        path.write_text(text)
        before = parse(text)
        if not isinstance(before.get("mcpServers", {}), dict):
            continue
        file = ClientFile(CURSOR, path, "shop")
        file.add_entry(ENTRY)
        after = parse(path.read_text())
        assert after == {**before, "mcpServers": {**before.get("mcpServers", {}), "shop": ENTRY}}, text
        path.write_text(path.read_text() + "\n// edited")
        file.remove_entry()
        others = {key: each for key, each in before.get("mcpServers", {}).items() if key != "shop"}
        assert parse(path.read_text()) == {**before, "mcpServers": others}, text
        for each in tmp_path.glob("*.before-*"):
            each.unlink()


def _write_object(generator: random.Random, depth: int) -> str:
    def blank() -> str:
        return generator.choice(["", " ", "\n", "\n\t", " // a } , \n", '/* { " , */', "\r\n  "])

    def value() -> str:
        scalars = ["1", "-2.5e3", "true", "null", '"}"', '"//"', '"\\"{"', '"\\\\"']
        if depth < 3 and generator.random() < 0.5:
            return _write_object(generator, depth + 1)
        if depth < 3 and generator.random() < 0.3:
            return f"[{blank()}{value()}{blank()},{value()}{generator.choice(['', ','])}{blank()}]"
        return generator.choice(scalars)

    names = generator.sample(["mcpServers", "shop", "a", "b{", "c//"], generator.randint(0, 4))
    members = [f'{blank()}"{name}"{blank()}:{blank()}{value()}{blank()}' for name in names]
    comma = "," if members and generator.random() < 0.3 else ""
    return "{" + ",".join(members) + comma + blank() + "}"


@pytest.mark.parametrize(
    "text", ["", TOML, TOML.replace("\n", "\r\n"), 'mcp_servers.a.command = "x"\n', "[mcp_servers]\n", "# only this"]
)
def test_a_table_is_added_to_toml_and_taken_back(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode())
    before = tomllib.loads(text.replace("\r\n", "\n"))
    file = ClientFile(CODEX, path, "shop")

    file.add_entry(ENTRY)

    written = tomllib.loads(path.read_text())
    assert written == {**before, "mcp_servers": {**before.get("mcp_servers", {}), "shop": ENTRY}}
    assert not file.add_entry(ENTRY).is_changed
    assert file.remove_entry().is_restored
    assert path.read_bytes() == text.encode()


def test_an_edited_toml_file_loses_only_the_entry(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(TOML)
    file = ClientFile(CODEX, path, "shop")
    file.add_entry(ENTRY)
    path.write_text(path.read_text() + '[mcp_servers.shop.env]\nA = "1"\n\n# more\n[profiles]\n')

    file.remove_entry()

    assert tomllib.loads(path.read_text()) == {**tomllib.loads(TOML), "profiles": {}}
    assert "# more\n[profiles]" in path.read_text()


@pytest.mark.parametrize(
    "text",
    ["mcp_servers = {}\n", 'mcp_servers = { a = { command = "x" } }\n', "mcp_servers = 3\n", "a = [\n", "a = 1\na = 2"],
)
def test_toml_that_cannot_be_changed_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)

    with pytest.raises(ConfigError, match="was left as it is, because"):
        ClientFile(CODEX, path, "shop").add_entry(ENTRY)

    assert path.read_text() == text


@pytest.mark.parametrize("name", list(ClientName))
def test_no_entry_contains_a_token_and_each_is_recognized(name: ClientName) -> None:
    client = CLIENTS[name]
    program = build_program_entry(client, ["/opt/deputize", "mcp", "--project", "/shop"])
    assert read_entry(client, program).command == ("/opt/deputize", "mcp", "--project", "/shop")
    assert read_entry(client, program).is_ours
    if client.token_reference is not None:
        http = read_entry(client, build_http_entry(client, "https://gateway.example.com"))
        assert (http.url, http.is_ours) == ("https://gateway.example.com/mcp", True)
        assert "DEPUTIZE_TOKEN" in http.token_reference
    others: list[Any] = [
        {"command": "npx", "args": ["mcp"]},
        {"url": "https://a.example/mcp"},
        [],
        None,
        {"headers": 3},
    ]
    for other in others:
        assert not read_entry(client, other).is_ours


def test_files_are_where_the_clients_publish_that_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", "/home/ana")
    monkeypatch.setattr("sys.platform", "linux")
    places = {
        (name.value, scope.value): str(path)
        for name, client in CLIENTS.items()
        for scope in ConfigScope
        if (path := locate_client_file(client, scope, Path("/shop"))) is not None
    }
    assert places == {
        ("claude-code", "project"): "/shop/.mcp.json",
        ("claude-code", "user"): "/home/ana/.claude.json",
        ("claude-desktop", "user"): "/home/ana/.config/Claude/claude_desktop_config.json",
        ("cursor", "project"): "/shop/.cursor/mcp.json",
        ("cursor", "user"): "/home/ana/.cursor/mcp.json",
        ("vscode", "project"): "/shop/.vscode/mcp.json",
        ("vscode", "user"): "/home/ana/.config/Code/User/mcp.json",
        ("gemini-cli", "project"): "/shop/.gemini/settings.json",
        ("gemini-cli", "user"): "/home/ana/.gemini/settings.json",
        ("codex", "project"): "/shop/.codex/config.toml",
        ("codex", "user"): "/home/ana/.codex/config.toml",
    }
    monkeypatch.setattr("sys.platform", "darwin")
    desktop = locate_client_file(CLIENTS[ClientName.CLAUDE_DESKTOP], ConfigScope.USER, tmp_path)
    assert str(desktop) == "/home/ana/Library/Application Support/Claude/claude_desktop_config.json"


def test_a_large_file_takes_a_moment(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(
        '{"a": [' + ",".join('{"b": "}"} /* , */' for _ in range(50_000)) + "]" + "," * 0 + "}" + " " * 10**6
    )
    started_at = time.monotonic()

    ClientFile(CURSOR, path, "shop").add_entry(ENTRY)

    assert time.monotonic() - started_at < 30
