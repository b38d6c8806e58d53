"""A second import changes in the settings what the client's file changed, and nothing that a person added."""

import tomllib
from typing import Any

import pytest

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.client_configs import ImportedServer
from deputize.interfaces.cli.local.server_changes import apply_changes, compare_server

SETTINGS = """# mine
[[servers]]
name = "web"
url = "https://web.example/mcp"

[[servers]]   # the files
name = "files"
command = ["/bin/files", "-a"]  # two words
sha256 = "%s"
env = { "LOG_LEVEL" = "info", "MINE" = "1" }
reads = ["get_*"]

# about facts
[servers.facts]
path = "arguments.path"

[tools]
tenant = "acme"
""" % ("0" * 64)


def change(name: str, table: dict[str, Any]) -> dict[str, Any]:
    server = ImportedServer(name=name, original_name=name, table={"name": name, **table})
    settings = next(each for each in tomllib.loads(SETTINGS)["servers"] if each["name"] == name)
    found = compare_server(server, settings)
    text = apply_changes(SETTINGS, [] if found is None else [found])
    document = tomllib.loads(text)
    assert {**document, "servers": []} == {**tomllib.loads(SETTINGS), "servers": []}
    assert [line for line in SETTINGS.splitlines() if line.startswith("#")] == [
        line for line in text.splitlines() if line.startswith("#")
    ]
    assert [each["name"] for each in document["servers"]] == ["web", "files"]
    others = [each for each in document["servers"] if each["name"] != name]
    assert others == [each for each in tomllib.loads(SETTINGS)["servers"] if each["name"] != name]
    return dict(next(each for each in document["servers"] if each["name"] == name))


def test_what_did_not_change_is_left_alone() -> None:
    settings = tomllib.loads(SETTINGS)["servers"][1]
    same = {"sandbox": False, "command": ["/bin/files", "-a"], "env": {"LOG_LEVEL": "info"}, "sha256": "1" * 64}

    assert compare_server(ImportedServer(name="files", original_name="files", table=same), settings) is None
    assert change("files", same) == settings


def test_a_changed_command_gets_new_pins() -> None:
    table = change("files", {"command": ["/bin/other"], "sha256": "2" * 64, "env": {"LOG_LEVEL": "debug"}})

    assert (table["command"], table["sha256"]) == (["/bin/other"], "2" * 64)
    assert table["env"] == {"LOG_LEVEL": "debug", "MINE": "1"}
    assert (table["reads"], table["facts"]) == (["get_*"], {"path": "arguments.path"})
    # A pin of the program before must not stay with another one.
    assert "sha256" not in change("files", {"command": ["npx", "other"]})


def test_a_server_that_moves_from_a_program_to_a_url_loses_the_program() -> None:
    table = change("files", {"url": "https://files.example/mcp"})

    assert table == {
        "name": "files",
        "url": "https://files.example/mcp",
        "reads": ["get_*"],
        "facts": {"path": "arguments.path"},
    }
    assert change("web", {"command": ["/bin/web"]}) == {"name": "web", "command": ["/bin/web"]}


@pytest.mark.parametrize(
    "text",
    [
        SETTINGS.replace('["/bin/files", "-a"]', '[\n  "/bin/files",\n  "-a"]'),
        SETTINGS.replace('name = "files"', "name = 'files'"),
        'servers = [{ name = "files", command = ["/bin/files", "-a"] }]\n',
        '[[servers]]\nname = "files"\ncommand = ["x"]\n[servers.env]\nA = "1"\n',
    ],
)
def test_settings_that_cannot_be_changed_as_text_are_left_as_they_are(text: str) -> None:
    settings = next(each for each in tomllib.loads(text)["servers"] if each["name"] == "files")
    table = {"name": "files", "command": ["/bin/new"], "env": {"LOG_LEVEL": "debug"}}
    found = compare_server(ImportedServer(name="files", original_name="files", table=table), settings)
    assert found is not None

    with pytest.raises(ConfigError, match="cannot be changed safely"):
        apply_changes(text, [found])
