"""servers.json lets policies be tested without a gateway, and says when it cannot."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.contract.contract import Contract, Effects
from deputize.core.mcp.servers import Definition
from deputize.core.settings import Settings
from deputize.interfaces.cli.local.exported_servers import SERVERS_FILE, load_server_contracts, write_servers_file
from deputize.operations.admin.policy.rehearsal import collect_fact_types

pytestmark = pytest.mark.requirement("NEW-4")
NOW = datetime(2026, 11, 17, tzinfo=UTC)
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "size": {"type": "integer"}}}


def make_clock(at: datetime = NOW) -> Clock:
    return Clock(epoch_ms=lambda: int(at.timestamp() * 1000))


def make_tool(name: str, **more: Any) -> dict[str, Any]:
    definition = Definition.from_declaration({"name": name, "description": "Does something.", "inputSchema": SCHEMA})
    return {
        "item": definition.item, "digest": definition.digest, "tool": f"files.{name}", "version": "1.1.0",
        "definition": definition.declaration, "confirmed_effects": None, **more,
    }  # fmt: skip


def make_settings(**more: Any) -> Settings:
    server = {"name": "files", "url": "http://files.example/mcp", **more}
    return Settings.model_validate({"servers": [server]})


def write_tools(folder: Path, *tools: dict[str, Any], name: str = "files") -> None:
    address = "http://files.example/mcp"
    write_servers_file(
        folder, [{"name": name, "address": address, "tools": tools, "status": "connected"}], make_clock()
    )


def load(folder: Path, settings: Settings, at: datetime = NOW) -> tuple[dict[str, Contract], tuple[str, ...]]:
    loaded = load_server_contracts(settings, folder, (), make_clock(at))
    return {each.full_name: each for each in loaded.contracts}, loaded.warnings


def test_contracts_follow_the_current_settings_and_what_was_confirmed(tmp_path: Path) -> None:
    write_tools(
        tmp_path, make_tool("list_files", confirmed_effects="read"), make_tool("write_file"), make_tool("get_file")
    )
    contracts, warnings = load(
        tmp_path, make_settings(reads=["get_*"], tools=["*_file*"], facts={"path": "arguments.path"})
    )
    assert warnings == ()
    assert {name: each.effects for name, each in contracts.items()} == {
        "files.list_files": Effects.READ, "files.write_file": Effects.DESTRUCTIVE, "files.get_file": Effects.READ,
    }  # fmt: skip
    assert collect_fact_types(contracts.values()) == {"path": "String"}
    assert contracts["files.list_files"].version == "1.1.0"
    narrow, _ = load(tmp_path, make_settings(tools=["get_*"]))
    assert list(narrow) == ["files.get_file"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [SERVERS_FILE]


def test_a_missing_or_stale_file_is_said(tmp_path: Path) -> None:
    assert load(tmp_path, Settings()) == ({}, ())
    contracts, warnings = load(tmp_path, make_settings())
    assert contracts == {}
    assert warnings[0].startswith("servers.json is missing, so the tools of files are not known here: write it with")
    write_tools(tmp_path, make_tool("get_file"), name="others")
    assert "it does not know the server files" in load(tmp_path, make_settings())[1][0]
    write_tools(tmp_path, make_tool("get_file"))
    assert load(tmp_path, make_settings())[1] == ()
    assert "another address for files" in load(tmp_path, make_settings(url="http://new.example/mcp"))[1][0]
    contracts, warnings = load(tmp_path, make_settings(), at=NOW + timedelta(days=31))
    assert (len(contracts), "it was written on 2026-11-17" in warnings[0]) == (1, True)


def test_a_running_gateway_is_asked_for_what_the_file_does_not_know(tmp_path: Path) -> None:
    live = [{"name": "files", "address": "http://files.example/mcp", "tools": [make_tool("get_file")]}]
    settings = make_settings()
    for file_server in (None, "others"):
        if file_server is not None:
            write_tools(tmp_path, make_tool("get_file"), name=file_server)
        without = load_server_contracts(settings, tmp_path, (), make_clock())
        loaded = load_server_contracts(settings, tmp_path, (), make_clock(), lambda: live)
        assert (without.contracts, without.unseen_servers) == ((), frozenset({"files"}))
        assert ([each.full_name for each in loaded.contracts], loaded.warnings) == (["files.get_file"], ())
        assert not loaded.unseen_servers
    unseen = load_server_contracts(settings, tmp_path, (), make_clock(), lambda: [{**live[0], "tools": []}])
    assert unseen.unseen_servers == {"files"}


def test_an_edited_definition_is_not_believed(tmp_path: Path) -> None:
    tool = make_tool("get_file")
    for edited in (
        {**tool, "definition": {**tool["definition"], "description": "Does something else."}},
        {**tool, "item": "tool:other"},
        {**tool, "item": "resource:a"},
        {**tool, "definition": {}},
    ):
        write_tools(tmp_path, edited)
        contracts, warnings = load(tmp_path, make_settings())
        assert (contracts, len(warnings)) == ({}, 1)
        assert warnings[0].startswith("files.get_file is ignored: ")


def test_facts_of_two_types_are_said(tmp_path: Path) -> None:
    write_tools(tmp_path, make_tool("get_file"))
    own = Contract.model_validate(
        {**load(tmp_path, make_settings(facts={"path": "arguments.path"}))[0]["files.get_file"].model_dump(mode="json")}
    )
    settings = make_settings(facts={"path": {"argument": "arguments.size", "type": "integer"}})
    loaded = load_server_contracts(settings, tmp_path, [own], make_clock())
    assert loaded.contracts == ()
    assert "its fact path is a Long, but another tool declares it as a String" in loaded.warnings[0]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": 1}', json.dumps({"format": 2, "exported_at": NOW.isoformat(), "servers": []})]
)
def test_a_file_that_is_not_an_export_is_refused_with_the_way_out(tmp_path: Path, text: str) -> None:
    (tmp_path / SERVERS_FILE).write_text(text)
    with pytest.raises(ConfigError, match="write it again with deputize servers export"):
        load(tmp_path, make_settings())
