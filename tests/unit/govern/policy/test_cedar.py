"""What rules answer: allow, ask, deny, and that a rule which fails denies."""

import pytest

from deputize.core.decision import Behavior, Environment, Question
from deputize.govern.policy.cedar import LONGEST_FACT, CompiledPolicies
from deputize.govern.policy.force import default_files
from tests.unit.govern.policy.asking import ANYTHING, caller, ids, policies, question, tool

pytestmark = pytest.mark.requirement("GOV-2")

PERMIT = '@id("yes") ' + ANYTHING
PERMIT_ASK = '@id("yes-ask") @decision("ask") ' + ANYTHING
FORBID = '@id("no") @reason("Because.") forbid (principal, action, resource);'
FORBID_ASK = '@id("no-ask") @decision("ask") forbid (principal, action, resource);'


@pytest.mark.parametrize(
    ("texts", "behavior", "rules"),
    [
        ([], Behavior.DENY, ["nothing-permits"]),
        ([PERMIT], Behavior.ALLOW, ["yes"]),
        ([PERMIT_ASK], Behavior.ASK, ["yes-ask"]),
        ([PERMIT_ASK, PERMIT], Behavior.ALLOW, ["yes"]),
        ([FORBID], Behavior.DENY, ["no"]),
        ([PERMIT, FORBID], Behavior.DENY, ["no"]),
        ([PERMIT, FORBID_ASK], Behavior.ASK, ["no-ask"]),
        ([PERMIT_ASK, FORBID_ASK], Behavior.ASK, ["yes-ask", "no-ask"]),
        ([FORBID_ASK], Behavior.DENY, ["nothing-permits"]),
        ([PERMIT, FORBID_ASK, FORBID], Behavior.DENY, ["no"]),
    ],
)
def test_permits_forbids_and_asks_make_one_answer(texts: list[str], behavior: Behavior, rules: list[str]) -> None:
    verdict = policies(*texts).decide(question())
    assert (verdict.behavior, ids(verdict.rules)) == (behavior, rules)


def test_an_answer_says_which_rule_in_which_file_and_line_and_why() -> None:
    verdict = policies("// first\n\n" + FORBID + "\n\n" + PERMIT).decide(question())
    (rule,) = verdict.rules
    assert (rule.id, rule.where, rule.reason) == ("no", "1.cedar:3", "Because.")
    assert verdict.reason == "Because."


FAILING = {
    "reads what is absent": ("principal.nothing == 1", "reads the attribute nothing, which is absent"),
    "overflows": ("context.facts.amount + 9223372036854775807 > 0", "overflows an integer"),
    "compares types": ("context.facts.amount > context.environment", "meets a value of another type than it expects"),
}


@pytest.mark.parametrize("kind", sorted(FAILING))
@pytest.mark.parametrize("effect", ["permit", "forbid"])
def test_a_rule_that_fails_denies_even_where_another_permits(kind: str, effect: str) -> None:
    condition, how = FAILING[kind]
    failing = f'@id("broken") {effect} (principal, action, resource) when {{ {condition} }};'
    verdict = policies(PERMIT, failing).decide(question(facts={"amount": 31337}))
    assert (verdict.behavior, ids(verdict.rules)) == (Behavior.DENY, ["evaluation-error"])
    assert verdict.errors == (f"broken (2.cedar:1) {how}",)
    assert "31337" not in repr(verdict)


def test_a_text_too_long_to_be_held_against_patterns_denies_if_a_rule_reads_it() -> None:
    condition = f'context.facts has n && context.facts.n like "*{"a" * 30_000}b"'
    slow = f'@id("slow") forbid (principal, action, resource) when {{ {condition} }};'
    long = question(facts={"n": "a" * 1_000_000})
    verdict = policies(PERMIT, slow).decide(long)
    assert (verdict.behavior, ids(verdict.rules)) == (Behavior.DENY, ["evaluation-error"])
    assert verdict.errors == (f"the fact n is longer than the {LONGEST_FACT} characters rules may read",)
    assert policies(PERMIT).decide(long).behavior is Behavior.ALLOW
    assert policies(PERMIT, slow).decide(question(facts={"n": "a" * LONGEST_FACT})).behavior is Behavior.ALLOW


def test_a_value_that_cannot_be_judged_denies() -> None:
    reading = policies('@id("a") permit (principal, action, resource) unless { context.facts has amount };')
    for value in (1.5, None, 2**70, object()):
        verdict = reading.decide(question(facts={"amount": value}))
        assert (verdict.behavior, ids(verdict.rules)) == (Behavior.DENY, ["evaluation-error"])


DEFAULT = CompiledPolicies(default_files())


@pytest.mark.parametrize(
    ("effects", "trust", "environment", "behavior", "rule"),
    [
        ("read", "untrusted", "production", Behavior.ALLOW, "reads-are-free"),
        ("write", "trusted", "staging", Behavior.ALLOW, "trusted-reversible-writes"),
        ("write", "trusted", "production", Behavior.ASK, "reversible-writes-ask"),
        ("write", "standard", "development", Behavior.ASK, "reversible-writes-ask"),
        ("destructive", "trusted", "development", Behavior.ASK, "destructive-needs-human"),
    ],
)
def test_the_default_set_is_safe(
    effects: str, trust: str, environment: Environment, behavior: Behavior, rule: str
) -> None:
    touches = (("notes", "update", "7"),)
    asked = question(caller(trust=trust), tool(effects=effects), environment=environment, touches=touches)
    verdict = DEFAULT.decide(asked)
    assert (verdict.behavior, ids(verdict.rules)) == (behavior, [rule])
    assert all(each.reason and each.where.startswith("default.cedar:") for each in verdict.rules)


def _everything() -> Question:
    who = caller(agents=("bot", "boss"), groups=frozenset({"ops"}), scopes=frozenset({"a"}), task="t", human=True)
    what = tool(
        "crm.refund", effects="destructive", external_service="stripe", tags=("money",), preview=True,
        resources=({"resource": "crm.orders", "op": "update", "scope": "{id}"},),
    )  # fmt: skip
    return question(
        who, what, session="s", facts={"amount": 3, "to": ("a", "b")}, touches=(("crm.orders", "update", "17"),),
        cost_micros=5, labels=frozenset({"pii"}),
    )  # fmt: skip


@pytest.mark.parametrize(
    "condition",
    [
        'context.agent == Agent::"bot" && context.agents.contains(Agent::"boss") && context.delegated',
        'context.agent in Tenant::"acme"',
        'context.task == "t" && context.session == "s" && context.trust == "standard"',
        'context.environment == "development" && context.cost == 5 && context.labels == ["pii"]',
        "context.time.epoch == 1700000000 && context.time.hour == 22 && context.time.weekday == 1",
        'context.changes.contains(Resource::"crm.orders") && context.operations == ["update"]',
        'context.scopes == ["17"]',
        'context.facts.amount == 3 && context.facts.to.containsAll(["b", "a"])',
        'context == {agent: context.agent, agents: context.agents, delegated: true, task: "t", session: "s", '
        'trust: "standard", environment: "development", time: context.time, cost: 5, labels: ["pii"], '
        'changes: [Resource::"crm.orders"], operations: ["update"], scopes: ["17"], sweeping: false, '
        'facts: {amount: 3, "to": ["a", "b"]}}',
        'principal == User::"ana" && principal in Group::"ops" && principal in Tenant::"acme"',
        'principal.issuer == "https://login.example" && principal.human && principal.scopes == ["a"]',
        'resource == Tool::"crm.refund" && resource in Server::"stripe" && resource in Namespace::"crm"',
        'resource in Tenant::"acme" && Namespace::"crm" in Tenant::"acme" && Group::"ops" in Tenant::"acme"',
        'resource.name == "refund" && resource.namespace == "crm" && resource.version == "1.0.0"',
        'resource.effects == "destructive" && resource.mutation_class == "write-irreversible"',
        'resource.kind == "function" && resource.provider == "" && resource.tags == ["money"]',
        "resource.previewable && !resource.undoable",
    ],
)
def test_rules_can_read_the_whole_world(condition: str) -> None:
    verdict = policies(f'@id("a") permit (principal, action, resource) when {{ {condition} }};').decide(_everything())
    assert verdict.behavior is Behavior.ALLOW, verdict.errors
