"""Verdicts of rules: allow, ask, deny; a rule that fails to evaluate denies."""

from collections.abc import Callable
from time import thread_time

import pytest

from deputize.core.caller import compute_decision_cache_key
from deputize.core.decision import Behavior, Environment, PolicyRequest, UndoneCall
from deputize.govern.policy.active_policies import load_default_files
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.evaluation_job import evaluate_costly_slice
from deputize.govern.policy.slice_cost import MAX_FACT_LENGTH
from deputize.govern.policy.unmet_demand import deny_replayed, deny_unmet
from deputize.sandboxes.port import Backend, Placement
from tests.support.policy_inputs import ANYTHING, compile_policies, make_caller, make_question, make_tool, rule_ids

pytestmark = pytest.mark.requirement("GOV-2")

PERMIT = '@id("yes") ' + ANYTHING
PERMIT_ASK = '@id("yes-ask") @decision("ask") ' + ANYTHING
FORBID = '@id("no") @reason("Because.") forbid (principal, action, resource);'
FORBID_WEAK = '@id("strong") @backend("gvisor") forbid (principal, action, resource);'
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
        ([FORBID_WEAK], Behavior.DENY, ["nothing-permits"]),
        ([PERMIT, FORBID_WEAK], Behavior.ALLOW, ["yes", "strong"]),
        ([PERMIT_ASK, FORBID_WEAK], Behavior.ASK, ["yes-ask"]),
        ([PERMIT, FORBID_ASK, FORBID_WEAK], Behavior.ASK, ["no-ask"]),
        ([PERMIT, FORBID_WEAK, FORBID], Behavior.DENY, ["no"]),
    ],
)
def test_permits_forbids_and_approvals_combine_to_one_verdict(
    texts: list[str], behavior: Behavior, rules: list[str]
) -> None:
    verdict = compile_policies(*texts).decide(make_question())
    assert (verdict.behavior, rule_ids(verdict.rules)) == (behavior, rules)
    demands = ["strong"] if FORBID_WEAK in texts and behavior is not Behavior.DENY else []
    assert [each.rule for each in verdict.backend_demands] == demands


@pytest.mark.parametrize(
    ("placement", "reason", "advice"),
    [
        ("none", "it would run in no sandbox here, and the rule demands gvisor", "narrow the rule"),
        ("uncertain", "it may run without a sandbox here, and the rule demands gvisor", "in production"),
        (Backend.NAMESPACES, "it would run on namespaces here, and the rule demands gvisor", 'backend = "gvisor"'),
        (Backend.GVISOR, "only in a sandbox on gvisor", ""),
    ],
)
def test_a_call_is_denied_unless_it_certainly_has_the_sandbox_that_a_rule_demands(
    placement: Placement, reason: str, advice: str
) -> None:
    verdict = compile_policies(PERMIT, FORBID_WEAK).decide(make_question())
    judged = deny_unmet(verdict, placement)
    assert judged.behavior is (Behavior.DENY if advice else Behavior.ALLOW)
    assert (judged.reason, advice in judged.suggestion) == (reason, True)
    # A replay of the recorded denial knows where the call would have run.
    assert deny_replayed(verdict, judged).behavior is judged.behavior


async def test_a_job_hears_of_the_sandbox_that_a_rule_demands() -> None:
    async def run_job(job: Callable[[bytes], bytes], payload: bytes) -> bytes:
        return job(payload)

    policies, question = compile_policies(PERMIT, FORBID_WEAK), make_question()
    slice_, query, _ = policies.prepare_query(question)
    assert await evaluate_costly_slice(slice_, query, run_job) == policies.decide(question)


def test_a_verdict_names_rule_place_and_reason() -> None:
    verdict = compile_policies("// first\n\n" + FORBID + "\n\n" + PERMIT).decide(make_question())
    (rule,) = verdict.rules
    assert (rule.id, rule.where, rule.reason) == ("no", "1.cedar:3", "Because.")
    assert verdict.reason == "Because."


FAILING_RULE = {
    "reads what is absent": ("principal.nothing == 1", "reads the attribute nothing, which is missing"),
    "overflows": ("context.facts.amount + 9223372036854775807 > 0", "overflows an integer"),
    "compares types": ("context.facts.amount > context.environment", "reads a value of an unexpected type"),
}


@pytest.mark.parametrize("kind", sorted(FAILING_RULE))
@pytest.mark.parametrize("effect", ["permit", "forbid"])
def test_a_failed_rule_denies_even_if_another_permits(kind: str, effect: str) -> None:
    condition, how = FAILING_RULE[kind]
    failing = f'@id("broken") {effect} (principal, action, resource) when {{ {condition} }};'
    verdict = compile_policies(PERMIT, failing).decide(make_question(facts={"amount": 31337}))
    assert (verdict.behavior, rule_ids(verdict.rules)) == (Behavior.DENY, ["evaluation-error"])
    assert verdict.errors == (f"broken (2.cedar:1) {how}",)
    assert "31337" not in repr(verdict)


def test_an_overlong_text_denies_if_a_rule_reads_it() -> None:
    condition = f'context.facts has n && context.facts.n like "*{"a" * 4_000}b"'
    slow = f'@id("slow") forbid (principal, action, resource) when {{ {condition} }};'
    long = make_question(facts={"n": "a" * 1_000_000})
    verdict = compile_policies(PERMIT, slow).decide(long)
    assert (verdict.behavior, rule_ids(verdict.rules)) == (Behavior.DENY, ["evaluation-error"])
    assert verdict.errors == (f"the fact n is longer than {MAX_FACT_LENGTH} characters",)
    assert compile_policies(PERMIT).decide(long).behavior is Behavior.ALLOW
    assert compile_policies(PERMIT, slow).decide(make_question(facts={"n": "a"})).behavior is Behavior.ALLOW


def test_rules_that_take_too_long_deny_at_once_and_name_their_cost() -> None:
    condition = f'context.facts has n && context.facts.n like "*{"a" * 4_000}b"'
    slow = "".join(f'@id("slow{n}") permit (principal, action, resource) when {{ {condition} }};' for n in range(50))
    policies = compile_policies(PERMIT, slow)
    costly = make_question(facts={"n": "a" * MAX_FACT_LENGTH})
    policies.decide(costly)
    began = thread_time()
    verdict = policies.decide(costly)
    assert thread_time() - began < 3
    assert (verdict.behavior, rule_ids(verdict.rules)) == (Behavior.DENY, ["evaluation-error"])
    assert "like patterns have 200,100 characters" in verdict.errors[0]


async def test_a_costly_slice_is_decided_by_a_job_as_it_would_be_here() -> None:
    condition = f'context.facts has n && context.facts.n like "*{"a" * 4_000}*b"'
    slow = f'@id("slow") @decision("ask") forbid (principal, action, resource) when {{ {condition} }};'
    policies = compile_policies(PERMIT, slow)
    sizes: list[int] = []

    async def run_here(job: Callable[[bytes], bytes], payload: bytes) -> bytes:
        sizes.append(len(payload))
        return job(payload)

    async def give_up(job: Callable[[bytes], bytes], payload: bytes) -> None:
        return None

    for text, behavior in (("a" * 8000 + "b", Behavior.ASK), ("a" * 8000, Behavior.ALLOW)):
        slice_, query, _ = policies.prepare_query(make_question(facts={"n": text}))
        verdict = await evaluate_costly_slice(slice_, query, run_here)
        assert verdict.behavior is behavior
        assert (await evaluate_costly_slice(slice_, query, give_up)).behavior is Behavior.DENY
    # The rules are sent once.
    assert [size > 20_000 for size in sizes] == [False, True, False]


def test_a_value_that_is_not_json_denies() -> None:
    reading = compile_policies('@id("a") permit (principal, action, resource) unless { context.facts has amount };')
    for value in (1.5, None, 2**70, object()):
        verdict = reading.decide(make_question(facts={"amount": value}))
        assert (verdict.behavior, rule_ids(verdict.rules)) == (Behavior.DENY, ["evaluation-error"])


DEFAULT = CompiledPolicies(load_default_files())


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
def test_the_default_policies_are_safe(
    effects: str, trust: str, environment: Environment, behavior: Behavior, rule: str
) -> None:
    touches = (("notes", "update", "7"),)
    asked = make_question(
        make_caller(trust=trust), make_tool(effects=effects), environment=environment, side_effects=touches
    )
    verdict = DEFAULT.decide(asked)
    assert (verdict.behavior, rule_ids(verdict.rules)) == (behavior, [rule])
    assert all(each.reason and each.where.startswith("default.cedar:") for each in verdict.rules)


PROVEN_BILLING_BOT = """
@id("bot") permit (principal, action, resource) when { context has agent && context.agent == Agent::"billing-bot" };
@id("helper") forbid (principal, action, resource) when { context.agents.contains(Agent::"helper") };
"""
LOGIN, OTHER_LOGIN, DID = "https://login.example", "https://other.example", "did:web:bot.example"


@pytest.mark.parametrize(
    ("agents", "issuers", "proven_agent", "rules"),
    [
        (("billing-bot",), (LOGIN,), "billing-bot", ["bot"]),
        (("billing-bot",), ("",), None, ["nothing-permits"]),
        (("billing-bot", "assistant"), ("", LOGIN), "assistant", ["nothing-permits"]),
        (("billing-bot", "helper"), ("", LOGIN), "helper", ["helper"]),
        (("x", "billing-bot"), ("", LOGIN), "billing-bot", ["bot"]),
        (("x", "helper"), ("", ""), None, ["helper"]),
        (("billing-bot",), (OTHER_LOGIN,), f"issuer={OTHER_LOGIN} billing-bot", ["nothing-permits"]),
        ((DID,), (DID,), DID, ["nothing-permits"]),
    ],
    ids=[
        "a proven agent", "a chosen name", "a proven agent that took a name", "a forbidden one that took a name",
        "a permitted one that took a name", "a forbidden name under another", "the same name at another issuer",
        "a DID",
    ],
)  # fmt: skip
def test_an_agent_is_who_it_is_proven_to_be_whatever_name_it_takes(
    agents: tuple[str, ...], issuers: tuple[str, ...], proven_agent: str | None, rules: list[str]
) -> None:
    caller = make_caller(agents=agents, agent_issuers=issuers, primary_issuer=LOGIN)
    assert caller.proven_agent == proven_agent
    verdict = compile_policies(PROVEN_BILLING_BOT).decide(make_question(caller, make_tool()))
    assert rule_ids(verdict.rules) == rules
    unproven = make_caller(agents=agents, agent_issuers=("",) * len(agents), primary_issuer=LOGIN)
    assert (compute_decision_cache_key(caller) == compute_decision_cache_key(unproven)) == (proven_agent is None)


def _make_full_question() -> PolicyRequest:
    who = make_caller(
        agents=("bot", "boss"), agent_issuers=("https://login.example", ""), primary_issuer="https://login.example",
        groups=frozenset({"ops"}), scopes=frozenset({"a"}), task="t", human=True,
    )  # fmt: skip
    what = make_tool(
        "crm.refund", effects="destructive", external_service="stripe", tags=("money",), preview=True,
        behaviours=("monotone",), authority_rank=7, requires_user_interaction=True, open_world=False,
        auth={"scopes": ["crm:write"], "permissions": ["api:crm"]},
        resources=({"resource": "crm.orders", "op": "update", "scope": "{id}"},),
    )  # fmt: skip
    return make_question(
        who, what, session="s", facts={"amount": 3, "to": ("a", "b")}, side_effects=(("crm.orders", "update", "17"),),
        cost_micros=5, labels=frozenset({"pii"}), undone=UndoneCall(tool="crm.charge", agents=("bot",)),
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
        'context.undoes.tool like "crm.*" && context.undoes.agents.contains(Agent::"bot") && context.undoes.delegated',
        'context.facts.amount == 3 && context.facts.to.containsAll(["b", "a"])',
        'context == {agent: context.agent, agent_label: "bot", agents: context.agents, delegated: true, task: "t", '
        'session: "s", '
        'trust: "standard", environment: "development", time: context.time, cost: 5, labels: ["pii"], '
        'changes: [Resource::"crm.orders"], operations: ["update"], scopes: ["17"], sweeping: false, '
        'undoes: {tool: "crm.charge", agents: [Agent::"bot"], delegated: true}, facts: {amount: 3, "to": ["a", "b"]}}',
        'principal == User::"ana" && principal in Group::"ops" && principal in Tenant::"acme"',
        'principal.issuer == "https://login.example" && principal.human && principal.scopes == ["a"]',
        'resource == Tool::"crm.refund" && resource in Server::"stripe" && resource in Namespace::"crm"',
        'resource in Tenant::"acme" && Namespace::"crm" in Tenant::"acme" && Group::"ops" in Tenant::"acme"',
        'resource.name == "refund" && resource.namespace == "crm" && resource.version == "1.0.0"',
        'resource.effects == "destructive" && resource.mutation_class == "write-irreversible"',
        'resource.kind == "function" && resource.provider == "" && resource.tags == ["money"]',
        'resource.permissions == ["api:crm"]',
        "resource.previewable && !resource.undoable",
        'resource.behaviours == ["monotone"] && resource.authority_rank == 7',
        "resource.requires_user_interaction && !resource.open_world",
    ],
)
def test_rules_can_read_every_attribute_of_the_schema(condition: str) -> None:
    verdict = compile_policies(f'@id("a") permit (principal, action, resource) when {{ {condition} }};').decide(
        _make_full_question()
    )
    assert verdict.behavior is Behavior.ALLOW, verdict.errors
