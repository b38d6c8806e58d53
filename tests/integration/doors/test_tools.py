"""Tools over REST: seen, searched, registered, retired; and authority taken back."""

from typing import Any

import pytest

from tests.integration import shop
from tests.integration.conftest import ADMIN, SCOPES, Served


def _declared(name: str, version: str = "1.0.0", tool: str = "shop.hidden") -> dict[str, Any]:
    contract = next(each.contract for each in shop.TOOLS if each.contract.full_name == tool)
    return {**contract.model_dump(mode="json"), "name": name, "version": version}


def _admin(served: Served) -> str:
    return served.token("root", scopes=(*SCOPES, ADMIN))


async def test_tools_are_listed_a_page_at_a_time(served: Served) -> None:
    first = (await served.get("/v1/tools", limit=3)).json()
    rest = (await served.get("/v1/tools", limit=500, after=first["next_after"])).json()
    names = [tool["name"] for tool in first["tools"] + rest["tools"]]
    assert len(first["tools"]) == 3
    assert names == sorted(names)
    assert {tool.contract.full_name for tool in shop.TOOLS} <= set(names)
    assert rest["next_after"] is None


@pytest.mark.requirement("GOV-1")
async def test_a_token_sees_only_the_tools_it_lists(served: Served) -> None:
    narrow = served.token(tools={"shop.get_user": "^1"})
    assert [tool["name"] for tool in (await served.get("/v1/tools", token=narrow)).json()["tools"]] == ["shop.get_user"]
    assert (await served.get("/v1/tools/search", token=narrow, q="hidden")).json()["matches"] == []
    assert (await served.get("/v1/tools/shop.hidden", token=narrow)).status_code == 404
    assert (await served.get("/v1/tools/shop.hidden/versions", token=narrow)).status_code == 404


async def test_a_tool_shows_what_is_needed_to_call_it_and_not_where_it_runs(served: Served) -> None:
    shown = (await served.get("/v1/tools/shop__get_user")).json()
    assert shown["input_schema"]["required"] == ["id"]
    assert shown["examples"] == [{"id": 7}]
    assert "handler" not in shown["contract"]


async def test_nothing_found_is_an_answer(served: Served) -> None:
    found = (await served.get("/v1/tools/search", q="zzz qqq")).json()
    assert found == {"matches": [], "reason": "no_match"}


async def test_a_tool_is_registered_once_and_versions_stand_side_by_side(served: Served) -> None:
    admin = _admin(served)
    first = await served.post("/v1/tools", _declared("side"), token=admin)
    again = await served.post("/v1/tools", _declared("side"), token=admin)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["digest"] == again.json()["digest"]
    changed = await served.post("/v1/tools", {**_declared("side"), "description": "Something else now."}, token=admin)
    assert (changed.status_code, changed.json()["error"]["slug"]) == (409, "version-conflict")
    await served.post("/v1/tools", _declared("side", "2.0.0"), token=admin)
    listed = (await served.get("/v1/tools/shop.side/versions")).json()["versions"]
    assert [each["version"] for each in listed] == ["2.0.0", "1.0.0"]
    assert (await served.call("shop.side", {"id": 4}, version="^1")).json()["tool"]["version"] == "1.0.0"


async def test_only_functions_that_are_loaded_can_be_registered(served: Served) -> None:
    declared = {**_declared("evil"), "handler": {"driver": "python", "target": "os:system"}}
    refused = await served.post("/v1/tools", declared, token=_admin(served))
    assert (refused.status_code, refused.json()["error"]["slug"]) == (424, "requires-setup")
    assert (await served.call("shop.evil", {"id": 1})).status_code == 404


async def test_a_retired_version_is_gone_for_good(served: Served) -> None:
    admin = _admin(served)
    await served.post("/v1/tools", _declared("gone"), token=admin)
    assert (await served.call("shop.gone", {"id": 1})).status_code == 200
    at = "/v1/tools/shop__gone/versions/1.0.0/state"
    assert (await served.post(at, {"state": "retired"}, token=served.token())).status_code == 403
    retired = await served.post(at, {"state": "retired"}, token=admin)
    assert retired.json() == {"name": "shop.gone", "version": "1.0.0", "state": "retired"}
    assert (await served.call("shop.gone", {"id": 1})).json()["error"]["slug"] == "tool-retired"
    back = await served.post(at, {"state": "available"}, token=admin)
    assert (back.status_code, back.json()["error"]["slug"]) == (410, "tool-retired")


@pytest.mark.requirement("GOV-1")
async def test_what_was_revoked_is_refused_from_the_answer_on_through_every_door(served: Served) -> None:
    mallory = served.token("mallory")
    assert (await served.call("shop.get_user", {"id": 1}, token=mallory)).status_code == 200
    revoked = await served.post(
        "/v1/revocations", {"kind": "subject", "value": "mallory", "reason": "gone"}, token=_admin(served)
    )
    assert (revoked.status_code, revoked.json()["epoch"]) == (201, 1)
    refused = await served.call("shop.get_user", {"id": 1}, token=mallory)
    assert (refused.status_code, refused.json()["error"]["slug"]) == (401, "revoked")
    assert (await served.get("/v1/tools", token=mallory)).status_code == 401
    assert (await served.get("/v1/calls", token=mallory)).status_code == 401
    assert (await served.rpc("tools.list", {}, token=mallory))["error"]["code"] == -33210
    assert (await served.call("shop.get_user", {"id": 1}, token=served.token("mallory"))).status_code == 401


async def test_functions_are_their_tenants_own_unless_the_operator_shares_them(served: Served) -> None:
    stranger = served.token("root", scopes=(ADMIN,), tenant="elsewhere")
    loaded = await served.post("/v1/tools", _declared("lent"), token=stranger)
    unloaded = {**_declared("lent"), "handler": {"target": "nowhere:nothing"}}
    missing = await served.post("/v1/tools", unloaded, token=stranger)
    assert (loaded.status_code, missing.status_code) == (424, 424)
    assert loaded.json()["error"]["slug"] == missing.json()["error"]["slug"] == "requires-setup"
