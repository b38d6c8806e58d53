"""Effects of servers' tools: strict until an operator confirms them, for exactly the definition they saw."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.mcp_servers.upstream import Upstream, make_definition, run_upstream
from tests.support.upstream_gateway import NAME, UpstreamGateway, open_upstream_gateway, server_settings

pytestmark = [pytest.mark.requirement("REG-2"), pytest.mark.asyncio(loop_scope="session")]
LIST = f"{NAME}.list_orders"
PATH_SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string", "default": "/srv/a"}, "text": {"type": "string"}},
    "required": [],
}


@pytest.fixture
def orders_server() -> Iterator[Upstream]:
    with run_upstream() as server:
        server.tools.append(make_definition("list_orders", annotations={"readOnlyHint": True}))
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def upstream_gateway(
    fresh_database: str, tmp_path: Path, orders_server: Upstream
) -> AsyncIterator[UpstreamGateway]:
    async with open_upstream_gateway(fresh_database, tmp_path, orders_server) as made:
        yield made


async def fetch_tools(here: UpstreamGateway, token: str = "") -> dict[str, dict[str, Any]]:
    answer = await here.gateway.get(f"/v1/servers/{NAME}/tools", token=token or here.admin_token)
    assert answer.status_code == 200, answer.text
    return {each["name"]: each for each in answer.json()["tools"]}


async def confirm(here: UpstreamGateway, tool: str, effects: str, *, digest: str = "", token: str = "") -> Any:
    digest = digest or (await fetch_tools(here))[tool]["digest"]
    body = {"tools": [{"tool": tool, "digest": digest, "effects": effects}]}
    return await here.gateway.post(f"/v1/servers/{NAME}/effects", body, token=token or here.admin_token)


async def test_the_strict_reading_holds_until_effects_are_confirmed(upstream_gateway: UpstreamGateway) -> None:
    here = upstream_gateway
    tools = await fetch_tools(here)
    assert [tools["list_orders"][each] for each in ("effects", "source", "proposed_effects", "confirmed_effects")] == [
        "destructive", "unconfirmed", "read", None,
    ]  # fmt: skip
    assert (tools["get_order"]["effects"], tools["get_order"]["source"]) == ("read", "settings")

    confirmed = await confirm(here, "list_orders", "read")
    assert confirmed.status_code == 200, confirmed.text
    assert confirmed.json()["tools"][0]["registered_tool"] == f"{LIST}@1.1.0"
    shown = (await fetch_tools(here))["list_orders"]
    assert (shown["effects"], shown["source"], shown["version"]) == ("read", "confirmed", "1.1.0")
    # The version with the other effects cannot be selected any more.
    assert await here.fetch_versions(LIST) == {"1.1.0": "available", "1.0.0": "retired"}
    assert (await here.call_tool(LIST)).status_code == 200
    subjects = await here.list_commands("confirm_effects:read", "confirm_effects")
    assert subjects == [f"{NAME} tool:list_orders {shown['digest']}", NAME]

    again = await confirm(here, "list_orders", "read")
    assert again.json()["tools"][0]["registered_tool"] is None


async def test_a_changed_definition_is_read_strictly_again(
    upstream_gateway: UpstreamGateway, orders_server: Upstream
) -> None:
    here = upstream_gateway
    old_digest = (await fetch_tools(here))["list_orders"]["digest"]
    assert (await confirm(here, "list_orders", "read")).status_code == 200
    orders_server.tools[-1] = make_definition("list_orders", "Lists orders, and pays them.")
    await here.probe()
    change = (await here.fetch_changes())["tool:list_orders"]
    assert (await here.decide_change(change)).json()["registered_tool"] == f"{LIST}@2.0.0"
    shown = (await fetch_tools(here))["list_orders"]
    assert (shown["effects"], shown["source"], shown["confirmed_effects"]) == ("destructive", "unconfirmed", None)
    stale = await confirm(here, "list_orders", "read", digest=old_digest)
    assert (stale.status_code, stale.json()["error"]["slug"]) == (404, "change-not-found")


async def test_confirmed_effects_outlive_the_gateway_and_end_with_the_pin(
    fresh_database: str, tmp_path: Path, orders_server: Upstream
) -> None:
    async with open_upstream_gateway(fresh_database, tmp_path, orders_server) as here:
        assert (await confirm(here, "list_orders", "read")).status_code == 200
    async with open_upstream_gateway(fresh_database, tmp_path, orders_server) as here:
        await here.probe()
        assert (await fetch_tools(here))["list_orders"]["version"] == "1.1.0"
    narrow = server_settings(orders_server, tools=("get_*", "cancel_*"))
    async with open_upstream_gateway(fresh_database, tmp_path, orders_server, [narrow]) as here:
        await here.probe()
        assert "list_orders" not in await fetch_tools(here)
    async with open_upstream_gateway(fresh_database, tmp_path, orders_server) as here:
        await here.probe()
        change = (await here.fetch_changes())["tool:list_orders"]
        await here.decide_change(change)
        assert (await fetch_tools(here))["list_orders"]["source"] == "unconfirmed"


async def test_effects_are_confirmed_by_operators_about_tools_that_the_settings_leave_open(
    upstream_gateway: UpstreamGateway,
) -> None:
    here = upstream_gateway
    caller = here.gateway.token("ana", scopes=(f"{NAME}:write",))
    assert (await confirm(here, "list_orders", "read", token=caller)).status_code == 403
    digest = (await fetch_tools(here))["get_order"]["digest"]
    settled = await confirm(here, "get_order", "destructive", digest=digest)
    assert (settled.status_code, "settings" in settled.json()["error"]["message"]) == (400, True)
    unknown = await confirm(here, "no_such_tool", "read", digest=digest)
    assert unknown.status_code == 404
    twice = [{"tool": "list_orders", "digest": digest, "effects": each} for each in ("read", "write")]
    doubled = await here.gateway.post(f"/v1/servers/{NAME}/effects", {"tools": twice}, token=here.admin_token)
    assert doubled.status_code == 400
    assert (await fetch_tools(here))["list_orders"]["source"] == "unconfirmed"


async def test_a_rule_reads_the_path_that_the_server_gets(
    fresh_database: str, tmp_path: Path, orders_server: Upstream
) -> None:
    orders_server.tools = [make_definition("write_file", inputSchema=PATH_SCHEMA)]
    tool = f"{NAME}.write_file"
    async with open_upstream_gateway(fresh_database, tmp_path, orders_server) as here:
        await here.probe()
    named = server_settings(orders_server, writes=("write_file",), facts={"path": "arguments.path"})
    async with open_upstream_gateway(fresh_database, tmp_path, orders_server, [named]) as here:
        await here.probe()
        assert (await fetch_tools(here))["write_file"]["facts"] == ["path"]
        # Without the fact, rules would judge the old version differently.
        assert await here.fetch_versions(tool) == {"1.1.0": "available", "1.0.0": "retired"}
        rules = f"""
            @id("under-srv")
            permit (principal, action == Action::"call", resource == Tool::"{tool}")
            when {{ context.facts has path && context.facts.path like "/srv/*" }};
        """
        everything = '@id("all") permit (principal, action == Action::"call", resource);'
        for text in (everything, rules):
            files = {"files": [{"path": "a.cedar", "text": text}]}
            put = await here.gateway.http.put(
                "/v1/policies", json=files, headers={"Authorization": f"Bearer {here.admin_token}"}
            )
            assert put.status_code == 200, put.text
            if text is everything:
                assert (await here.call_tool(tool, path="/etc/passwd", text="x")).status_code == 200
        orders_server.tool_calls.clear()
        assert (await here.call_tool(tool, path="/srv/a", text="x")).status_code == 200
        for path in ("/etc/passwd", "/srv"):
            assert (await here.call_tool(tool, path=path, text="x")).status_code == 403
        for path in ("/srv/../etc/passwd", "/srv//a", "srv/a", "/srv/a/", "/srv\\a", "/srv/a\n"):
            refused = await here.call_tool(tool, path=path, text="x")
            assert (refused.status_code, refused.json()["error"]["slug"]) == (400, "schema-violation"), refused.text
        assert (await here.call_tool(tool, text="x")).status_code == 403
        assert (await here.call_tool(tool, path=7, text="x")).status_code in (400, 403)
        assert orders_server.tool_calls == [("write_file", {"path": "/srv/a", "text": "x"})]
        backtest = await here.gateway.post("/v1/policies/backtest", files, token=here.admin_token)
        result = backtest.text.splitlines()[-1]
        assert '"stricter":1' in result.replace(" ", ""), result
