"""What rules were told, by the paths they read."""

import pytest

from deputize.govern.policy.told import ABSENT, REDACTED, spoken, told
from deputize.govern.policy.world import asked
from tests.unit.govern.policy.asking import MOMENT, caller, policies, question, tool

pytestmark = pytest.mark.requirement("GOV-2")


def test_each_path_is_told_with_its_value() -> None:
    who = caller(agents=("bot", "planner"), scopes=frozenset({"b", "a"}), task="invoices")
    what = tool("crm.pay", effects="write", tags=["money"])
    question_ = asked(question(who, what, facts={"amount": 5, "iban": "DE1"}, now_ms=MOMENT))
    paths = [
        "principal", "principal.scopes", "resource", "resource.name", "resource.tags", "context.agent",
        "context.agents", "context.time.hour", "context.facts.amount", "context.facts.iban", "context.facts.none",
        "context.session", "context.task", "action", "principal.nothing",
    ]  # fmt: skip

    assert told(question_, paths, frozenset({"facts.iban"})) == {
        "principal": "ana",
        "principal.scopes": ["a", "b"],
        "resource": "crm.pay",
        "resource.name": "pay",
        "resource.tags": ["money"],
        "context.agent": "bot",
        "context.agents": ["bot", "planner"],
        "context.time.hour": 22,
        "context.facts.amount": 5,
        "context.facts.iban": REDACTED,
        "context.facts.none": ABSENT,
        "context.session": ABSENT,
        "context.task": "invoices",
        "action": ABSENT,
        "principal.nothing": ABSENT,
    }


def test_rules_are_told_with_what_they_read_as_far_as_they_are_known() -> None:
    rules = policies('@id("r") permit (principal, action, resource) when { resource.effects == "read" };')
    question_ = asked(question())
    verdict = rules.replay(question_)

    assert spoken(rules, verdict, question_) == [
        {
            "id": "r", "where": "1.cedar:1", "reason": "", "effect": "permit", "asks": False,
            "read": {"resource.effects": "read"},
        }
    ]  # fmt: skip
    assert spoken(None, verdict, question_) == [{"id": "r", "where": "1.cedar:1", "reason": ""}]
