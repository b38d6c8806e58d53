"""Tools over REST: seen, searched, registered, retired; and authority taken back."""

from typing import Any

import pytest

from tests.integration.conftest import ADMIN, SCOPES, HttpGateway
from tests.support import shop_tools
from tests.support.mcp_client import McpClient


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


@pytest.mark.requirement("CON-3")
async def test_a_tool_is_exported_for_a_model_that_then_calls_it_by_the_name_it_got(gateway: HttpGateway) -> None:
    export = (await gateway.get("/v1/tools/shop.get_user/export", format="openai-responses")).json()
    definition = export["definition"]
    assert (definition["type"], definition["name"]) == ("function", "shop__get_user")
    shown = (await gateway.get("/v1/tools/shop.get_user")).json()
    assert export["digest"] == shown["digest"]
    assert definition["parameters"]["properties"].keys() == shown["input_schema"]["properties"].keys()
    call = await gateway.post("/v1/calls", {"tool": definition["name"], "arguments": shown["examples"][0]})
    assert call.status_code == 200


async def test_a_hidden_tool_is_not_exported(gateway: HttpGateway) -> None:
    narrow = gateway.token(tools={"shop.get_user": "^1"})
    hidden = await gateway.get("/v1/tools/shop.hidden_user/export", token=narrow, format="gemini")
    missing = await gateway.get("/v1/tools/shop.no_such_user/export", token=narrow, format="gemini")
    assert (hidden.status_code, missing.status_code) == (404, 404)


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


@pytest.mark.requirement("CON-8", "GOV-1")
async def test_a_call_without_a_version_gets_the_best_one_that_the_token_covers(gateway: HttpGateway) -> None:
    admin = _make_admin_token(gateway)
    for version in ("1.0.0", "2.0.0"):
        await gateway.post("/v1/tools", _make_declaration("ranged", version), token=admin)
    narrow = gateway.token(tools={"shop.ranged": "^1"})
    assert (await gateway.call("shop.ranged", {"id": 4}, token=narrow)).json()["tool"]["version"] == "1.0.0"
    assert (await gateway.call("shop.ranged", {"id": 4})).json()["tool"]["version"] == "2.0.0"
    assert (await gateway.get("/v1/tools/shop.ranged", token=narrow)).json()["version"] == "1.0.0"
    assert [each["version"] for each in (await gateway.get("/v1/tools", token=narrow)).json()["tools"]] == ["1.0.0"]
    refused = await gateway.call("shop.ranged", {"id": 4}, token=narrow, version="^2")
    assert (refused.status_code, refused.json()["error"]["details"]["allowed"]) == (403, ["^1"])


@pytest.mark.requirement("CON-9")
async def test_an_agent_negotiates_the_best_version_for_what_it_expects(gateway: HttpGateway) -> None:
    admin, old = _make_admin_token(gateway), _make_declaration("agreed")
    properties = {"id": {"type": "integer"}, "since": {"type": "string"}}
    old_output = {"type": "object", "properties": {"id": properties["id"]}, "required": ["id"]}
    new = {**_make_declaration("agreed", "1.1.0"), "output_schema": {**old_output, "properties": properties}}
    for declared in ({**old, "output_schema": old_output}, new):
        assert (await gateway.post("/v1/tools", declared, token=admin)).status_code == 201

    async def negotiate(**expected: Any) -> dict[str, Any]:
        over_rest = (await gateway.post("/v1/tools/shop.agreed/negotiation", expected)).json()
        over_rpc = (await gateway.call_rpc("tools.negotiate", {"name": "shop.agreed", **expected}))["result"]
        assert over_rest == over_rpc
        return dict(over_rest)

    expected = {"fields": ["/id"], "optional_fields": ["/since"]}
    full = await negotiate(input={"fields": ["/id"]}, output=expected)
    assert (full["match"], full["version"], full["missing"]) == ("FULL", "1.1.0", [])
    partial = await negotiate(version="~1.0", output=expected)
    assert (partial["match"], partial["version"]) == ("PARTIAL", "1.0.0")
    assert partial["missing"] == [{"path": "/output/since", "required": False, "reason": "is not in the result"}]
    none = await negotiate(output={"schema": {"type": "object", "required": ["price"]}})
    assert (none["match"], [each["path"] for each in none["missing"]]) == ("INCOMPATIBLE", ["/output/price"])
    unoffered = await negotiate(version="^9")
    assert (unoffered["match"], unoffered["version"], unoffered["missing"][0]["path"]) == (
        "INCOMPATIBLE", None, "/version",
    )  # fmt: skip
    costly = {"anyOf": [{"type": "object", "required": [f"part{n}"]} for n in range(200)]}
    assert (await negotiate(output={"schema": costly}))["match"] == "INCOMPATIBLE"
    wrong = await gateway.post("/v1/tools/shop.agreed/negotiation", {"input": {"schema": {"type": 7}}})
    assert (wrong.status_code, wrong.json()["error"]["details"]) == (400, {"field": "input"})
    wrong = await gateway.post("/v1/tools/shop.agreed/negotiation", {"version": "nine"})
    assert (wrong.status_code, wrong.json()["error"]["details"]) == (400, {"field": "version"})


async def test_only_functions_that_are_loaded_can_be_registered(gateway: HttpGateway) -> None:
    declared = {**_make_declaration("evil"), "handler": {"driver": "python", "target": "os:system"}}
    refused = await gateway.post("/v1/tools", declared, token=_make_admin_token(gateway))
    assert (refused.status_code, refused.json()["error"]["slug"]) == (424, "requires-setup")
    assert (await gateway.call("shop.evil", {"id": 1})).status_code == 404


@pytest.mark.requirement("CON-2")
async def test_a_manifest_of_the_standard_is_registered_and_waits_for_its_code(gateway: HttpGateway) -> None:
    manifest = {
        "tool_id": "book_room", "version": "1.0.0", "name": "Room booking", "provider": "Office Services",
        "description": "Book a meeting room for a team.", "protocol": "native", "priority": 9,
        "parameters": {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]},
    }  # fmt: skip
    registered = await gateway.post("/v1/tools", manifest, token=_make_admin_token(gateway))
    assert registered.status_code == 201, registered.text
    contract = (await gateway.get("/v1/tools/office_services.book_room")).json()["contract"]
    assert (contract["title"], contract["priority"], contract["effects"]) == ("Room booking", 2, "destructive")
    assert contract["external_mappings"]["tool_manifest"]["tool_id"] == "book_room"
    refused = (await gateway.call("office_services.book_room", {"room": "a"})).json()["error"]
    assert (refused["slug"], refused["details"]["fields"]) == ("requires-setup", ["/handler"])
    assert "connected to no code" in refused["message"]
    surface = (await gateway.get("/v1/surface")).json()["tools"]
    (status,) = [each for each in surface if each["name"] == "office_services.book_room"]
    assert (status["status"], status["reason"]["code"]) == ("blocked", "setup_required")


@pytest.mark.requirement("CON-2")
@pytest.mark.parametrize(
    ("declared", "field"),
    [
        ({"breaker": {"failure_threshold": 3}}, "/breaker"),
        ({"limits": {"memory": "1Gi"}}, "/limits"),
        ({"network": {"allowed_domains": ["crm.example"]}}, "/network"),
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


@pytest.mark.requirement("CON-8")
async def test_every_answer_of_a_deprecated_version_announces_its_end(gateway: HttpGateway) -> None:
    admin = _make_admin_token(gateway)
    for version in ("1.0.0", "1.1.0"):
        await gateway.post("/v1/tools", _make_declaration("ends", version), token=admin)
    notice = {"removal_date": "2050-01-31T00:00:00Z", "migration_guide": "https://docs.example/move"}
    at = "/v1/tools/shop.ends/versions/1.0.0"
    announced = await gateway.http.put(f"{at}/deprecation", json=notice, headers={"authorization": f"Bearer {admin}"})
    assert announced.json()["deprecation"].items() >= notice.items()
    called = await gateway.call("shop.ends", {"id": 4}, version="1.0.0")
    params = {"tool": "shop.ends", "arguments": {"id": 4}, "version": "1.0.0"}
    over_rpc = await gateway.post("/rpc", {"jsonrpc": "2.0", "id": 1, "method": "calls.create", "params": params})
    for answer in (called, over_rpc):
        assert answer.headers["deprecation"].startswith("@")
        assert answer.headers["sunset"] == "Mon, 31 Jan 2050 00:00:00 GMT"
        assert answer.headers["link"] == '<https://docs.example/move>; rel="deprecation"'
    assert called.json()["deprecation"]["successor"] == "shop.ends@1.1.0"
    assert "sunset" not in (await gateway.call("shop.ends", {"id": 4})).headers
    meta = {"dev.deputize/version": "1.0.0"}
    over_mcp = await McpClient(gateway).call_tool("shop__ends", {"id": 4}, meta=meta)
    assert over_mcp.result["_meta"]["dev.deputize/deprecation"]["removalDate"] == "2050-01-31T00:00:00Z"
    listed = (await gateway.get("/v1/tools/shop.ends/versions")).json()["versions"]
    assert [each["deprecation"] is None for each in listed] == [True, False]
    usage = (await gateway.get(f"{at}/usage", token=admin)).json()
    assert [(each["user"], each["calls"]) for each in usage["callers"]] == [("ana", 3)]
    kept = await gateway.post(f"{at}/state", {"state": "retired"}, token=admin)
    assert (kept.status_code, kept.json()["error"]["slug"]) == (409, "version-in-use")
    forced = await gateway.post(f"{at}/state", {"state": "retired", "force": True}, token=admin)
    assert forced.status_code == 200


@pytest.mark.requirement("OBS-3")
async def test_a_registration_warns_of_a_timeout_that_calls_contradict(gateway: HttpGateway) -> None:
    admin = _make_admin_token(gateway)
    assert (await gateway.post("/v1/tools", _make_declaration("paced"), token=admin)).json()["warnings"] == []
    for _ in range(100):
        assert (await gateway.call("shop.paced", {"id": 4})).status_code == 200
    report = (await gateway.get("/v1/tools/shop.paced/service-levels", token=admin)).json()
    [levels] = report["versions"]
    assert (levels["version"], levels["calls"]) == (_make_declaration("paced")["version"], 100)
    # No tool is faster than this, so that calls of the version before contradict it.
    hasty = {**_make_declaration("paced", "9.0.0"), "timeout": {"timeout_class": "interactive", "seconds": 0.000001}}
    answer = await gateway.post("/v1/tools", hasty, token=admin)
    assert answer.status_code == 201, answer.text
    [warning] = answer.json()["warnings"]
    assert warning.startswith(f"shop.paced {levels['version']}, measured: p99 is ")
    assert "its own limit is 1e-06 s" in warning
