"""Files of MCP clients become tables of servers, without anything secret; what cannot be taken over says why."""

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.config_error import ConfigError
from deputize.core.settings import McpServerSettings
from deputize.interfaces.cli.local.client_configs import ImportedServer, SkippedServer, read_servers
from deputize.interfaces.cli.local.settings_text import render_table


def read_config(servers: dict[str, Any], key: str = "mcpServers", **more: Any) -> list[ImportedServer | SkippedServer]:
    text = json.dumps({key: servers})
    said: dict[str, Any] = {
        "folder": ".",
        "existing_names": frozenset(),
        "exists": lambda _: False,
    }
    return list(read_servers(text, **{**said, **more}))


def read_one_server(server: dict[str, Any], **more: Any) -> ImportedServer:
    (found,) = read_config({"shop": server}, **more)
    assert isinstance(found, ImportedServer), found
    return found


def skip_reason(server: dict[str, Any]) -> str:
    (found,) = read_config({"shop": server})
    assert isinstance(found, SkippedServer), found
    return found.reason


def test_commands_and_urls_are_imported_from_either_kind_of_file() -> None:
    program = {
        "command": "npx",
        "args": ["-y", "@acme/orders"],
        "env": {"LOG_LEVEL": "debug", "TZ": "UTC"},
    }
    for key in ("mcpServers", "servers"):
        found = read_config(
            {"Orders Desk": program, "web": {"type": "http", "url": "https://${REGION:-eu}.example/mcp"}}, key
        )
        assert [each.table for each in found if isinstance(each, ImportedServer)] == [
            {
                "name": "orders_desk",
                "command": ["npx", "-y", "@acme/orders"],
                "sandbox": False,
                "env": {"LOG_LEVEL": "debug", "TZ": "UTC"},
            },
            {"name": "web", "url": "https://eu.example/mcp"},
        ]


def test_a_secret_is_named_for_the_vault_and_its_value_is_not_copied() -> None:
    for value in ("${GITHUB_TOKEN}", "ghp_written_out_in_full", "${input:github}"):
        made = read_one_server({"command": "npx", "env": {"GITHUB_TOKEN": value, "MODE": "x"}})
        assert made.table == {
            "name": "shop", "command": ["npx"], "sandbox": False, "env": {"MODE": "x"}, "credential": "vault",
            "secret": "shop/github-token", "secret_env": "GITHUB_TOKEN",
        }  # fmt: skip
        assert made.secret == "shop/github-token"


@pytest.mark.requirement("GOV-2")
def test_no_value_of_env_is_copied_unless_its_variable_is_known_to_be_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSN", "from-this-process")
    for value in ("${DSN}", "${DSN:-fallback}", "db.internal:5432"):
        made = read_one_server({"command": "x", "env": {"DSN": value, "LOG_LEVEL": "info"}})
        assert (made.secret, made.table["secret_env"], made.table["env"]) == ("shop/dsn", "DSN", {"LOG_LEVEL": "info"})
    several = read_one_server({"command": "x", "env": {"DSN": "a", "TENANT": "b", "TZ": "${TZ}"}})
    assert (several.secret, several.table.get("env")) == (None, None)
    assert [note.split()[2] for note in several.notes] == ["DSN", "TENANT", "TZ"]
    disguised = read_one_server({"command": "x", "env": {"LOG_LEVEL": "ghp_0123456789abcdef"}})
    assert (disguised.secret, disguised.table.get("env")) == ("shop/log-level", None)


def test_a_bearer_header_is_the_vaults_and_another_one_keeps_its_name() -> None:
    made = read_one_server(
        {"url": "https://a.example/mcp", "headers": {"Authorization": "Bearer ${TOKEN}", "X-Team": "blue"}}
    )
    assert made.table == {
        "name": "shop", "url": "https://a.example/mcp", "credential": "vault", "secret": "shop/authorization",
    }  # fmt: skip
    assert "the header X-Team is not supported and was not imported" in made.notes
    other = read_one_server({"url": "https://a.example/mcp", "headers": {"X-Api-Key": "abc"}})
    assert (other.table["header"], other.table["secret"]) == ("X-Api-Key", "shop/x-api-key")


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"type": "sse", "url": "https://a.example/sse"}, "SSE transport of 2024"),
        ({"command": "x", "disabled": True}, "disabled in this file"),
        ({}, "neither a command nor a url"),
        ({"command": "x", "args": ["--api-key", "abc"]}, "args contain a secret"),
        ({"command": "x", "args": ["--token=abc"]}, "args contain a secret"),
        ({"command": "x", "args": ["postgres://me:pw@db/x"]}, "args contain a secret"),
        ({"command": "x", "args": ["${input:password}"]}, "must not be in a file"),
        ({"command": "x", "args": ["${HOME}"]}, "uses the variable HOME"),
        ({"command": "x", "args": ["${A:---token=abc}"]}, "args contain a secret"),
        ({"command": "x", "args": ["${A:-postgres://me:pw@db/x}"]}, "args contain a secret"),
        ({"command": "x", "args": ["ghp_abcdefgh"]}, "args contain a secret"),
        ({"url": "https://${REGION}.example/mcp"}, "uses the variable REGION"),
        ({"url": "https://a.example/${DATABASE_URL}"}, "uses the variable DATABASE_URL"),
        ({"url": "https://${A:-me:pw@a.example}/mcp"}, "url contains a credential"),
        ({"url": "https://a.example/s/1f3870be274f6c49b3e31a0c6728957f/mcp"}, "url contains a credential"),
        ({"command": "x", "env": {"A_KEY": "a", "B_KEY": "b"}}, "several secrets"),
        ({"url": "https://me:pw@a.example/mcp"}, "url contains a credential"),
        ({"url": "https://a.example/mcp?api_key=abc"}, "url contains a credential"),
        ({"url": "https://a.example/mcp", "headers": {"Authorization": "Basic abc"}}, "not a bearer token"),
        ({"url": "htp:/x"}, "not an http or https URL"),
        ({"url": "https://a.example/\x1b[2J"}, "not an http or https URL"),
        ({"command": ["x"]}, "must be strings"),
        ({"command": "x", "args": "y"}, "must be a list"),
    ],
)
def test_a_server_that_cannot_be_imported_is_skipped_with_the_reason(declared: dict[str, Any], said: str) -> None:
    assert said in skip_reason(declared)


@pytest.mark.requirement("GOV-2")
@pytest.mark.parametrize(
    ("args", "value"),
    [
        (["run", "-e", "DB_PASSWORD=hunter2", "acme/db"], "hunter2"),
        (["run", "--env=GITHUB_PAT=hunter2"], "hunter2"),
        (["--header", "Authorization: Bearer 123e4567-e89b-12d3-a456-426614174000"], "123e4567"),
        (["--header", "X-Api-Key:hunter2"], "hunter2"),
        (["--auth-header", "bearer hunter2"], "hunter2"),
        (["Server=db;Password=hunter2"], "hunter2"),
        (["--dsn", "host=db password = hunter2"], "hunter2"),
        (["--config", '{"token": "hunter2"}'], "hunter2"),
        (["${DB_TOKEN:-hunter2}"], "hunter2"),
    ],
)
def test_a_secret_behind_its_name_is_neither_imported_nor_shown(args: list[str], value: str) -> None:
    reason = skip_reason({"command": "docker", "args": args})
    assert "secret" in reason
    assert value not in reason


@pytest.mark.parametrize(
    "argument",
    [
        "DB_PASSWORD",
        "http://keycloak:8080/",
        "acme/auth-proxy:1.2",
        "author=ana",
        "--auth=none",
        "NODE_ENV=x",
        "PWD=/a",
    ],
)
def test_an_argument_without_a_secret_is_imported(argument: str) -> None:
    assert read_one_server({"command": "x", "args": ["-e", argument]}).table["command"] == ["x", "-e", argument]


@pytest.mark.parametrize("part", ["key", "token-", "password ", "bearer", "authorization", "x-"])
def test_long_arguments_take_time_in_proportion(part: str) -> None:
    """A search from every name to the end of the text would take minutes."""
    assert read_one_server({"command": "x", "args": [f"{part * 40_000}{' ' * 40_000}"]}).secret is None


def test_a_name_in_use_is_marked_and_one_that_the_file_repeats_is_skipped() -> None:
    found = read_config({"shop": {"command": "x"}, "Shop": {"command": "y"}}, existing_names=frozenset({"shop"}))
    reasons = [each.reason for each in found if isinstance(each, SkippedServer)]
    assert reasons == ["the file has another server that would be named shop; rename one of them"]
    assert [each.is_known for each in found if isinstance(each, ImportedServer)] == [True]


def test_a_gateway_does_not_import_itself() -> None:
    own = {"command": "/opt/bin/deputize", "args": ["mcp", "--project", "/shop"]}
    assert "which deputize connect wrote" in skip_reason(own)


def test_a_program_beside_the_file_is_started_there_and_others_in_a_folder_of_their_own() -> None:
    beside = read_one_server({"command": "python", "args": ["orders.py"]}, exists=lambda each: each == "orders.py")
    assert beside.table["folder"] == "."
    assert "folder" not in read_one_server({"command": "npx", "args": ["@acme/orders"]}).table
    assert read_one_server({"command": "x", "cwd": "${workspaceFolder}/sub"}).table["folder"] == "./sub"


def test_comments_and_commas_too_many_are_no_mistake_and_texts_keep_theirs() -> None:
    text = """{
        // what VS Code writes
        "servers": { "a": { "command": "x", "args": ["//no", "/*no*/", ",]", ], /* no more */ }, },
    }"""
    (found,) = read_servers(text, folder=".", existing_names=frozenset(), exists=lambda _: False)
    assert isinstance(found, ImportedServer)
    assert found.table["command"] == ["x", "//no", "/*no*/", ",]"]


def test_many_commas_and_comments_take_time_in_proportion() -> None:
    """A search from every comma to the end of the text would take minutes."""
    numbers = "1, /* , */ " * 80_000
    text = f'{{"servers": {{"a": {{"command": "x", "timeout": [{numbers}]}}}}}}'
    (found,) = read_servers(text, folder=".", existing_names=frozenset(), exists=lambda _: False)
    assert isinstance(found, ImportedServer)


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "[fd00:ec2::254]", "2852039166", "0xa9fea9fe", "[::ffff:a9fe:a9fe]"]
)
def test_the_address_of_a_metadata_service_is_not_imported_in_any_notation(host: str) -> None:
    assert "metadata" in skip_reason({"url": f"http://{host}/latest"})
    assert read_one_server({"url": "http://10.0.0.7/mcp"}).table["url"] == "http://10.0.0.7/mcp"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"mcpServers": []}', '{"mcpServers": {', "nothing"])
def test_a_client_file_without_servers_is_reported(text: str) -> None:
    with pytest.raises(ConfigError, match="The file"):
        list(read_servers(text, folder=".", existing_names=frozenset(), exists=lambda _: False))


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="$"), max_size=20)


@given(
    command=TEXTS.filter(bool), args=st.lists(TEXTS, max_size=4),
    env=st.dictionaries(TEXTS.filter(bool), TEXTS, max_size=4), called=TEXTS,
)  # fmt: skip
def test_every_imported_server_is_valid_toml_and_valid_settings(
    command: str, args: list[str], env: dict[str, str], called: str
) -> None:
    for found in read_config({called: {"command": command, "args": args, "env": env}}):
        if isinstance(found, ImportedServer):
            (written,) = tomllib.loads(render_table("servers", found.table))["servers"]
            assert written == found.table
            McpServerSettings.model_validate(written)
