"""Anyone who was revoked learns nothing at any interface, not even what an administrator's mistake would be told."""

import pytest

from tests.integration.conftest import ADMIN, HttpGateway
from tests.support.mcp_client import McpClient

pytestmark = pytest.mark.requirement("GOV-1")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v1/policies", {"files": []}),
        ("PUT", "/v1/policies", {"wrong": 1}),
        ("POST", "/v1/switches", {"kind": "tool", "value": "shop.nobody", "off": True}),
        ("POST", "/v1/tools", {}),
        ("DELETE", "/v1/secrets?name=NO", None),
        ("GET", "/v1/tools", None),
        ("GET", "/v1/calls/none", None),
    ],
)
async def test_a_revoked_administrator_learns_only_that_it_is_revoked(
    method: str, path: str, body: object, gateway: HttpGateway
) -> None:
    gone = gateway.token("gone", scopes=[ADMIN])
    root = gateway.token("root", scopes=[ADMIN])
    revoked = await gateway.post("/v1/revocations", {"kind": "user", "value": "gone"}, token=root)
    assert revoked.status_code == 201
    answer = await gateway.http.request(method, path, json=body, headers={"authorization": f"Bearer {gone}"})
    assert (answer.status_code, answer.json()["error"]["slug"]) == (401, "revoked")


async def test_json_rpc_says_it_with_its_own_status(gateway: HttpGateway) -> None:
    gone = gateway.token("gone", scopes=[ADMIN])
    root = gateway.token("root", scopes=[ADMIN])
    await gateway.post("/v1/revocations", {"kind": "user", "value": "gone"}, token=root)
    request = {"jsonrpc": "2.0", "id": 1, "method": "nothing.like_it", "params": {}}
    answer = await gateway.post("/rpc", request, token=gone)
    assert (answer.status_code, answer.json()["error"]["data"]["error"]["slug"]) == (401, "revoked")


@pytest.mark.parametrize("name", ["calls_get", "calls_cancel", "calls_undo"])
async def test_a_revoked_agent_learns_nothing_of_its_own_calls(name: str, gateway: HttpGateway) -> None:
    gone = gateway.token("ana", agent="gone")
    made = await gateway.call("shop.rename_user", {"id": 1, "name": "Ana"}, key="ours", token=gone)
    root = gateway.token("root", scopes=[ADMIN])
    await gateway.post("/v1/revocations", {"kind": "agent", "value": "gone"}, token=root)
    answer = await McpClient(gateway, token=gone).call_tool(name, {"call_id": made.json()["call_id"]})
    assert (answer.status, answer.error["data"]["error"]["slug"]) == (401, "revoked")
