"""Whatever belongs to another tenant, or to another caller, is not there at the MCP interface."""

from typing import Any

import pytest

from deputize.core.mcp.constants import HANDSHAKE_VERSIONS, MODERN_VERSION
from deputize.interfaces.mcp.endpoint import LEGACY_METHODS, MODERN_METHODS
from tests.integration.conftest import ADMIN, SCOPES, HttpGateway
from tests.support.mcp_client import TASKS_CAPABILITY, McpClient, McpResponse

pytestmark = pytest.mark.requirement("GOV-1")

UNKNOWN_ID = "01890000-0000-7000-8000-000000000000"
METHODS = [
    *((MODERN_VERSION, each) for each in MODERN_METHODS),
    *((HANDSHAKE_VERSIONS[0], each) for each in LEGACY_METHODS),
]


async def _make_own_call(gateway: HttpGateway) -> str:
    made = await gateway.call("shop.rename_user", {"id": 1, "name": "Ana"}, key="ours")
    call_id: str = made.json()["call_id"]
    return call_id


def _strip_ids(answer: McpResponse, *ids: str) -> tuple[int, str]:
    told: dict[str, Any] = answer.last_message
    for place in (told.get("error", {}).get("data", {}), told.get("error", {}).get("data", {}).get("error", {})):
        for name in ("trace_id", "call_id", "instance"):
            place.pop(name, None)
    text = str(told)
    for each in ids:
        text = text.replace(each, "ID")
    return answer.status, text


@pytest.mark.parametrize(("version", "method"), METHODS)
async def test_every_method_keeps_tenants_apart(gateway: HttpGateway, version: str, method: str) -> None:
    ours = await _make_own_call(gateway)
    token = gateway.other_token(scopes=(*SCOPES, ADMIN))
    client = McpClient(gateway, token=token, version=version, capabilities=TASKS_CAPABILITY)
    answers = []
    for call_id, tool in ((ours, "shop__rename_user"), (UNKNOWN_ID, "shop__not_there_at_all")):
        params = {
            "tools/call": {"name": tool, "arguments": {"id": 1, "name": "Ana"}},
            "initialize": {"protocolVersion": HANDSHAKE_VERSIONS[0], "capabilities": {}},
        }.get(method, {"taskId": call_id} if method.startswith("tasks/") else {})
        answer = await client.send_request(method, params)
        assert ours not in str(answer.last_message) or method.startswith("tasks/")
        answers.append(_strip_ids(answer, call_id, tool, tool.replace("__", ".")))
    assert answers[0] == answers[1]
    if method == "tools/list":
        assert set(await client.list_tools()) == {"calls_batch", "calls_get", "calls_cancel", "calls_undo"}


@pytest.mark.parametrize("name", ["calls_get", "calls_cancel", "calls_undo"])
async def test_calls_of_others_are_not_shown_and_not_stopped(gateway: HttpGateway, name: str) -> None:
    ours = await _make_own_call(gateway)
    for token in (
        gateway.other_token(scopes=(*SCOPES, ADMIN)),
        gateway.token("mallory"),
        gateway.token("ana", agent="bot"),
    ):
        client = McpClient(gateway, token=token)
        theirs = await client.call_tool(name, {"call_id": ours})
        nobodys = await client.call_tool(name, {"call_id": UNKNOWN_ID})
        assert theirs.result["isError"]
        assert _strip_ids(theirs, ours) == _strip_ids(nobodys, UNKNOWN_ID)
        assert theirs.structured_content["error"]["slug"] == "call-not-found"
