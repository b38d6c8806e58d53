"""Objects of the tool standard over REST: tools that move between gateways, calls and surfaces that are exported."""

from typing import Any

import pytest

from deputize.catalog.exchange.agent_tool.object_kinds import ObjectKind, find_object_problems
from tests.integration.conftest import ADMIN, SCOPES, HttpGateway


def make_admin_token(gateway: HttpGateway) -> str:
    return gateway.token("root", scopes=(*SCOPES, ADMIN))


def assert_valid(document: dict[str, Any]) -> dict[str, Any]:
    """Assert that each object of an export matches the schema of its kind."""
    for name, value in document.items():
        if name != "schema_version" and value is not None:
            for each in value if isinstance(value, list) else [value]:
                assert find_object_problems(ObjectKind(name), each) == [], name
    return document


async def export_tool(gateway: HttpGateway, name: str, token: str) -> dict[str, Any]:
    export = await gateway.get(f"/v1/tools/{name}/export", token=token, format="agent-tool")
    assert export.status_code == 200
    return assert_valid(export.json()["definition"])


async def export_call(gateway: HttpGateway, call_id: str, token: str | None = None) -> dict[str, Any]:
    return assert_valid((await gateway.get(f"/v1/calls/{call_id}/export", token=token)).json())


@pytest.mark.requirement("CON-3")
async def test_an_exported_tool_is_registered_with_the_same_digest(gateway: HttpGateway) -> None:
    admin = make_admin_token(gateway)
    document = await export_tool(gateway, "shop.get_user", admin)
    shown = (await gateway.get("/v1/tools/shop.get_user", token=admin)).json()
    again = await gateway.post("/v1/tools", document, token=admin)
    assert (again.status_code, again.json()["registration"]) == (200, "unchanged")
    assert again.json()["digest"] == shown["digest"]


@pytest.mark.requirement("CON-3")
async def test_a_foreign_document_is_registered_and_exported_with_its_own_fields(gateway: HttpGateway) -> None:
    admin = make_admin_token(gateway)
    document = await export_tool(gateway, "shop.hidden_user", admin)
    declaration = {**document["tool_declaration"], "name": "foreignUser", "tool_id": "vendor/7", "rating": [4.5, None]}
    created = await gateway.post("/v1/tools", {**document, "tool_declaration": declaration}, token=admin)
    assert created.status_code == 201, created.text
    assert created.json()["name"] == "shop.foreign_user"
    exported = (await export_tool(gateway, "shop.foreign_user", admin))["tool_declaration"]
    assert exported == declaration
    call = await gateway.call("shop.foreign_user", {"id": 7})
    assert call.json()["result"] == 7


async def test_an_invalid_document_is_refused_with_the_path_of_each_problem(gateway: HttpGateway) -> None:
    admin = make_admin_token(gateway)
    document = await export_tool(gateway, "shop.get_user", admin)
    document["tool_declaration"]["lifecycle"] = "asleep"
    document["tool_interface"]["safety"] = {"is_read_only": "yes"}
    refusal = (await gateway.post("/v1/tools", document, token=admin)).json()
    paths = {each["path"] for each in refusal["error"]["details"]["reasons"]}
    assert paths == {"/tool_declaration/lifecycle", "/tool_interface/safety/is_read_only"}


async def test_callers_get_the_objects_without_where_the_tool_runs(gateway: HttpGateway) -> None:
    document = await export_tool(gateway, "shop.get_user", gateway.token())
    assert "handler" not in document["tool_execution_profile"]
    assert document["tool_interface"]["schemas"]["schema_visibility"] == "model"


@pytest.mark.requirement("CON-3")
async def test_a_call_is_exported_with_its_decision_its_result_and_its_entries(gateway: HttpGateway) -> None:
    call = (await gateway.call("shop.rename_user", {"id": 7, "name": "Ana"}, key="exported")).json()
    export = await export_call(gateway, call["call_id"])
    assert export["tool_invocation"]["status"] == "succeeded"
    assert export["tool_invocation"]["actor_refs"] == [{"kind": "user", "id": "ana"}]
    assert {each["kind"] for each in export["tool_invocation"]["evidence_refs"]} == {"intent", "outcome"}
    assert export["tool_permission_decision"]["behavior"] == "allow"
    assert export["tool_permission_decision"]["rule_refs"] == call["decision"]["rules"]
    assert export["tool_permission_decision"]["mode"] == "rules"
    assert export["tool_permission_decision"]["user_modified"] is False
    assert export["tool_permission_decision"]["pending_classifier_check"] is False
    assert export["tool_result"]["structured_content"] == call["result"]
    assert export["tool_result"]["redaction_state"] == "none"
    assert export["tool_result_persistence"]["mode"] == "inline"
    assert export["tool_event"][-1]["event_class"] == "tool.invocation.succeeded"


async def test_a_mark_that_a_tool_returns_is_no_redaction(gateway: HttpGateway) -> None:
    call = (await gateway.call("shop.rename_user", {"id": 7, "name": "[redacted] [path]"}, key="own-mark")).json()
    export = await export_call(gateway, call["call_id"])
    assert export["tool_result"]["structured_content"]["name"] == "[redacted] [path]"
    assert export["tool_result"]["redaction_state"] == "none"


async def test_a_failed_call_is_exported_with_its_error(gateway: HttpGateway) -> None:
    failed_write = (await gateway.call("shop.rename_user", {"id": 7}, key="exported-failure")).json()
    failed_read = (await gateway.call("shop.fail", {})).json()
    for call in (failed_write, failed_read):
        export = await export_call(gateway, call["call_id"])
        assert export["tool_error"]["error_class"] == call["error"]["class"]
        assert export["tool_error"]["number"] == call["error"]["number"]
        assert export["tool_result"]["is_error"] is True


async def test_a_read_is_exported_without_its_result_which_is_not_stored(gateway: HttpGateway) -> None:
    call = (await gateway.call("shop.get_user", {"id": 7})).json()
    export = await export_call(gateway, call["call_id"])
    assert export["tool_invocation"]["status"] == "succeeded"
    assert "structured_content" not in export["tool_result"]
    assert export["tool_result"]["redaction_state"] == "full"
    assert export["tool_invocation"]["actor_refs"] == [{"kind": "user", "id": "ana"}]
    assert export["tool_invocation"]["ended_at"] == export["tool_invocation"]["evidence_refs"][-1]["time"]
    assert export["tool_result_persistence"] == {
        "schema_version": "0.2.0",
        "invocation_id": call["call_id"],
        "result_id": f"{call['call_id']}:result",
        "mode": "redact",
        "reason": "results of reads are not stored",
    }


async def test_a_call_of_another_user_is_not_exported(gateway: HttpGateway) -> None:
    call = (await gateway.call("shop.rename_user", {"id": 7, "name": "Ana"}, key="exported-not")).json()
    answer = await gateway.get(f"/v1/calls/{call['call_id']}/export", token=gateway.token("eve"))
    assert answer.status_code == 404


@pytest.mark.requirement("REG-3")
async def test_a_surface_is_exported_with_each_tool_and_its_reason(gateway: HttpGateway) -> None:
    surface = (await gateway.get("/v1/surface", limit=500)).json()
    export = assert_valid((await gateway.get("/v1/surface/export", limit=500)).json())
    shown = {each["name"]: each["status"] for each in surface["tools"]}
    refs = export["tool_surface"]["tool_refs"]
    assert {each["name"]: each["status"] for each in refs} == shown
    assert export["tool_surface"]["loaded_tools"] == [name for name, status in shown.items() if status == "loaded"]
    assert export["tool_surface"]["scope"] == surface["scope"]
