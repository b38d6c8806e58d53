"""Policies tried on the tools of a project, without a gateway."""

from typing import Any

import pytest

from deputize.core.contract import Contract
from deputize.govern.policy.cases import Case, Judged, Placed
from deputize.govern.policy.rules import Mistake
from deputize.lifecycle.rehearse import Rehearsal, fact_types, names
from tests.unit.govern.policy.asking import policies, tool

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


def refund(version: str = "1.0.0", **more: Any) -> Contract:
    resources = [{"resource": "orders", "op": "update", "scope": "{order}"}]
    return tool("shop.refund", effects="write", version=version, input_schema=SCHEMA, resources=resources, **more)


def run(*contracts: Contract, **fields: Any) -> Judged | Mistake:
    case = Case.model_validate({"name": "case", "tool": "shop.refund", "expect": "allow"} | fields)
    return Rehearsal(policies(RULES), contracts or (refund(),), "acme").run(Placed(case=case, file="t.yaml", line=3))


def holds(found: Judged | Mistake) -> bool:
    assert isinstance(found, Judged), found
    return found.holds


def test_arguments_become_facts_and_touches_as_in_a_call() -> None:
    assert holds(run(arguments={"amount": 5}, by=["small"]))
    assert holds(run(arguments={"amount": 50, "order": 7}, by=["own-orders"]))
    assert holds(run(arguments={"amount": 50, "order": 8}, expect="deny"))
    assert holds(run(arguments={"amount": "5"}, by=["small"])), "arguments are coerced as those of a call are"


def test_facts_and_scopes_may_be_given_instead() -> None:
    assert holds(run(facts={"amount": 5}))
    assert holds(run(facts={"amount": 50}, scopes=["7"], by=["own-orders"]))
    assert holds(run(expect="deny")), "a call of which nothing is known"
    assert holds(run(tool={"name": "a.b"}, facts={"amount": 5}))


def test_the_newest_version_of_a_tool_is_asked_about() -> None:
    newest = refund("1.10.0", tags=["new"])
    rules = '@id("new") permit (principal, action, resource) when { resource.version == "1.10.0" };'
    case = Case.model_validate({"name": "case", "tool": "shop__refund", "expect": "allow"})

    found = Rehearsal(policies(rules), (newest, refund("1.9.0")), "acme").run(Placed(case=case, file="t", line=1))

    assert holds(found)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool": "shop.refnd"}, "there is no tool shop.refnd in this project; did you mean shop.refund?"),
        ({"tool": "x.y"}, "or describe it in place, with name and effects"),
        ({"arguments": {"amount": 5}, "facts": {"amount": 5}}, "give one of them"),
        ({"arguments": {}}, "its arguments do not fit shop.refund: amount is required"),
        ({"facts": {"amout": 5}}, "shop.refund tells policies no fact amout; it tells amount"),
        ({"tool": {"name": "a.b"}, "arguments": {}}, "takes no arguments; give facts"),
    ],
)
def test_a_case_that_cannot_be_asked_is_a_mistake_at_its_place(fields: dict[str, Any], message: str) -> None:
    found = run(**fields)

    assert isinstance(found, Mistake)
    assert (found.file, found.line) == ("t.yaml", 3)
    assert message in found.message


def test_what_rules_may_be_about_comes_from_the_tools() -> None:
    contracts = [refund(external_service="stripe"), tool("crm.list", provider="acme")]

    assert fact_types(contracts) == {"amount": "Long"}
    assert names(contracts, "acme") == {
        "Tool": {"shop.refund", "crm.list"},
        "Namespace": {"shop", "crm"},
        "Server": {"stripe", "acme"},
        "Tenant": {"acme"},
    }
