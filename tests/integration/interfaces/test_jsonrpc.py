"""JSON-RPC 2.0 at /rpc: the same calls, in its own words."""

from typing import Any

import orjson
import pytest

from deputize.core.call_batch import MAX_BATCH_SIZE
from tests.integration.conftest import HttpGateway
from tests.support import shop_tools


@pytest.mark.requirement("INV-1")
async def test_a_call_over_rpc_is_the_same_call(gateway: HttpGateway) -> None:
    over_rpc = await gateway.call_rpc("calls.create", {"tool": "shop.get_user", "arguments": {"id": 7}}, id="a")
    over_rest = (await gateway.call("shop.get_user", {"id": 7})).json()
    assert (over_rpc["jsonrpc"], over_rpc["id"]) == ("2.0", "a")
    assert over_rpc["result"].keys() == over_rest.keys()
    assert over_rpc["result"]["result"] == over_rest["result"]


@pytest.mark.requirement("INV-5")
async def test_an_idempotency_key_is_shared_by_all_interfaces(gateway: HttpGateway) -> None:
    asked = {"id": 1, "name": "Ana"}
    first = await gateway.call("shop.rename_user", asked, key="doors-1")
    params = {"tool": "shop.rename_user", "arguments": asked, "idempotency_key": "doors-1"}
    again = await gateway.post("/rpc", {"jsonrpc": "2.0", "id": 1, "method": "calls.create", "params": params})
    assert again.json()["result"] == first.json()
    assert first.content in again.content
    assert again.headers["idempotency-replayed"] == "true"


async def test_a_failed_call_is_an_error_with_the_whole_envelope(gateway: HttpGateway) -> None:
    failed = await gateway.call_rpc("calls.create", {"tool": "shop.get_user", "arguments": {"id": 0}})
    assert failed["error"]["code"] == -32602
    assert failed["error"]["data"]["state"] == "validation_failed"
    assert failed["error"]["data"]["call_id"]
    assert failed["error"]["message"] == failed["error"]["data"]["detail"]


async def test_calls_and_tools_can_be_fetched(gateway: HttpGateway) -> None:
    made = await gateway.call_rpc(
        "calls.create", {"tool": "shop.rename_user", "arguments": {"id": 2, "name": "B"}, "idempotency_key": "look"}
    )
    shown = await gateway.call_rpc("calls.get", {"call_id": made["result"]["call_id"]})
    assert shown["result"] == made["result"]
    ended = await gateway.call_rpc("calls.cancel", {"call_id": made["result"]["call_id"]})
    assert ended["error"]["data"]["error"]["slug"] == "not-cancelable"
    assert {tool["name"] for tool in (await gateway.call_rpc("tools.list", {}))["result"]["tools"]} >= {"shop.get_user"}
    found = await gateway.call_rpc("tools.search", {"q": "look up a user", "limit": 3})
    assert found["result"]["matches"][0]["name"] == "shop.get_user"
    assert (await gateway.call_rpc("tools.get", {"name": "shop__get_user"}))["result"]["version"] == "1.2.0"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"jsonrpc": "2.0", "id": 1, "method": "nothing"}, -32601),
        ({"jsonrpc": "1.0", "id": 1, "method": "tools.list"}, -32600),
        ({"jsonrpc": "2.0", "id": 1}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": 7}, -32600),
        ({"jsonrpc": "2.0", "id": {}, "method": "tools.list"}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools.list", "extra": 1}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools.list", "params": [1]}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools.list", "params": {"limit": 0}}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools.list", "params": {"limit": True}}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools.search", "params": {}}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "calls.get", "params": {"id": "x"}}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "calls.create", "params": {"tool": 1}}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "calls.create", "params": {"tool": "a", "idempotency_key": ""}}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "calls.create", "params": {"tool": "a", "traceparent": 1}}, -32602),
        (7, -32600),
        ("x", -32600),
    ],
)  # fmt: skip
async def test_what_is_wrong_with_one_request_is_its_own_answer(request_: Any, code: int, gateway: HttpGateway) -> None:
    answer = await gateway.post("/rpc", request_)
    assert answer.status_code == 200
    assert answer.json()["error"]["code"] == code
    assert answer.json()["error"]["data"]["error"]["advice"]


async def test_a_batch_is_answered_in_order_without_its_notifications(gateway: HttpGateway) -> None:
    def make_request(user: int, **more: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "method": "calls.create",
                "params": {"tool": "shop.get_user", "arguments": {"id": user}}, **more}  # fmt: skip

    answer = await gateway.post("/rpc", [make_request(1, id=1), make_request(2), {"bad": 1}, make_request(3, id="c")])
    replies = answer.json()
    assert [reply["id"] for reply in replies] == [1, None, "c"]
    assert [reply.get("result", {}).get("result", {}).get("id") for reply in replies] == [1, None, 3]


async def test_a_jsonrpc_notification_is_executed_and_not_answered(gateway: HttpGateway) -> None:
    before = len(shop_tools.effects)
    params = {"tool": "shop.rename_user", "arguments": {"id": 1, "name": "N"}, "idempotency_key": "notify"}
    answer = await gateway.post("/rpc", {"jsonrpc": "2.0", "method": "calls.create", "params": params})
    assert (answer.status_code, answer.content) == (204, b"")
    assert len(shop_tools.effects) == before + 1
    assert (await gateway.post("/rpc", [{"jsonrpc": "2.0", "method": "nothing"}])).status_code == 204


@pytest.mark.parametrize("size", [0, MAX_BATCH_SIZE + 1])
async def test_a_batch_has_a_size(size: int, gateway: HttpGateway) -> None:
    answer = await gateway.post("/rpc", [{"jsonrpc": "2.0", "id": 1, "method": "tools.list"}] * size)
    assert answer.json()["error"]["code"] == -32600


async def test_what_concerns_the_whole_request_keeps_its_http_status(gateway: HttpGateway) -> None:
    headers = {"authorization": f"Bearer {gateway.token()}", "content-type": "application/json"}
    for sent, status, code in (
        ({"headers": {"content-type": "application/json"}}, 401, -33200),
        ({"headers": {**headers, "content-type": "text/xml"}}, 415, -33011),
        ({"headers": headers, "content": b"{"}, 400, -32700),
        ({"headers": headers, "content": b" " * 1_048_577}, 413, -33005),
    ):
        answer = await gateway.http.post("/rpc", **{"content": b"{}", **sent})  # type: ignore[arg-type]  # a test's table
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
        assert (answer.json()["id"], answer.json()["error"]["code"]) == (None, code)


async def test_poison_in_one_request_does_not_reach_the_next(gateway: HttpGateway) -> None:
    headers = {"authorization": f"Bearer {gateway.token()}", "content-type": "application/json"}
    poison = b'[{"jsonrpc":"2.0","id":1,"method":"calls.create","params":{"tool":"\\u0000"}}]'
    assert (
        orjson.loads((await gateway.http.post("/rpc", content=poison, headers=headers)).content)["error"]["code"]
        == -32700
    )
    assert "result" in await gateway.call_rpc("tools.list", {})
