"""Test the comparison of a contract with its function's declaration: stricter is fine, weaker is named."""

from typing import Any

import pytest

from deputize.core.contract.contract import Contract
from deputize.core.contract.safety_floor import list_weakenings
from tests.support.contracts import make_contract, make_input_schema

pytestmark = [pytest.mark.requirement("GOV-1"), pytest.mark.requirement("GOV-3")]

INPUT = make_input_schema(
    id={"type": "integer", "minimum": 1, "maximum": 100, "description": "Which one", "x-policy": True},
    mail={"type": "string", "x-sensitivity": "pii", "pattern": "@"},
    plan={"type": "string", "enum": ["free", "pro"], "default": "free"},
)
DECLARED: dict[str, Any] = {
    "name": "drop_user",
    "effects": "destructive",
    "resources": [{"resource": "crm.users", "op": "delete", "scope": "{id}"}],
    "auth": {"scopes": ["crm:write", "crm:admin"], "permissions": ["act:crm"]},
    "idempotency": {"upstream": "cannot", "key_argument": "id", "window_seconds": 86_400},
    "preview": True,
    "preview_rules": {"fresh_seconds": 60, "volatile": ["/impact/seen_at"]},
    "predicates": [{"name": "small", "holds": {}}],
    "observability": {"cost_per_call": 2.0, "prices": {"currency": "EUR", "per_million_tokens": 3, "per_review": 9}},
    "tags": ["pii"],
    "external_service": "crm",
    "service_limits": {"max_concurrent": 5, "max_calls": 9, "window_seconds": 60},
    "requires_user_interaction": True,
    "authority_rank": 7,
    "recipient_argument": "mail",
    "labels": {"adds": ["private"]},
    "sandbox": {"tier": 2},
    "input_schema": INPUT,
    "output_schema": {"type": "object", "properties": {"key": {"type": "string", "x-sensitivity": "secret"}}},
}


def _make_other(**changes: Any) -> Contract:
    return make_contract(**{**DECLARED, "name": "tidy", "version": "9.0.0", **changes})


def _change_prices(**changes: Any) -> dict[str, Any]:
    observability = DECLARED["observability"]
    return {**observability, "prices": {**observability["prices"], **changes}}


def _change_input(name: str, **changes: Any) -> dict[str, Any]:
    return {**INPUT, "properties": {**INPUT["properties"], name: changes}}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"effects": "read", "resources": []}, "/effects"),
        ({"effects": "write", "undo": "crm.add"}, "/effects"),
        ({"undo": "crm.add"}, "/undo"),
        ({"auth": {"scopes": ["crm:write"], "permissions": ["act:crm"]}}, "/auth/scopes"),
        ({"auth": {"scopes": ["crm:write", "crm:admin"]}}, "/auth/permissions"),
        ({"resources": [{"resource": "crm.cache", "op": "delete", "scope": "*"}]}, "/resources"),
        ({"idempotency": {**DECLARED["idempotency"], "upstream": "deduplicates"}}, "/idempotency/upstream"),
        ({"idempotency": {"window_seconds": 86_400}}, "/idempotency/key_argument"),
        ({"idempotency": {"key_argument": "id"}}, "/idempotency/window_seconds"),
        ({"preview": False, "preview_rules": None}, "/preview"),
        ({"preview_rules": {"fresh_seconds": 600}}, "/preview_rules/fresh_seconds"),
        ({"preview_rules": {"fresh_seconds": 60, "volatile": ["/impact/count"]}}, "/preview_rules/volatile"),
        ({"predicates": []}, "/predicates"),
        ({"observability": {}}, "/observability/cost_per_call"),
        ({"observability": {"cost_per_call": 2.0}}, "/observability/prices/currency"),
        ({"observability": _change_prices(currency="JPY")}, "/observability/prices/currency"),
        ({"observability": _change_prices(per_million_tokens=2)}, "/observability/prices/per_million_tokens"),
        ({"observability": _change_prices(per_review=None)}, "/observability/prices/per_review"),
        ({"tags": []}, "/tags"),
        ({"external_service": "other"}, "/external_service"),
        ({"service_limits": None}, "/service_limits/max_concurrent"),
        ({"service_limits": {**DECLARED["service_limits"], "max_concurrent": 6}}, "/service_limits/max_concurrent"),
        ({"service_limits": {**DECLARED["service_limits"], "max_calls": 10}}, "/service_limits/max_calls"),
        ({"service_limits": {**DECLARED["service_limits"], "window_seconds": 59}}, "/service_limits/window_seconds"),
        ({"input_schema": _change_input("id", type="integer", maximum=100, minimum=1)}, "id/x-policy"),
        ({"input_schema": _change_input("mail", type="string", pattern="@")}, "mail/x-sensitivity"),
        ({"input_schema": _change_input("mail", type="string", pattern=".", **{"x-sensitivity": "pii"})}, "pattern"),
        ({"input_schema": _change_input("plan", type="string", default="free")}, "plan/enum"),
        ({"input_schema": _change_input("plan", type="string", enum=["free"], default="pro")}, "plan/default"),
        ({"output_schema": {"type": "object"}}, "/output_schema/properties/key"),
        ({"behaviours": ["idempotent"]}, "/behaviours"),
        ({"requires_user_interaction": False}, "/requires_user_interaction"),
        ({"open_world": False}, "/open_world"),
        ({"authority_rank": 8}, "/authority_rank"),
        ({"freshness": {"max_age_seconds": 9, "shared_by": "tenant"}}, "/freshness/shared_by"),
        ({"recipient_argument": None}, "/recipient_argument"),
        ({"labels": None}, "/labels"),
        ({"sandbox": {"tier": 3}}, "/sandbox"),
    ],
)
def test_a_weaker_contract_is_named_with_what_the_function_declares(changes: dict[str, Any], path: str) -> None:
    [weakening, *_] = list_weakenings(_make_other(**changes), make_contract(**DECLARED))
    assert weakening.path.endswith(path)
    assert weakening.contract_value != weakening.function_value


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"description": "Tidies up what nobody needs.", "title": "Tidy", "timeout": {"timeout_class": "long-running"}},
        {"auth": {"scopes": ["crm:admin", "crm:write", "crm:extra"], "permissions": ["act:crm"]}},
        {"input_schema": make_input_schema(id={**INPUT["properties"]["id"], "maximum": 10, "multipleOf": 2})},
        {"input_schema": _change_input("plan", type="string", enum=["free"], default="free", description="One")},
        {"preview_rules": {"fresh_seconds": 10}},
        {"observability": {**_change_prices(per_million_tokens=4, per_compute_second=1), "cost_per_call": 3.0}},
        {"authority_rank": 1, "open_world": True},
    ],
)
def test_a_contract_may_be_as_strict_or_stricter(changes: dict[str, Any]) -> None:
    assert list_weakenings(_make_other(**changes), make_contract(**DECLARED)) == []


def test_a_function_that_reads_may_be_treated_as_one_that_writes() -> None:
    stricter = make_contract(name="careful", effects="write", undo="crm.add", idempotency={"upstream": "deduplicates"})
    assert list_weakenings(stricter, make_contract()) == []


def test_a_write_that_loses_its_undo_must_say_that_it_is_destructive() -> None:
    declared = make_contract(effects="write", undo="crm.add")
    assert [each.path for each in list_weakenings(make_contract(effects="write"), declared)] == ["/undo"]
    assert list_weakenings(make_contract(effects="destructive"), declared) == []
