"""The attribute values that rules read, by path."""

import pytest

from deputize.govern.policy.attribute_values import ABSENT_TEXT, REDACTED_TEXT, describe_rules, resolve_values
from deputize.govern.policy.cedar_schema import build_query
from tests.support.policy_inputs import MOMENT, compile_policies, make_caller, make_question, make_tool

pytestmark = pytest.mark.requirement("GOV-2")


def test_each_attribute_path_has_its_value() -> None:
    who = make_caller(
        agents=("bot", "planner"),
        agent_issuers=("", "https://other.example"),
        scopes=frozenset({"b", "a"}),
        task="invoices",
    )
    what = make_tool("crm.pay", effects="write", tags=["money"])
    question_ = build_query(make_question(who, what, facts={"amount": 5, "iban": "DE1"}, now_ms=MOMENT))
    paths = [
        "principal", "principal.scopes", "resource", "resource.name", "resource.tags", "context.agent",
        "context.agent_label", "context.agents", "context.time.hour", "context.facts.amount", "context.facts.iban",
        "context.facts.none", "context.session", "context.task", "action", "principal.nothing",
    ]  # fmt: skip

    assert resolve_values(question_, paths, frozenset({"facts.iban"})) == {
        "principal": "ana",
        "principal.scopes": ["a", "b"],
        "resource": "crm.pay",
        "resource.name": "pay",
        "resource.tags": ["money"],
        "context.agent": "issuer=https://other.example planner",
        "context.agent_label": "bot",
        "context.agents": ["bot", "planner"],
        "context.time.hour": 22,
        "context.facts.amount": 5,
        "context.facts.iban": REDACTED_TEXT,
        "context.facts.none": ABSENT_TEXT,
        "context.session": ABSENT_TEXT,
        "context.task": "invoices",
        "action": ABSENT_TEXT,
        "principal.nothing": ABSENT_TEXT,
    }


def test_rules_are_listed_with_the_attributes_they_read() -> None:
    rules = compile_policies('@id("r") permit (principal, action, resource) when { resource.effects == "read" };')
    question_ = build_query(make_question())
    verdict = rules.evaluate_query(question_)

    assert describe_rules(rules, verdict, question_) == [
        {
            "id": "r", "where": "1.cedar:1", "reason": "", "effect": "permit", "requires_approval": False,
            "read": {"resource.effects": "read"},
        }
    ]  # fmt: skip
    assert describe_rules(None, verdict, question_) == [{"id": "r", "where": "1.cedar:1", "reason": ""}]
