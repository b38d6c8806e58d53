"""Several calls in one request, over every interface that takes them."""

import asyncio
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from deputize.core.call_batch import MAX_BATCH_SIZE
from tests.integration.conftest import HttpGateway
from tests.support import shop_tools
from tests.support.approval_gateway import open_approval_gateway
from tests.support.mcp_client import McpClient

pytestmark = pytest.mark.requirement("INV-9", "INV-1")


def rename(user: int, name: str, **more: Any) -> dict[str, Any]:
    return {"tool": "shop.rename_user", "arguments": {"id": user, "name": name}, **more}


def read(name: str) -> dict[str, Any]:
    return {"tool": "shop.slow_read", "arguments": {"name": name}}


async def open_gates(*names: str) -> None:
    """Open them only once the tools of all of them have begun."""
    async with asyncio.timeout(90):
        await asyncio.gather(*(shop_tools.start_events.setdefault(each, asyncio.Event()).wait() for each in names))
    for each in names:
        shop_tools.release_events.setdefault(each, asyncio.Event()).set()


async def test_calls_of_a_rest_batch_run_side_by_side_and_are_answered_like_single_ones(gateway: HttpGateway) -> None:
    calls = [read("rest-a"), rename(1, "Ana", idempotency_key="rest-batch"), read("rest-b"), {"tool": "shop.nothing"}]
    answer, _ = await asyncio.gather(gateway.post("/v1/calls/batch", {"calls": calls}), open_gates("rest-a", "rest-b"))
    results = answer.json()["results"]
    assert [each["status"] for each in results] == [200, 200, 200, 404]
    assert [each["envelope"].get("result") for each in results[::2]] == ["rest-a", "rest-b"]
    alone = await gateway.call("shop.rename_user", {"id": 1, "name": "Ana"}, key="rest-batch")
    assert alone.headers["idempotency-replayed"] == "true"
    assert alone.content in answer.content
    again = (await gateway.post("/v1/calls/batch", {"calls": calls[1:2]})).json()["results"]
    assert again == [{**results[1], "is_replay": True}]


async def test_a_failed_call_of_a_rest_batch_means_what_on_failure_says(gateway: HttpGateway) -> None:
    failing = {"tool": "shop.fail", "arguments": {"slug": "tool-failed"}}
    slugs = {}
    for policy in ("ignore", "cancel_siblings", "cancel_dependent"):
        calls = [failing, {"tool": "shop.get_user", "arguments": {"id": 1}, "depends_on": [0]}]
        results = (await gateway.post("/v1/calls/batch", {"calls": calls, "on_failure": policy})).json()["results"]
        slugs[policy] = [each["envelope"].get("error", {}).get("slug") for each in results]
    assert slugs == {
        "ignore": ["tool-failed", None],
        "cancel_siblings": ["tool-failed", "sibling-canceled"],
        "cancel_dependent": ["tool-failed", "sibling-canceled"],
    }


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "a batch is an object with calls"),
        ({"calls": {}}, "a batch is an object with calls"),
        ({"calls": []}, "a batch holds 1 to 50 calls"),
        ({"calls": [rename(1, "x")] * (MAX_BATCH_SIZE + 1)}, "calls must be 1 to 50"),
        ({"calls": [rename(1, "x"), 7]}, "calls[1]: a call is a JSON object"),
        ({"calls": [rename(1, "x"), {"tool": 1}]}, "calls[1]: tool must be the name of a tool"),
        ({"calls": [rename(1, "x", idempotency_key="")]}, "calls[0]: Idempotency-Key must be 1 to 255"),
        ({"calls": [rename(1, "x", depends_on=[True])]}, "calls[0]: depends_on must be a list of positions"),
        ({"calls": [rename(1, "x", depends_on=[0])]}, "calls[0].depends_on may name only calls before it"),
        ({"calls": [rename(1, "x")], "on_failure": "stop"}, "on_failure must be one of ignore, cancel_siblings"),
        ({"calls": [rename(1, "x")], "on_failure": []}, "on_failure must be one of ignore, cancel_siblings"),
    ],
)
async def test_a_batch_with_a_mistake_runs_nothing(gateway: HttpGateway, body: Any, message: str) -> None:
    before = len(shop_tools.effects)
    answer = await gateway.post("/v1/calls/batch", body)
    assert (answer.status_code, answer.json()["error"]["slug"]) == (400, "malformed")
    assert answer.json()["detail"].startswith(message)
    assert len(shop_tools.effects) == before


async def test_a_key_for_a_whole_batch_is_refused(gateway: HttpGateway) -> None:
    headers = {"authorization": f"Bearer {gateway.token()}", "idempotency-key": "one-for-all"}
    answer = await gateway.http.post("/v1/calls/batch", json={"calls": [rename(1, "x")]}, headers=headers)
    assert answer.status_code == 400
    assert "in its field idempotency_key" in answer.json()["detail"]


async def test_a_batch_reaches_no_tool_and_no_key_of_another_tenant(gateway: HttpGateway) -> None:
    ours = rename(1, "Ana", idempotency_key="batch-ours")
    assert (await gateway.post("/v1/calls/batch", {"calls": [ours]})).status_code == 200
    unknown = {**ours, "tool": "shop.not_there_at_all"}
    token = gateway.other_token()
    results = (await gateway.post("/v1/calls/batch", {"calls": [ours, unknown]}, token=token)).json()["results"]
    assert [(each["status"], each["is_replay"]) for each in results] == [(404, False)] * 2
    assert [each["envelope"]["error"]["slug"] for each in results] == ["tool-not-found"] * 2


async def test_calls_of_a_json_rpc_batch_run_side_by_side(gateway: HttpGateway) -> None:
    def create(params: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "method": "calls.create", "params": params, **more}

    batch = [
        create(read("rpc-a"), id=1), create(read("rpc-b")), create({"tool": 7}, id=2), create(read("rpc-c"), id=3),
        {"jsonrpc": "2.0", "method": "tools.get", "params": {"name": "shop.get_user"}, "id": 4},
    ]  # fmt: skip
    answer, _ = await asyncio.gather(gateway.post("/rpc", batch), open_gates("rpc-a", "rpc-b", "rpc-c"))
    replies = answer.json()
    assert [each["id"] for each in replies] == [1, 2, 3, 4]
    assert [each["result"]["result"] for each in replies[:3:2]] == ["rpc-a", "rpc-c"]
    assert (replies[1]["error"]["code"], replies[3]["result"]["version"]) == (-32602, "1.2.0")


async def test_a_model_makes_several_calls_with_one_tool(gateway: HttpGateway) -> None:
    client = McpClient(gateway)
    calls = [
        {"tool": "shop__get_user", "arguments": {"id": 7}},
        {"tool": "shop__rename_user", "arguments": {"id": 7, "name": "B"}, "idempotency_key": "mcp-batch"},
        {"tool": "shop__fail", "arguments": {"slug": "tool-failed"}},
        {"tool": "shop__get_user", "arguments": {"id": 8}, "depends_on": [2]},
        # It may take longer than clients wait, so it is queued.
        {"tool": "shop__slow_read", "arguments": {"name": "mcp-queued"}},
        {"tool": "shop__nothing"},
    ]
    answer = await client.call_tool("calls_batch", {"calls": calls})
    assert answer.result["isError"] is False
    results = answer.structured_content["results"]
    assert [each["status"] for each in results] == [
        "succeeded", "succeeded", "failed", "canceled", "queued", "blocked",
    ]  # fmt: skip
    assert results[0]["result"] == {"id": 7, "plan": "pro"}
    assert (results[3]["error"]["slug"], results[5]["error"]["slug"]) == ("sibling-canceled", "tool-not-found")
    schema = (await client.list_tools())["calls_batch"]["outputSchema"]
    assert jsonschema_rs.Draft202012Validator(schema).is_valid(answer.structured_content)
    again = await client.call_tool("calls_batch", {"calls": calls[1:2]})
    assert again.structured_content["results"] == [results[1]]


@pytest.mark.requirement("GOV-3")
async def test_a_call_of_a_batch_that_needs_approval_is_neither_failed_nor_done(
    fresh_database: str, tmp_path: Path
) -> None:
    delete = {"tool": "shop.delete_user", "arguments": {"id": 7}, "idempotency_key": "batch-delete"}
    look = {"tool": "shop.get_user", "arguments": {"id": 7}}
    async with open_approval_gateway(fresh_database, tmp_path) as asking:
        body = {"calls": [delete, {**look, "depends_on": [0]}, look], "on_failure": "cancel_siblings"}
        results = (await asking.gateway.post("/v1/calls/batch", body)).json()["results"]
        assert [(each["status"], each["envelope"]["state"]) for each in results] == [
            (202, "awaiting_approval"), (409, "canceled"), (200, "succeeded"),
        ]  # fmt: skip
        assert results[1]["envelope"]["detail"].endswith("calls[0] of its batch has not ended yet")
        assert results[0]["envelope"]["approval"]["groups"] == ["oncall"]
