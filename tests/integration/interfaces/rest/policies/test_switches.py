"""Kill switches over REST: turned by administrators of their own tenant, told to anyone who is refused."""

import pytest

from tests.integration.conftest import ADMIN, HttpGateway

pytestmark = pytest.mark.requirement("GOV-8")

TOOL = {"kind": "tool", "value": "shop.get_user"}


async def test_an_administrator_switches_a_tool_off_and_on(gateway: HttpGateway) -> None:
    admin = gateway.token("root", scopes=[ADMIN])
    turned = await gateway.post("/v1/switches", {**TOOL, "off": True, "reason": "it lies"}, token=admin)
    assert turned.status_code == 200
    assert {**turned.json(), "epoch": 0} == {**TOOL, "off": True, "epoch": 0}
    refused = await gateway.call("shop.get_user", {"id": 1})
    assert (refused.status_code, refused.json()["error"]["slug"]) == (403, "switched-off")
    assert refused.json()["detail"] == "root turned off the tool shop.get_user: it lies"
    over_rpc = await gateway.call_rpc("calls.create", {"tool": "shop.get_user", "arguments": {"id": 1}})
    assert over_rpc["error"]["data"]["error"]["details"]["reason"] == "it lies"
    listed = (await gateway.get("/v1/switches", token=admin)).json()["switches"]
    assert [(each["kind"], each["value"], each["by"]) for each in listed] == [("tool", "shop.get_user", "root")]
    await gateway.post("/v1/switches", {"kind": "tool", "value": "shop__get_user", "off": False}, token=admin)
    assert (await gateway.call("shop.get_user", {"id": 1})).status_code == 200
    assert (await gateway.get("/v1/switches", token=admin)).json() == {"switches": []}


async def test_a_tenant_needs_no_name_and_is_never_anothers(gateway: HttpGateway) -> None:
    admin, other = gateway.token("root", scopes=[ADMIN]), gateway.other_token("otto", scopes=[ADMIN])
    off = await gateway.post("/v1/switches", {"kind": "tenant", "off": True}, token=admin)
    assert off.json()["value"] == "dev"
    assert (await gateway.call("shop.get_user", {"id": 1})).json()["error"]["slug"] == "switched-off"
    anothers = await gateway.post("/v1/switches", {"kind": "tenant", "value": "dev", "off": False}, token=other)
    assert (anothers.status_code, anothers.json()["error"]["slug"]) == (400, "malformed")
    assert (await gateway.get("/v1/switches", token=other)).json() == {"switches": []}
    await gateway.post("/v1/switches", {"kind": "tenant", "off": False}, token=admin)
    assert (await gateway.call("shop.get_user", {"id": 1})).status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({**TOOL}, 400),
        ({"kind": "user", "value": "ana", "off": True}, 400),
        ({"kind": "agent", "off": True}, 400),
        ({"kind": "tool", "value": "shop.nobody", "off": True}, 404),
        ([], 400),
    ],
)
async def test_what_cannot_be_meant_is_refused(body: object, status: int, gateway: HttpGateway) -> None:
    assert (await gateway.post("/v1/switches", body, token=gateway.token(scopes=[ADMIN]))).status_code == status


async def test_a_mistyped_agent_is_not_switched_off_unless_the_name_is_meant(gateway: HttpGateway) -> None:
    admin = gateway.token("root", scopes=[ADMIN])
    await gateway.exchange_token(gateway.token("dora"), agent="support-bot")
    switch = {"kind": "agent", "value": "suport-bot", "off": True}
    refused = await gateway.post("/v1/switches", switch, token=admin)
    assert (refused.status_code, refused.json()["error"]["slug"]) == (404, "agent-unknown")
    assert refused.json()["error"]["details"]["similar"] == ["support-bot"]
    assert (await gateway.get("/v1/switches", token=admin)).json() == {"switches": []}
    meant = await gateway.post("/v1/switches", {**switch, "unknown": True}, token=admin)
    assert meant.status_code == 200, meant.text
    assert (await gateway.post("/v1/switches", {**switch, "off": False}, token=admin)).status_code == 200


async def test_nobody_else_turns_or_sees_them(gateway: HttpGateway) -> None:
    assert (await gateway.post("/v1/switches", {**TOOL, "off": True})).status_code == 403
    assert (await gateway.get("/v1/switches")).status_code == 403
