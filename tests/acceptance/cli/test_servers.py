"""`deputize servers` and `deputize import` as a person uses them, with a real MCP server behind the gateway."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli.shell import Running, deputize, make_project
from tests.integration.servers.upstream import Upstream, definition, upstream

pytestmark = pytest.mark.requirement("REG-2")


@pytest.fixture(scope="module")
def orders() -> Iterator[Upstream]:
    with upstream() as server:
        yield server


@pytest.fixture(scope="module")
def desk_with_server(desk: Path, orders: Upstream) -> Iterator[Path]:
    """A project whose settings name the server, and its running gateway."""
    folder = make_project(desk / "served")
    with (folder / "deputize.toml").open("a") as file:
        file.write(f'\n[[servers]]\nname = "orders"\nurl = "{orders.url}"\nreads = ["get_*"]\nwrites = ["cancel_*"]\n')
        # The gateway looks by itself all the time: whatever is seen here holds whoever looked first.
        file.write('slow = ["*"]\nstart_seconds = 60\nprobe_seconds = 1\n')
    with Running("dev", folder=folder) as dev:
        dev.until("▶")
        yield folder
        assert dev.interrupt() == 0


def test_a_server_is_seen_tested_and_its_change_reviewed(desk_with_server: Path, orders: Upstream) -> None:
    shop = desk_with_server
    tested = deputize("servers", "test", "orders", folder=shop)
    assert tested.code == 0, tested.said
    listed = deputize("servers", "list", folder=shop).out
    assert "connected" in listed
    assert "Orders" in listed
    shown = deputize("servers", "show", "orders", folder=shop).out
    assert "orders.cancel_order 1.0.0" in shown
    assert deputize("servers", "show", "orders", "--json", folder=shop).json["tools"] == 2
    assert deputize("servers", "review", "orders", folder=shop).out == "Nothing waits for a review.\n"

    orders.tools = [
        definition("get_order"),
        definition("cancel_order", "Cancels \u202eit all."),
        definition("list_orders"),
    ]
    assert "2 changes to review" in deputize("servers", "test", "orders", folder=shop).err
    refused = deputize("call", "orders.cancel_order", "name=Ana", folder=shop)
    assert (refused.code, "(E3109)" in refused.err) == (1, True), refused.said
    review = deputize("servers", "review", "orders", folder=shop).out
    assert "\u202e" not in review
    assert '+ "Cancels' in review
    assert "hidden_text at /description" in review
    assert len(deputize("servers", "review", "orders", "--json", folder=shop).json["changes"]) == 2

    accepted = deputize("servers", "review", "orders", "--accept", "list_*", folder=shop)
    assert accepted.out == "✓ tool:list_orders accepted: orders.list_orders@1.0.0\n"
    rejected = deputize("servers", "review", "orders", "--reject", "cancel_order", folder=shop)
    assert (rejected.code, "--reason" in rejected.err) == (2, True)
    said = ("--reject", "tool:cancel_order", "--reason", "it hides something", "--json")
    assert deputize("servers", "review", "orders", *said, folder=shop).json["decided"][0]["decision"] == "reject"
    assert deputize("servers", "review", "orders", folder=shop).out == "Nothing waits for a review.\n"
    assert deputize("call", "orders.cancel_order", "name=Ana", folder=shop).code == 1
    orders.tools = [definition("get_order"), definition("cancel_order"), definition("list_orders")]
    assert deputize("servers", "test", "orders", folder=shop).code == 0
    assert deputize("call", "orders.cancel_order", "name=Ana", folder=shop).code == 0


def test_mistakes_about_servers_are_told_in_sentences(desk_with_server: Path) -> None:
    shop = desk_with_server
    unknown = deputize("servers", "show", "parcels", folder=shop)
    assert (unknown.code, "There is no such server (E3110)" in unknown.err) == (1, True)
    nothing = deputize("servers", "review", "orders", "--accept", "get_order", folder=shop)
    assert (nothing.code, "No change of get_order waits" in nothing.err) == (2, True)
    assert deputize("servers", "review", "orders", "--accept", "x", "--json", folder=shop).json["error"]["message"]


def test_a_server_that_is_away_is_told_with_the_reason(desk_with_server: Path, orders: Upstream) -> None:
    orders.failing = 503
    try:
        away = deputize("servers", "test", "orders", folder=desk_with_server)
        assert (away.code, "503" in away.err) == (1, True)
        assert "unavailable" in deputize("servers", "list", folder=desk_with_server).out
    finally:
        orders.failing = 0
        deputize("servers", "test", "orders", folder=desk_with_server)


def test_servers_of_another_client_are_taken_over_without_their_keys(desk: Path) -> None:
    folder = make_project(desk / "taking")
    before = (folder / "deputize.toml").read_text()
    servers = {
        "GitHub": {"command": "npx", "args": ["-y", "github-mcp"], "env": {"GITHUB_TOKEN": "ghp_of_ana"}},
        "old": {"type": "sse", "url": "https://old.example/sse"},
        "web": {"url": "https://web.example/mcp"},
    }
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    tried = deputize("import", ".mcp.json", "--dry-run", folder=folder)
    assert "[[servers]]" in tried.out
    assert (folder / "deputize.toml").read_text() == before

    done = deputize("import", ".mcp.json", folder=folder)
    assert done.code == 0, done.said
    assert "its credential: deputize secrets set github/github-token" in done.out
    assert "old was left out" in done.err
    assert "deputize.toml has 2 servers more; what it was before is in deputize.toml.1.bak" in done.out
    assert "ghp_of_ana" not in (folder / "deputize.toml").read_text() + done.said
    assert (folder / "deputize.toml.1.bak").read_text() == before
    written = tomllib.loads((folder / "deputize.toml").read_text())["servers"]
    assert [each["name"] for each in written] == ["github", "web"]
    assert written[0]["secret_env"] == "GITHUB_TOKEN"

    again = deputize("import", ".mcp.json", "--json", folder=folder).json
    assert (again["taken"], again["written"], len(again["left_out"])) == ([], None, 3)
    # What was written are settings that every other command reads.
    assert deputize("policy", "check", folder=folder).code == 0


def test_files_that_cannot_be_taken_over_are_told_in_a_sentence(desk: Path) -> None:
    folder = make_project(desk / "mistaken")
    (folder / "bad.json").write_text("{")
    for file, said in (("none.json", "cannot be read"), ("bad.json", "not JSON"), (".", "cannot be read")):
        done = deputize("import", file, folder=folder)
        assert (done.code, said in done.err) == (2, True), done.said
    assert deputize("import", "bad.json", folder=desk).code == 2
