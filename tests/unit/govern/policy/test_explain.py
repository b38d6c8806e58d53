"""The smallest change that would allow a call, found by evaluating single changes."""

import pytest
from hypothesis import given

from deputize.core.decision import Behavior, PolicyRequest, UndoneCall
from deputize.govern.policy.active_policies import load_default_files
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.cedar_schema import build_query
from deputize.govern.policy.explain import MAX_RULE_TRIALS, find_smallest_changes
from tests.support.policy_inputs import ANYTHING, compile_policies, make_caller, make_files, make_question, make_tool
from tests.unit.govern.policy.policy_strategies import draw_policies, draw_question

pytestmark = pytest.mark.requirement("GOV-2")

DEFAULT = CompiledPolicies(load_default_files())
PERMIT = f'@id("yes") {ANYTHING}'


def test_an_allowed_call_needs_no_change() -> None:
    assert find_smallest_changes(DEFAULT, make_question()) == []


def test_the_default_policies_explain_what_a_write_needs() -> None:
    write, one = make_tool(effects="write"), (("notes", "update", "7"),)
    assert find_smallest_changes(DEFAULT, make_question(what=write, side_effects=one)) == [
        "if the caller's trust were trusted, not standard",
        "if reversible-writes-ask (default.cedar:18) required no approval",
    ]
    trusted = make_question(make_caller(trust="trusted"), write, environment="production", side_effects=one)
    assert find_smallest_changes(DEFAULT, trusted) == [
        "if the environment were development, not production",
        "if the environment were staging, not production",
        "if reversible-writes-ask (default.cedar:18) required no approval",
    ]


@pytest.mark.parametrize(
    ("condition", "wanted", "change"),
    [
        ('principal in Group::"ops"', make_question(), "if the caller were in the group ops"),
        (
            "!context.sweeping",
            make_question(what=make_tool(effects="write")),
            "if the call named every resource it changes",
        ),
        (
            '!(principal in Group::"x")',
            make_question(make_caller(groups=frozenset({"x"}))),
            "if the caller were not in the group x",
        ),
        ("!context.delegated", make_question(make_caller(agents=("bot",))), "if the caller used no agent"),
        ('context has agent && context.agent == Agent::"a"', make_question(), "if the agent a acted for the caller"),
        ("principal.human", make_question(), "if the caller were human"),
        ('principal.scopes.contains("s")', make_question(), "if the token had the scope s"),
        ('context has task && context.task == "t"', make_question(), "if the delegation were for the task t"),
        ("context.facts has n && context.facts.n < 500", make_question(facts={"n": 900}), "if the fact n were 499"),
        ("context.facts has n && context.facts.n < 500", make_question(), "if the fact n were 499"),
        ("!(context.facts has n)", make_question(facts={"n": 900}), "if the fact n were absent"),
        ('context.facts has w && context.facts.w == "x"', make_question(facts={"w": "y"}), 'if the fact w were "x"'),
        ('context.facts has to && context.facts.to.contains("a")', make_question(), "if the fact to contained a"),
        (
            '!context.facts.to.contains("a")',
            make_question(facts={"to": ("a", "b")}),
            "if the fact to did not contain a",
        ),
        ("context.time.hour < 18", make_question(), "if the hour were 17, not 22 (UTC)"),
        ("context.time.weekday >= 5", make_question(), "if the weekday were 5, not 1 (UTC, 0 is Monday)"),
        ("context.cost <= 10", make_question(cost_micros=50), "if the session had cost 10 micros so far"),
        ("!(context has undoes)", make_question(undone=UndoneCall(tool="a.b")), "if it took no other call back"),
        (
            "!(context has undoes && context.undoes.delegated)",
            make_question(undone=UndoneCall(tool="a.b", agents=("bot",))),
            "if the call that it takes back was made without an agent",
        ),
        (
            '!context.labels.contains("pii")',
            make_question(labels=frozenset({"pii"})),
            "if the session had not read data labelled pii",
        ),
    ],
)
def test_each_kind_of_change_is_found(condition: str, wanted: PolicyRequest, change: str) -> None:
    text = f'@id("a") permit (principal, action, resource) when {{ {condition} }};'
    whole = CompiledPolicies(make_files(text), {"to": "Set<String>"})
    assert change in find_smallest_changes(whole, wanted)


def test_a_single_blocking_rule_is_named() -> None:
    forbid = '@id("no") forbid (principal, action, resource);'
    again = '@id("nor") forbid (principal, action, resource);'
    assert find_smallest_changes(compile_policies(PERMIT, forbid), make_question()) == [
        "if no (2.cedar:1) did not forbid it"
    ]
    assert find_smallest_changes(compile_policies(PERMIT, forbid, again), make_question()) == []
    asking = '@id("no") @decision("ask") forbid (principal, action, resource);'
    assert find_smallest_changes(compile_policies(PERMIT, asking), make_question()) == [
        "if no (2.cedar:1) did not forbid it"
    ]


def test_a_rule_that_fails_is_named() -> None:
    broken = '@id("broken") permit (principal, action, resource) when { principal.nothing };'
    assert find_smallest_changes(compile_policies(PERMIT, broken), make_question()) == [
        "if broken (2.cedar:1) did not fail"
    ]


def test_values_of_facts_are_not_revealed() -> None:
    text = (
        '@id("a") permit (principal, action, resource) when { context.facts.n < 5 && context.facts.to.contains("x") };'
    )
    told = find_smallest_changes(compile_policies(text), make_question(facts={"n": 31337, "to": ("x", "hidden")}))
    assert told == ["if the fact n were 4"]


@given(draw_policies(), draw_question())
def test_reported_changes_work_and_working_changes_are_reported(whole: CompiledPolicies, wanted: PolicyRequest) -> None:
    told = find_smallest_changes(whole, wanted)
    assert told == find_smallest_changes(whole, build_query(wanted))
    if whole.decide(wanted).behavior is Behavior.ALLOW:
        assert told == []
        return
    who = wanted.caller
    other = make_caller(
        who.user, tenant=who.tenant, agents=who.agents, groups=who.groups, scopes=who.scopes, trust=who.trust,
        human=not who.human, task=who.task,
    )  # fmt: skip
    names = ("session", "now_ms", "side_effects", "cost_micros", "labels", "undone")
    fields = {name: getattr(wanted, name) for name in names}
    changed = make_question(other, wanted.contract, environment=wanted.environment, facts=wanted.facts, **fields)
    said = any("human" in sentence for sentence in told)
    assert said == (whole.decide(changed).behavior is Behavior.ALLOW)


def test_the_number_of_rule_trials_is_limited() -> None:
    asking = [f'@id("ask-{number}") @decision("ask") {ANYTHING}' for number in range(300)]
    changes = find_smallest_changes(compile_policies(*asking), make_question())
    assert len(changes) == MAX_RULE_TRIALS
