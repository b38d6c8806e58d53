"""Policies tried on the tools of a project, without a gateway."""

from typing import Any

import pytest

from deputize.core.contract.contract import Contract
from deputize.govern.policy.checks.policy_cases import Case, CaseResult, LocatedCase
from deputize.govern.policy.policy_parser import PolicyDiagnostic
from deputize.operations.admin.policy.rehearsal import Rehearsal, collect_fact_types, collect_names
from deputize.sandboxes.port import Backend
from tests.support.policy_inputs import compile_policies, make_tool

pytestmark = pytest.mark.requirement("GOV-2")

RULES = """
@id("small") permit (principal, action, resource) when { context.facts has amount && context.facts.amount < 10 };
@id("own-orders") permit (principal, action, resource) when { context.scopes.contains("7") };
"""
SCHEMA = {
    "type": "object",
    "properties": {"amount": {"type": "integer", "x-policy": True}, "order": {"type": "integer"}},
    "required": ["amount"],
    "additionalProperties": False,
}


def make_refund_contract(version: str = "1.0.0", **more: Any) -> Contract:
    resources = [{"resource": "orders", "op": "update", "scope": "{order}"}]
    return make_tool("shop.refund", effects="write", version=version, input_schema=SCHEMA, resources=resources, **more)


def run_case(*contracts: Contract, **fields: Any) -> CaseResult | PolicyDiagnostic:
    case = Case.model_validate({"name": "case", "tool": "shop.refund", "expect": "allow"} | fields)
    return Rehearsal(compile_policies(RULES), contracts or (make_refund_contract(),), "acme").run_case(
        LocatedCase(case=case, file="t.yaml", line=3)
    )


def is_expected(result: CaseResult | PolicyDiagnostic) -> bool:
    assert isinstance(result, CaseResult), result
    return result.has_passed


def test_arguments_become_facts_and_touches_as_in_a_call() -> None:
    assert is_expected(run_case(arguments={"amount": 5}, by=["small"]))
    assert is_expected(run_case(arguments={"amount": 50, "order": 7}, by=["own-orders"]))
    assert is_expected(run_case(arguments={"amount": 50, "order": 8}, expect="deny"))
    assert is_expected(run_case(arguments={"amount": "5"}, by=["small"])), (
        "arguments are coerced as those of a call are"
    )


def test_facts_and_scopes_may_be_given_instead() -> None:
    assert is_expected(run_case(facts={"amount": 5}))
    assert is_expected(run_case(facts={"amount": 50}, scopes=["7"], by=["own-orders"]))
    assert is_expected(run_case(expect="deny")), "a call of which nothing is known"
    assert is_expected(run_case(tool={"name": "a.b"}, facts={"amount": 5}))


@pytest.mark.parametrize("decision", ["", '@decision("ask") '])
def test_a_demanded_sandbox_denies_a_tool_that_has_none_and_is_marked_where_that_is_unknown(decision: str) -> None:
    rules = f'@id("open") {decision}permit (principal, action, resource);\n'
    policies = compile_policies(rules, '@id("walled") @backend("gvisor") forbid (principal, action, resource);')
    contracts, case = (
        (make_refund_contract(),),
        Case.model_validate({"name": "case", "tool": "shop.refund", "expect": "deny", "by": "walled"}),
    )
    inside_none = Rehearsal(policies, contracts, "acme", placements={"shop.refund": "none"})

    assert is_expected(inside_none.run_case(LocatedCase(case=case, file="t", line=1)))
    denied, unknown = inside_none.explain(case), Rehearsal(policies, contracts, "acme").explain(case)
    met = Rehearsal(policies, contracts, "acme", placements={"shop.refund": Backend.GVISOR}).explain(case)

    assert (denied["behavior"], denied["allowed_if"]) == ("deny", [])
    assert denied["reason"] == "it would run in no sandbox here, and the rule demands gvisor"
    assert unknown == met
    assert unknown["behavior"] == ("ask" if decision else "allow")
    assert [(each["id"], each["reason"]) for each in unknown["rules"]] == [
        ("open", ""), ("walled", "only in a sandbox on gvisor")
    ]  # fmt: skip


def test_the_newest_version_of_a_tool_is_asked_about() -> None:
    newest = make_refund_contract("1.10.0", tags=["new"])
    rules = '@id("new") permit (principal, action, resource) when { resource.version == "1.10.0" };'
    case = Case.model_validate({"name": "case", "tool": "shop__refund", "expect": "allow"})

    found = Rehearsal(compile_policies(rules), (newest, make_refund_contract("1.9.0")), "acme").run_case(
        LocatedCase(case=case, file="t", line=1)
    )

    assert is_expected(found)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool": "shop.refnd"}, "there is no tool shop.refnd in this project; did you mean shop.refund?"),
        ({"tool": "x.y"}, "or describe the tool in the case, with name and effects"),
        ({"arguments": {"amount": 5}, "facts": {"amount": 5}}, "give either arguments or facts"),
        ({"arguments": {}}, "the arguments do not match shop.refund: amount is required"),
        ({"facts": {"amout": 5}}, "shop.refund exposes no fact amout; its facts are amount"),
        ({"tool": {"name": "a.b"}, "arguments": {}}, "takes no arguments; give facts"),
    ],
)
def test_a_case_that_cannot_be_asked_is_a_mistake_at_its_place(fields: dict[str, Any], message: str) -> None:
    found = run_case(**fields)

    assert isinstance(found, PolicyDiagnostic)
    assert (found.file, found.line) == ("t.yaml", 3)
    assert message in found.message


def test_what_rules_may_be_about_comes_from_the_tools() -> None:
    contracts = [make_refund_contract(external_service="stripe"), make_tool("crm.list", provider="acme")]

    assert collect_fact_types(contracts) == {"amount": "Long"}
    assert collect_names(contracts, "acme") == {
        "Tool": {"shop.refund": {"amount"}, "crm.list": set()},
        "Namespace": {"shop": {"amount"}, "crm": set()},
        "Server": {"stripe": {"amount"}, "acme": set()},
        "Tenant": {"acme": {"amount"}},
    }
