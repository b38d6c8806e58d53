"""Tools over REST: seen, searched, registered, retired; and authority taken back."""

from typing import Any

import pytest

from tests.integration.conftest import ADMIN, SCOPES, HttpGateway
from tests.support import shop_tools


def _make_declaration(name: str, version: str = "1.0.0", tool: str = "shop.hidden_user") -> dict[str, Any]:
    contract = next(each.contract for each in shop_tools.TOOLS if each.contract.full_name == tool)
    return {**contract.model_dump(mode="json"), "name": name, "version": version}


def _make_admin_token(gateway: HttpGateway) -> str:
    return gateway.token("root", scopes=(*SCOPES, ADMIN))


async def test_tools_are_listed_a_page_at_a_time(gateway: HttpGateway) -> None:
    first = (await gateway.get("/v1/tools", limit=3)).json()
    rest = (await gateway.get("/v1/tools", limit=500, after=first["next_after"])).json()
    names = [tool["name"] for tool in first["tools"] + rest["tools"]]
    assert len(first["tools"]) == 3
    assert names == sorted(names)
    assert {tool.contract.full_name for tool in shop_tools.TOOLS} <= set(names)
    assert rest["next_after"] is None


@pytest.mark.requirement("GOV-1")
async def test_a_token_sees_only_the_tools_it_lists(gateway: HttpGateway) -> None:
    narrow = gateway.token(tools={"shop.get_user": "^1"})
    assert [tool["name"] for tool in (await gateway.get("/v1/tools", token=narrow)).json()["tools"]] == [
        "shop.get_user"
    ]
    assert (await gateway.get("/v1/tools/search", token=narrow, q="hidden")).json()["matches"] == []
    assert (await gateway.get("/v1/tools/shop.hidden_user", token=narrow)).status_code == 404
    assert (await gateway.get("/v1/tools/shop.hidden_user/versions", token=narrow)).status_code == 404


async def test_a_tool_shows_what_is_needed_to_call_it_and_not_where_it_runs(gateway: HttpGateway) -> None:
    shown = (await gateway.get("/v1/tools/shop__get_user")).json()
    assert shown["input_schema"]["required"] == ["id"]
    assert shown["examples"] == [{"id": 7}]
    assert "handler" not in shown["contract"]


async def test_nothing_found_is_an_answer(gateway: HttpGateway) -> None:
    found = (await gateway.get("/v1/tools/search", q="zzz qqq")).json()
    assert found == {"matches": [], "reason": "no_match"}


async def test_a_tool_is_registered_once_and_versions_stand_side_by_side(gateway: HttpGateway) -> None:
    admin = _make_admin_token(gateway)
    first = await gateway.post("/v1/tools", _make_declaration("side"), token=admin)
    again = await gateway.post("/v1/tools", _make_declaration("side"), token=admin)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["digest"] == again.json()["digest"]
    changed = await gateway.post(
        "/v1/tools", {**_make_declaration("side"), "description": "Something else now."}, token=admin
    )
    assert (changed.status_code, changed.json()["error"]["slug"]) == (409, "version-conflict")
    await gateway.post("/v1/tools", _make_declaration("side", "2.0.0"), token=admin)
    listed = (await gateway.get("/v1/tools/shop.side/versions")).json()["versions"]
    assert [each["version"] for each in listed] == ["2.0.0", "1.0.0"]
    assert (await gateway.call("shop.side", {"id": 4}, version="^1")).json()["tool"]["version"] == "1.0.0"


async def test_only_functions_that_are_loaded_can_be_registered(gateway: HttpGateway) -> None:
    declared = {**_make_declaration("evil"), "handler": {"driver": "python", "target": "os:system"}}
    refused = await gateway.post("/v1/tools", declared, token=_make_admin_token(gateway))
    assert (refused.status_code, refused.json()["error"]["slug"]) == (424, "requires-setup")
    assert (await gateway.call("shop.evil", {"id": 1})).status_code == 404


@pytest.mark.requirement("CON-2")
@pytest.mark.parametrize(
    ("declared", "field"),
    [
        ({"breaker": {"failure_threshold": 3}}, "/breaker"),
        ({"limits": {"memory": "1Gi"}}, "/limits"),
        ({"network": {"allowed_domains": ["crm.example"]}}, "/network"),
        ({"retry": {"retry_on_status_codes": [429]}}, "/retry/retry_on_status_codes"),
        ({"checkpoints": {"macro_events": ["paid"]}}, "/checkpoints/macro_events"),
        ({"error_schema": {"type": "object"}}, "/error_schema"),
    ],
)
async def test_a_tool_that_declares_what_is_not_enforced_cannot_be_called(
    gateway: HttpGateway, declared: dict[str, Any], field: str
) -> None:
    name = f"unenforced{field.replace('/', '_')}"
    registered = await gateway.post(
        "/v1/tools", {**_make_declaration(name), **declared}, token=_make_admin_token(gateway)
    )
    assert registered.status_code == 201
    refused = (await gateway.call(f"shop.{name}", {"id": 1})).json()["error"]
    assert (refused["slug"], refused["details"]["fields"]) == ("requires-setup", [field])
    page = (await gateway.get("/v1/surface", limit=500)).json()["tools"]
    (shown,) = [each for each in page if each["name"] == f"shop.{name}"]
    assert (shown["status"], shown["reason"]["code"]) == ("blocked", "setup_required")
    assert field in shown["reason"]["message"]


@pytest.mark.requirement("GOV-1")
async def test_a_tool_with_permissions_is_closed_to_tokens_without_them(gateway: HttpGateway) -> None:
    declared = {**_make_declaration("permitted"), "auth": {"permissions": ["database:postgresql:read"]}}
    assert (await gateway.post("/v1/tools", declared, token=_make_admin_token(gateway))).status_code == 201
    refused = await gateway.call("shop.permitted", {"id": 1})
    assert refused.status_code == 403
    assert refused.json()["error"]["details"]["missing_scopes"] == ["database:postgresql:read"]
    permitted = gateway.token("ana", scopes=(*SCOPES, "database:postgresql:read"))
    assert (await gateway.call("shop.permitted", {"id": 1}, token=permitted)).status_code == 200


async def test_a_retired_version_is_gone_for_good(gateway: HttpGateway) -> None:
    admin = _make_admin_token(gateway)
    await gateway.post("/v1/tools", _make_declaration("gone"), token=admin)
    assert (await gateway.call("shop.gone", {"id": 1})).status_code == 200
    at = "/v1/tools/shop__gone/versions/1.0.0/state"
    assert (await gateway.post(at, {"state": "retired"}, token=gateway.token())).status_code == 403
    retired = await gateway.post(at, {"state": "retired"}, token=admin)
    assert retired.json() == {"name": "shop.gone", "version": "1.0.0", "state": "retired"}
    assert (await gateway.call("shop.gone", {"id": 1})).json()["error"]["slug"] == "tool-retired"
    back = await gateway.post(at, {"state": "available"}, token=admin)
    assert (back.status_code, back.json()["error"]["slug"]) == (410, "tool-retired")


@pytest.mark.requirement("GOV-1")
async def test_a_revoked_caller_is_refused_on_every_interface_at_once(gateway: HttpGateway) -> None:
    mallory = gateway.token("mallory")
    assert (await gateway.call("shop.get_user", {"id": 1}, token=mallory)).status_code == 200
    revoked = await gateway.post(
        "/v1/revocations", {"kind": "subject", "value": "mallory", "reason": "gone"}, token=_make_admin_token(gateway)
    )
    assert (revoked.status_code, revoked.json()["epoch"]) == (201, 1)
    refused = await gateway.call("shop.get_user", {"id": 1}, token=mallory)
    assert (refused.status_code, refused.json()["error"]["slug"]) == (401, "revoked")
    assert (await gateway.get("/v1/tools", token=mallory)).status_code == 401
    assert (await gateway.get("/v1/calls", token=mallory)).status_code == 401
    assert (await gateway.call_rpc("tools.list", {}, token=mallory))["error"]["code"] == -33210
    assert (await gateway.call("shop.get_user", {"id": 1}, token=gateway.token("mallory"))).status_code == 401


async def test_functions_are_their_tenants_own_unless_the_operator_shares_them(gateway: HttpGateway) -> None:
    stranger = gateway.token("root", scopes=(ADMIN,), tenant="elsewhere")
    loaded = await gateway.post("/v1/tools", _make_declaration("lent"), token=stranger)
    unloaded = {**_make_declaration("lent"), "handler": {"target": "nowhere:nothing"}}
    missing = await gateway.post("/v1/tools", unloaded, token=stranger)
    assert (loaded.status_code, missing.status_code) == (424, 424)
    assert loaded.json()["error"]["slug"] == missing.json()["error"]["slug"] == "requires-setup"
