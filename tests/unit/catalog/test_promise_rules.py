"""A contract that promises what the rest of it contradicts is not admitted."""

from typing import Any

import pytest

from deputize.catalog.policy_facts import find_no_fact
from deputize.catalog.registration_rules import admit_contract, check_conflicts, find_no_owner
from deputize.core.contract.contract import Contract
from deputize.core.errors import ToolNotAdmitted
from tests.support.contracts import make_contract, make_input_schema

pytestmark = [pytest.mark.requirement("CON-2"), pytest.mark.requirement("CON-7")]

USERS = {"resource": "crm.users", "op": "update", "scope": "{id}"}
WRITE: dict[str, Any] = {
    "effects": "write", "resources": [USERS], "undo": "crm.restore", "auth": {"scopes": ["crm:write"]},
    "output_schema": {"type": "object", "properties": {"order": {"type": "integer"}}},
}  # fmt: skip
RESTORE: dict[str, Any] = {"compensation_class": "full", "tool": "crm.restore", "bind": {"id": "/arguments/id"}}
MCP = {"driver": "mcp", "target": "crm/getUser"}
MCP_IDS = {"server_id": "crm", "tool_name": "getUser"}


def list_reasons(*others: Contract, **changes: Any) -> list[str]:
    tools = {each.full_name: each for each in others}
    try:
        admit_contract(make_contract(**changes), find_contract=tools.get if others else None)
    except ToolNotAdmitted as refused:
        found = refused.details["reasons"]
        assert all(each["conjunct"] and each["reason"] and each["fix"] for each in found)
        return [each["path"] for each in found]
    return []


@pytest.mark.parametrize(
    "changes",
    [
        {"behaviours": ["deterministic", "idempotent"]},
        {**WRITE, "behaviours": ["idempotent"], "idempotency": {"upstream": "deduplicates"}},
        {**WRITE, "behaviours": ["monotone", "conserving", "reversible"]},
        {**WRITE, "compensation": RESTORE, "recipient_argument": "plan"},
        {**WRITE, "compensation": {**RESTORE, "bind": {"id": "/result/order"}, "constants": {"why": "undo"}}},
        {"freshness": {"max_age_seconds": 60}, "open_world": False, "labels": {"adds": ["private"]}},
        {"objectives": {"p99_seconds": 5, "cost": 0.5}, "observability": {"cost_per_call": 0.5}},
        {"sandbox": {"tier": 0}, "alerts": {"error_rate": 0.1}},
        {"sandbox": {"tier": 3, "permissions": ["filesystem:read"]}},
        {"native_ids": {"mcp": MCP_IDS}},
        {"native_ids": {"mcp": MCP_IDS}, "handler": MCP},
    ],
)
def test_promises_that_fit_the_contract_are_admitted(changes: dict[str, Any]) -> None:
    assert list_reasons(**changes) == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({**WRITE, "behaviours": ["deterministic"]}, "/behaviours/0"),
        ({**WRITE, "behaviours": ["idempotent"]}, "/behaviours/0"),
        ({"behaviours": ["monotone"]}, "/behaviours/0"),
        ({**WRITE, "behaviours": ["monotone"], "resources": [{**USERS, "op": "delete"}]}, "/behaviours/0"),
        ({"behaviours": ["conserving"]}, "/behaviours/0"),
        ({"behaviours": ["reversible"]}, "/behaviours/0"),
        (
            {**WRITE, "behaviours": ["reversible"], "effects": "destructive", "undo": None, "preview": True},
            "/behaviours/0",
        ),
        ({"behaviours": ["deterministic", "deterministic"]}, "/behaviours/1"),
        ({"rolls_back": True}, "/rolls_back"),
        ({**WRITE, "rolls_back": True, "handler": MCP}, "/rolls_back"),
        ({"reads_state": True, "handler": MCP}, "/reads_state"),
        ({"verifies": True, "handler": MCP}, "/verifies"),
        ({"compensation": RESTORE}, "/compensation"),
        ({**WRITE, "compensation": {"compensation_class": "irreversible"}}, "/compensation"),
        ({**WRITE, "compensation": {"compensation_class": "partial"}}, "/compensation/tool"),
        (
            {**WRITE, "effects": "destructive", "compensation": {**RESTORE, "compensation_class": "irreversible"}},
            "/compensation/tool",
        ),
        ({**WRITE, "compensation": {**RESTORE, "bind": {"id": "/arguments/no"}}}, "/compensation/bind/id"),
        ({**WRITE, "compensation": {**RESTORE, "bind": {"id": "/result/no"}}}, "/compensation/bind/id"),
        ({**WRITE, "compensation": {**RESTORE, "constants": {"id": 7}}}, "/compensation/bind/id"),
        ({**WRITE, "compensation": {**RESTORE, "bind": {"id": "/before/id"}}}, "/compensation/bind"),
        ({**WRITE, "freshness": {"max_age_seconds": 60}}, "/freshness"),
        ({**WRITE, "fallback": ["crm.other"]}, "/fallback"),
        ({"fallback": ["crm.other", "crm.other"]}, "/fallback/1"),
        ({**WRITE, "fallback_task": "Call them."}, "/fallback_task"),
        ({"open_world": False, "kind": "web_search"}, "/open_world"),
        ({"recipient_argument": "to"}, "/recipient_argument"),
        ({"labels": {}}, "/labels"),
        ({"objectives": {}}, "/objectives"),
        ({"objectives": {"p99_seconds": 6}}, "/objectives/p99_seconds"),
        ({"objectives": {"cost": 0.1}, "observability": {"cost_per_call": 0.5}}, "/objectives/cost"),
        ({"alerts": {}}, "/alerts"),
        ({**WRITE, "sandbox": {"tier": 1}}, "/sandbox/tier"),
        ({"sandbox": {"tier": 1}, "network": {"allowed_domains": ["crm.example"]}}, "/sandbox/tier"),
        ({"sandbox": {"tier": 2, "permissions": ["a:b"]}}, "/sandbox/permissions"),
        ({"native_ids": {"mcp": {**MCP_IDS, "tool_name": "dropUser"}}, "handler": MCP}, "/native_ids/mcp"),
    ],
)
def test_a_promise_that_contradicts_the_contract_is_refused(changes: dict[str, Any], path: str) -> None:
    assert list_reasons(**changes) == [path]


def test_the_compensating_tool_exists_and_gets_its_arguments() -> None:
    restore = make_contract(name="restore", input_schema=make_input_schema(id={"type": "integer"}))
    demanding = make_contract(
        name="restore", input_schema={**make_input_schema(id={"type": "integer"}), "required": ["id", "reason"]}
    )
    declared = {**WRITE, "compensation": RESTORE}
    assert list_reasons(restore, **declared) == []
    assert list_reasons(demanding, **declared) == ["/compensation/bind"]
    assert list_reasons(restore, **{**declared, "compensation": {**RESTORE, "constants": {"why": "x"}}}) == [
        "/compensation/bind"
    ]
    other = make_contract(name="other")
    assert list_reasons(other, **declared) == ["/undo", "/compensation/tool"]
    with pytest.raises(ToolNotAdmitted, match=r"crm\.restore is not a callable tool"):
        check_conflicts(
            make_contract(**{**declared, "undo": None}),
            find_owner=find_no_owner,
            find_fact=find_no_fact,
            find_contract=lambda _: None,
        )


def test_a_tool_may_compensate_itself() -> None:
    own = {**RESTORE, "tool": "crm.get_user"}
    assert list_reasons(make_contract(name="restore"), **{**WRITE, "compensation": own}) == []


@pytest.mark.requirement("RES-2")
@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, []),
        ({"input_schema": make_input_schema(id={"type": "integer", "description": "Which user", "examples": [7]})}, []),
        (WRITE, ["/fallback/0"]),
        ({"input_schema": make_input_schema(id={"type": "string", "description": "Which user"})}, ["/fallback/0"]),
        ({"input_schema": make_input_schema(key={"type": "string", "description": "A key"})}, ["/fallback/0"]),
        ({"output_schema": {"type": "array"}}, ["/fallback/0"]),
    ],
)
def test_an_alternative_reads_the_same_with_the_same_arguments(changes: dict[str, Any], reasons: list[str]) -> None:
    other = make_contract(**{"name": "other", **changes})
    assert list_reasons(other, fallback=["crm.other"]) == reasons


@pytest.mark.requirement("RES-2")
def test_an_alternative_must_exist() -> None:
    assert list_reasons(make_contract(name="another"), fallback=["crm.other"]) == ["/fallback/0"]
