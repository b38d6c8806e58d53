"""The smallest change that would allow a call: found by asking again, one thing at a time."""

import pytest
from hypothesis import given, settings

from deputize.core.decision import Behavior, Question
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.explain import MOST_RULES_TRIED, smallest_change
from deputize.govern.policy.force import default_files
from deputize.govern.policy.world import asked
from tests.unit.govern.policy.asking import ANYTHING, caller, files, policies, question, tool
from tests.unit.govern.policy.worlds import some_policies, some_question

pytestmark = pytest.mark.requirement("GOV-2")

DEFAULT = CompiledPolicies(default_files())
PERMIT = f'@id("yes") {ANYTHING}'


def test_an_allowed_call_needs_no_change() -> None:
    assert smallest_change(DEFAULT, question()) == []


def test_the_default_set_says_what_a_write_lacks() -> None:
    write, one = tool(effects="write"), (("notes", "update", "7"),)
    assert smallest_change(DEFAULT, question(what=write, touches=one)) == [
        "if the caller's trust were trusted, not standard",
        "if reversible-writes-ask (default.cedar:18) did not ask",
    ]
    trusted = question(caller(trust="trusted"), write, environment="production", touches=one)
    assert smallest_change(DEFAULT, trusted) == [
        "if the environment were development, not production",
        "if the environment were staging, not production",
        "if reversible-writes-ask (default.cedar:18) did not ask",
    ]


@pytest.mark.parametrize(
    ("condition", "wanted", "change"),
    [
        ('principal in Group::"ops"', question(), "if the caller were in the group ops"),
        ("!context.sweeping", question(what=tool(effects="write")), "if the call named each thing it changes"),
        ('!(principal in Group::"x")', question(caller(groups=frozenset({"x"}))),
         "if the caller were not in the group x"),
        ("!context.delegated", question(caller(agents=("bot",))), "if the caller called without an agent"),
        ('context has agent && context.agent == Agent::"a"', question(), "if the agent a acted for the caller"),
        ("principal.human", question(), "if the caller were a human"),
        ('principal.scopes.contains("s")', question(), "if the token had the scope s"),
        ('context has task && context.task == "t"', question(), "if the delegation were for the task t"),
        ("context.facts has n && context.facts.n < 500", question(facts={"n": 900}), "if the fact n were 499"),
        ("context.facts has n && context.facts.n < 500", question(), "if the fact n were 499"),
        ("!(context.facts has n)", question(facts={"n": 900}), "if the fact n were absent"),
        ('context.facts has w && context.facts.w == "x"', question(facts={"w": "y"}), 'if the fact w were "x"'),
        ('context.facts has to && context.facts.to.contains("a")', question(), "if the fact to held a"),
        ('!context.facts.to.contains("a")', question(facts={"to": ("a", "b")}), "if the fact to did not hold a"),
        ("context.time.hour < 18", question(), "if the hour were 17, not 22 (UTC)"),
        ("context.time.weekday >= 5", question(), "if the weekday were 5, not 1 (UTC, 0 is Monday)"),
        ("context.cost <= 10", question(cost_micros=50), "if the session had cost 10 micros so far"),
        ('!context.labels.contains("pii")', question(labels=frozenset({"pii"})),
         "if the session had not read what is labelled pii"),
    ],
)  # fmt: skip
def test_each_kind_of_change_is_found(condition: str, wanted: Question, change: str) -> None:
    text = f'@id("a") permit (principal, action, resource) when {{ {condition} }};'
    whole = CompiledPolicies(files(text), {"to": "Set<String>"})
    assert change in smallest_change(whole, wanted)


def test_a_rule_that_stands_alone_in_the_way_is_named() -> None:
    forbid = '@id("no") forbid (principal, action, resource);'
    again = '@id("nor") forbid (principal, action, resource);'
    assert smallest_change(policies(PERMIT, forbid), question()) == ["if no (2.cedar:1) did not forbid it"]
    assert smallest_change(policies(PERMIT, forbid, again), question()) == []
    asking = '@id("no") @decision("ask") forbid (principal, action, resource);'
    assert smallest_change(policies(PERMIT, asking), question()) == ["if no (2.cedar:1) did not forbid it"]


def test_a_rule_that_fails_is_named() -> None:
    broken = '@id("broken") permit (principal, action, resource) when { principal.nothing };'
    assert smallest_change(policies(PERMIT, broken), question()) == ["if broken (2.cedar:1) did not fail"]


def test_values_of_facts_are_not_told() -> None:
    text = (
        '@id("a") permit (principal, action, resource) when { context.facts.n < 5 && context.facts.to.contains("x") };'
    )
    told = smallest_change(policies(text), question(facts={"n": 31337, "to": ("x", "hidden")}))
    assert told == ["if the fact n were 4"]


@settings(max_examples=100, deadline=None)
@given(some_policies(), some_question())
def test_what_is_said_holds_and_what_holds_is_said(whole: CompiledPolicies, wanted: Question) -> None:
    told = smallest_change(whole, wanted)
    assert told == smallest_change(whole, asked(wanted))
    if whole.decide(wanted).behavior is Behavior.ALLOW:
        assert told == []
        return
    who = wanted.caller
    other = caller(
        who.user, tenant=who.tenant, agents=who.agents, groups=who.groups, scopes=who.scopes, trust=who.trust,
        human=not who.human, task=who.task,
    )  # fmt: skip
    fields = {name: getattr(wanted, name) for name in ("session", "now_ms", "touches", "cost_micros", "labels")}
    changed = question(other, wanted.contract, environment=wanted.environment, facts=wanted.facts, **fields)
    said = any("human" in sentence for sentence in told)
    assert said == (whole.decide(changed).behavior is Behavior.ALLOW)


def test_only_so_many_rules_are_tried_without_one_another() -> None:
    asking = [f'@id("ask-{number}") @decision("ask") {ANYTHING}' for number in range(300)]
    changes = smallest_change(policies(*asking), question())
    assert len(changes) == MOST_RULES_TRIED
