"""Files of MCP clients become tables of servers, without anything secret; what cannot be taken over says why."""

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.mistakes import Misconfigured
from deputize.core.settings import McpServer
from deputize.doors.cli.client_files import LeftOut, Taken, read_servers
from deputize.doors.cli.importing import _table

VARIABLES = {"REGION": "eu", "GITHUB_TOKEN": "ghp_never_written_down"}


def read(servers: dict[str, Any], key: str = "mcpServers", **more: Any) -> list[Taken | LeftOut]:
    text = json.dumps({key: servers})
    said: dict[str, Any] = {"folder": ".", "variables": VARIABLES, "taken": frozenset(), "exists": lambda _: False}
    return list(read_servers(text, **{**said, **more}))


def one(declared: dict[str, Any], **more: Any) -> Taken:
    (found,) = read({"shop": declared}, **more)
    assert isinstance(found, Taken), found
    return found


def why(declared: dict[str, Any]) -> str:
    (found,) = read({"shop": declared})
    assert isinstance(found, LeftOut), found
    return found.why


def test_programs_and_addresses_are_taken_over_from_either_kind_of_file() -> None:
    program = {
        "command": "npx",
        "args": ["-y", "@acme/orders"],
        "env": {"REGION": "${REGION}", "MODE": "${MODE:-fast}"},
    }
    for key in ("mcpServers", "servers"):
        found = read({"Orders Desk": program, "web": {"type": "http", "url": "https://${REGION}.example/mcp"}}, key)
        assert [each.table for each in found if isinstance(each, Taken)] == [
            {"name": "orders_desk", "command": ["npx", "-y", "@acme/orders"], "env": {"REGION": "eu", "MODE": "fast"}},
            {"name": "web", "url": "https://eu.example/mcp"},
        ]


def test_a_key_is_named_for_the_vault_and_its_value_is_taken_nowhere() -> None:
    for value in ("${GITHUB_TOKEN}", "ghp_written_out_in_full", "${input:github}"):
        made = one({"command": "npx", "env": {"GITHUB_TOKEN": value, "MODE": "x"}})
        assert made.table == {
            "name": "shop", "command": ["npx"], "env": {"MODE": "x"}, "credential": "vault",
            "secret": "shop/github-token", "secret_env": "GITHUB_TOKEN",
        }  # fmt: skip
        assert made.secret == "shop/github-token"


def test_a_bearer_header_is_the_vaults_and_another_one_keeps_its_name() -> None:
    made = one({"url": "https://a.example/mcp", "headers": {"Authorization": "Bearer ${TOKEN}", "X-Team": "blue"}})
    assert made.table == {
        "name": "shop", "url": "https://a.example/mcp", "credential": "vault", "secret": "shop/authorization",
    }  # fmt: skip
    assert "the header X-Team was not taken over" in made.notes
    other = one({"url": "https://a.example/mcp", "headers": {"X-Api-Key": "abc"}})
    assert (other.table["header"], other.table["secret"]) == ("X-Api-Key", "shop/x-api-key")


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"type": "sse", "url": "https://a.example/sse"}, "transport of 2024"),
        ({"command": "x", "disabled": True}, "switched off"),
        ({}, "neither a command nor a url"),
        ({"command": "x", "args": ["--api-key", "abc"]}, "arguments hold a secret"),
        ({"command": "x", "args": ["--token=abc"]}, "arguments hold a secret"),
        ({"command": "x", "args": ["postgres://me:pw@db/x"]}, "arguments hold a secret"),
        ({"command": "x", "args": ["${input:password}"]}, "must not stand in a file"),
        ({"command": "x", "args": ["${NOT_SET}"]}, "NOT_SET, which is not set here"),
        ({"command": "x", "env": {"A_KEY": "a", "B_KEY": "b"}}, "several secrets"),
        ({"url": "https://me:pw@a.example/mcp"}, "url holds a credential"),
        ({"url": "https://a.example/mcp?api_key=abc"}, "url holds a credential"),
        ({"url": "https://a.example/mcp", "headers": {"Authorization": "Basic abc"}}, "no bearer token"),
        ({"url": "htp:/x"}, "no http or https address"),
        ({"url": "https://a.example/\x1b[2J"}, "no http or https address"),
        ({"command": ["x"]}, "not texts"),
        ({"command": "x", "args": "y"}, "not a list"),
    ],
)
def test_what_cannot_be_taken_over_is_left_out_and_says_why(declared: dict[str, Any], said: str) -> None:
    assert said in why(declared)


def test_a_name_that_is_in_use_is_left_alone() -> None:
    found = read({"shop": {"command": "x"}, "Shop": {"command": "y"}}, taken=frozenset({"shop"}))
    assert [each.why for each in found if isinstance(each, LeftOut)] == ["a server shop is there already"] * 2


def test_a_program_beside_the_file_is_started_there_and_others_in_a_folder_of_their_own() -> None:
    beside = one({"command": "python", "args": ["orders.py"]}, exists=lambda each: each == "orders.py")
    assert beside.table["folder"] == "."
    assert "folder" not in one({"command": "npx", "args": ["@acme/orders"]}).table
    assert one({"command": "x", "cwd": "${workspaceFolder}/sub"}).table["folder"] == "./sub"


def test_comments_and_commas_too_many_are_no_mistake_and_texts_keep_theirs() -> None:
    text = """{
        // what VS Code writes
        "servers": { "a": { "command": "x", "args": ["//no", "/*no*/", ",]", ], /* no more */ }, },
    }"""
    (found,) = read_servers(text, folder=".", variables={}, taken=frozenset(), exists=lambda _: False)
    assert isinstance(found, Taken)
    assert found.table["command"] == ["x", "//no", "/*no*/", ",]"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"mcpServers": []}', '{"mcpServers": {', "nothing"])
def test_a_file_without_servers_is_told_in_a_sentence(text: str) -> None:
    with pytest.raises(Misconfigured, match="The file"):
        list(read_servers(text, folder=".", variables={}, taken=frozenset(), exists=lambda _: False))


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="$"), max_size=20)


@given(
    command=TEXTS.filter(bool), args=st.lists(TEXTS, max_size=4),
    env=st.dictionaries(TEXTS.filter(bool), TEXTS, max_size=4), called=TEXTS,
)  # fmt: skip
def test_whatever_is_taken_over_is_toml_that_says_the_same_and_a_server_of_ours(
    command: str, args: list[str], env: dict[str, str], called: str
) -> None:
    for found in read({called: {"command": command, "args": args, "env": env}}):
        if isinstance(found, Taken):
            (written,) = tomllib.loads(_table(found.table))["servers"]
            assert written == found.table
            McpServer.model_validate(written)
