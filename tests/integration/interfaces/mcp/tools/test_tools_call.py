"""tools/list and tools/call over real HTTP, in both eras."""

import asyncio
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from deputize import tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.mcp.constants import HANDSHAKE_VERSIONS, MODERN_VERSION, SERVER_INFO
from tests.integration.conftest import HttpGateway, serve_gateway
from tests.support import notebook_tools, shop_tools
from tests.support.mcp_client import McpClient

ERAS = pytest.mark.parametrize("version", [MODERN_VERSION, *HANDSHAKE_VERSIONS])


@ERAS
async def test_tools_are_listed_in_order_with_our_own_word_on_what_they_do(gateway: HttpGateway, version: str) -> None:
    answer = await McpClient(gateway, version=version).send_request("tools/list")
    names = [each["name"] for each in answer.result["tools"]]
    tools = {each["name"]: each for each in answer.result["tools"]}

    assert names == sorted(names)
    assert {"calls_get", "calls_cancel", "shop__get_user", "shop__delete_user"} <= set(names)
    assert tools["shop__get_user"]["annotations"] == {
        "readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": True,
    }  # fmt: skip
    assert tools["shop__delete_user"]["annotations"]["destructiveHint"]
    assert "idempotency_key" in tools["shop__delete_user"]["inputSchema"]["properties"]
    assert "idempotency_key" not in tools["shop__rename_user"]["inputSchema"]["properties"]
    assert all(each["inputSchema"]["type"] == "object" for each in answer.result["tools"])


async def test_a_list_says_how_long_and_for_whom_it_holds(gateway: HttpGateway) -> None:
    result = (await McpClient(gateway).send_request("tools/list")).result
    assert (result["resultType"], result["cacheScope"], result["ttlMs"] > 0) == ("complete", "private", True)
    assert result["_meta"][SERVER_INFO]["name"] == "deputize"


@ERAS
@pytest.mark.requirement("EXE-1")
async def test_a_read_is_answered_in_both_forms(gateway: HttpGateway, version: str) -> None:
    answer = await McpClient(gateway, version=version).call_tool("shop__list_users", {"limit": 2})

    assert answer.status == 200
    assert answer.structured_content == {"result": [0, 1]}
    assert answer.result["content"] == [{"type": "text", "text": "[0,1]"}]
    assert answer.result["isError"] is False
    call = answer.result["_meta"]["dev.deputize/call"]
    assert (call["state"], len(call["trace_id"])) == ("succeeded", 32)


async def test_what_is_no_object_is_wrapped_as_its_schema_says(gateway: HttpGateway) -> None:
    client = McpClient(gateway)
    answer = await client.call_tool("shop__list_users", {"limit": 2})
    schema = (await client.list_tools())["shop__list_users"]["outputSchema"]

    assert answer.structured_content == {"result": [0, 1]}
    assert (schema["type"], schema["anyOf"][0]["required"]) == ("object", ["result"])
    assert answer.result["_meta"]["dev.deputize/cost"] == 0.25


@ERAS
@pytest.mark.requirement("INV-5")
async def test_a_write_with_its_key_happens_once_and_says_that_it_was_replayed(
    gateway: HttpGateway, version: str
) -> None:
    client, before = McpClient(gateway, version=version), len(shop_tools.effects)
    first = await client.call_tool("shop__rename_user", {"id": 1, "name": "Ana"}, key=f"once-{version}")
    again = await client.call_tool("shop__rename_user", {"id": 1, "name": "Ana"}, key=f"once-{version}")

    assert first.structured_content == again.structured_content
    assert len(shop_tools.effects) == before + 1
    assert "dev.deputize/replayed" not in first.result["_meta"]
    assert again.result["_meta"]["dev.deputize/replayed"] is True
    assert again.result["_meta"]["dev.deputize/call"]["id"] == first.result["_meta"]["dev.deputize/call"]["id"]


async def test_the_key_may_come_as_an_argument_a_header_or_a_number_of_the_clients_own(gateway: HttpGateway) -> None:
    client = McpClient(gateway)
    for place, sent in enumerate((
        {"arguments": {"idempotency_key": "argued"}}, {"headers": {"idempotency-key": "headed"}},
        {"meta": {"claudecode/toolUseId": "toolu_01"}}, {"meta": {"dev.deputize/idempotency-key": "meant"}},
    )):  # fmt: skip
        more: dict[str, Any] = dict(sent)
        arguments = {"id": 100 + place, **more.pop("arguments", {})}
        first = await client.call_tool("shop__delete_user", arguments, **more)
        again = await client.call_tool("shop__delete_user", arguments, **more)
        assert first.structured_content == {"deleted": 100 + place}, first.last_message
        assert again.result["_meta"]["dev.deputize/replayed"] is True


async def test_what_cannot_be_taken_back_says_how_to_pass_a_key(gateway: HttpGateway) -> None:
    answer = await McpClient(gateway).call_tool("shop__delete_user", {"id": 5})
    assert (answer.status, answer.result["isError"]) == (200, True)
    assert answer.structured_content["error"]["slug"] == "key-required"
    assert "idempotency_key" in answer.result["content"][0]["text"]


async def test_invalid_arguments_are_returned_to_the_model_as_a_tool_error(gateway: HttpGateway) -> None:
    answer = await McpClient(gateway).call_tool("shop__get_user", {"id": "seven"})
    assert (answer.status, answer.result["isError"]) == (200, True)
    assert answer.structured_content["error"]["slug"] == "schema-violation"
    assert "/id" in answer.result["content"][0]["text"]


@ERAS
async def test_what_went_wrong_fits_what_the_tool_declares_to_answer(gateway: HttpGateway, version: str) -> None:
    """Clients made with the TypeScript SDK hold results that are errors to the schema as well."""
    client = McpClient(gateway, version=version)
    tools = await client.list_tools()
    for name, arguments in (
        ("shop__delete_user", {"id": 5}),
        ("shop__get_user", {"id": "seven"}),
        ("calls_get", {"call_id": 7}),
        ("calls_get", {"call_id": "no such call"}),
        ("calls_cancel", {"call_id": "no such call"}),
        ("calls_undo", {"call_id": "no such call"}),
        ("calls_batch", {"calls": []}),
    ):
        answer = await client.call_tool(name, arguments)
        assert answer.result["isError"] is True
        assert jsonschema_rs.Draft202012Validator(tools[name]["outputSchema"]).is_valid(answer.structured_content), (
            answer.last_message
        )


@ERAS
async def test_a_tool_that_is_not_there_is_an_error_of_the_protocol(gateway: HttpGateway, version: str) -> None:
    answer = await McpClient(gateway, version=version).call_tool("shop__get_usr", {"id": 1})
    assert answer.error["code"] == -32602
    assert answer.status == (400 if version == MODERN_VERSION else 200)
    assert answer.error["message"].endswith("did you mean shop__get_user?")
    error = answer.error["data"]["error"]
    assert error["details"]["did_you_mean"][0] == "shop__get_user"
    assert error["advice"].startswith("List the tools again: tools/list")


@pytest.mark.requirement("INV-3")
async def test_the_clients_trace_goes_with_the_call_and_a_deadline_is_a_number(gateway: HttpGateway) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = await McpClient(gateway).call_tool("shop__get_user", {"id": 7}, meta={"traceparent": parent})
    assert answer.result["_meta"]["dev.deputize/call"]["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    wrong = await McpClient(gateway).call_tool("shop__get_user", {"id": 7}, meta={"dev.deputize/deadline-ms": "soon"})
    assert wrong.error["code"] == -32602


@tool(effects="read", namespace="shop")
async def wait_forever() -> str:
    """Never answer."""
    await asyncio.Event().wait()
    return ""


async def test_the_clients_deadline_ends_the_call(fresh_database: str, tmp_path: Path) -> None:
    options = {"tools": [getattr(wait_forever, ATTRIBUTE)]}
    async with serve_gateway(fresh_database, tmp_path, gateway_options=options) as gateway:
        late = await McpClient(gateway).call_tool("shop__wait_forever", {}, meta={"dev.deputize/deadline-ms": 50})
        assert late.structured_content["error"]["slug"] in ("tool-timeout", "deadline-exceeded")


async def test_a_token_that_lists_tools_sees_only_those_and_ours(gateway: HttpGateway) -> None:
    token = gateway.token(tools={"shop.get_user": "*"})
    client = McpClient(gateway, token=token)
    ours = {"calls_batch", "calls_cancel", "calls_get", "calls_undo"}
    assert set(await client.list_tools()) == {*ours, "shop__get_user"}
    assert (await client.call_tool("shop__hidden", {"id": 1})).error["code"] == -32602


@ERAS
@pytest.mark.requirement("CON-9")
async def test_an_agent_negotiates_a_version_and_calls_it(gateway: HttpGateway, version: str) -> None:
    client = McpClient(gateway, version=version)
    negotiation = {"name": "shop__get_user", "version": "^1", "input": {"fields": ["/id"]}}
    answer = await client.send_request("dev.deputize/negotiate", negotiation)
    assert (answer.result["match"], answer.result["version"]) == ("FULL", "1.2.0")
    partial = await client.send_request(
        "dev.deputize/negotiate", {**negotiation, "input": {"fields": ["/id"], "optional_fields": ["/color"]}}
    )
    assert partial.result["missing"] == [{"path": "/input/color", "required": False, "reason": "is not accepted"}]
    called = await client.call_tool("shop__get_user", {"id": 7}, meta={"dev.deputize/version": "~1.2"})
    assert called.result["isError"] is False
    refused = await client.call_tool("shop__get_user", {"id": 7}, meta={"dev.deputize/version": "^9"})
    assert refused.error["data"]["error"]["slug"] == "version-not-found"


@pytest.mark.requirement("NEW-2")
async def test_a_model_asks_its_person_for_an_undo(fresh_database: str, tmp_path: Path) -> None:
    async with serve_gateway(fresh_database, tmp_path, gateway_options={"tools": notebook_tools.TOOLS}) as gateway:
        client = McpClient(gateway, token=gateway.token("ana", agent="bot", scopes=("book:write",)))
        listed = {each["name"]: each for each in (await client.send_request("tools/list")).result["tools"]}
        statuses = []
        for name, arguments in (
            ("book__add", {"name": "a", "text": "milk"}),
            ("book__title", {"name": "a", "text": "A"}),
        ):
            made = await client.call_tool(name, arguments)
            call_id = made.result["_meta"]["dev.deputize/call"]["id"]
            answer = (await client.call_tool("calls_undo", {"call_id": call_id})).structured_content
            assert jsonschema_rs.Draft202012Validator(listed["calls_undo"]["outputSchema"]).is_valid(answer)
            statuses.append(answer["status"])
            assert (f"deputize undo {call_id}" in answer["message"]) == (answer["status"] == "undo_requested")
        assert statuses == ["undo_requested", "nothing_to_undo"]
        token = gateway.token("ana", scopes=("book:write", "deputize:undo"))
        requests = (await gateway.get("/v1/undo/requests", token=token)).json()["requests"]
        assert [(each["tool"], each["agent"]) for each in requests] == [("book.add", "bot")]
