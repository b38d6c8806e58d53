"""A slice gives the verdict of the whole set, knows what it reads, and has a digest of its content."""

import cedarpy
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.bounded_dict import BoundedDict
from deputize.core.decision import Behavior, PolicyRequest
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.cedar_schema import (
    ACTION,
    CONTEXT_ATTRIBUTES,
    build_context,
    build_entities,
    build_query,
    describe_tool,
    make_uid,
)
from deputize.govern.policy.checks.attribute_reads import collect_reads
from deputize.govern.policy.policy_parser import PolicyRule
from deputize.govern.policy.slices import SliceIndex, build_policy_set
from tests.support.policy_inputs import compile_policies, make_question, make_tool, rule_ids
from tests.unit.govern.policy.policy_strategies import draw_policies, draw_question

pytestmark = pytest.mark.requirement("GOV-2")


def _decide_alone(rule: PolicyRule, question: PolicyRequest) -> str:
    """Evaluate one rule by itself with all attributes: the simplest use of Cedar, as a reference."""
    said = build_query(question)
    request = {
        "principal": make_uid("User", said.caller["user"]),
        "action": ACTION,
        "resource": make_uid("Tool", said.tool["name"]),
        "context": orjson.dumps(build_context(said, CONTEXT_ATTRIBUTES, None)).decode(),
    }
    known = orjson.dumps(build_entities(said.caller, said.tool)).decode()
    answer = cedarpy.is_authorized(request, build_policy_set([rule]), known)
    if answer.diagnostics.errors:
        return "failed"
    return rule.effect + (" ask" if rule.requires_approval else "") if answer.diagnostics.reasons else "silent"


def _decide_naively(whole: CompiledPolicies, question: PolicyRequest) -> tuple[Behavior, list[str]]:
    said = {rule.id: _decide_alone(rule, question) for rule in whole.rules}

    def who(what: str) -> list[str]:
        return [name for name, answer in said.items() if answer == what]

    if who("failed"):
        return Behavior.DENY, ["evaluation-error"]
    if who("forbid"):
        return Behavior.DENY, who("forbid")
    permits, asking = who("permit"), who("permit ask")
    if not permits and not asking:
        return Behavior.DENY, ["nothing-permits"]
    if who("forbid ask"):
        heard = {*who("forbid ask"), *([] if permits else asking)}
        return Behavior.ASK, [name for name in said if name in heard]
    return (Behavior.ALLOW, permits) if permits else (Behavior.ASK, asking)


@given(draw_policies(), st.lists(draw_question(), min_size=1, max_size=5))
def test_a_slice_gives_the_verdict_of_the_whole_set(whole: CompiledPolicies, wanted: list[PolicyRequest]) -> None:
    for each in wanted:
        verdict = whole.decide(each)
        assert (verdict.behavior, rule_ids(verdict.rules)) == _decide_naively(whole, each)
        assert bool(verdict.errors) == (rule_ids(verdict.rules) == ["evaluation-error"])


def _slice_rules(*scopes: str, name: str = "crm.refund") -> list[str]:
    numbered = "\n".join(f'@id("{n}") permit (principal, action, {scope});' for n, scope in enumerate(scopes))
    what = make_tool(name, external_service="stripe")
    chosen = SliceIndex(compile_policies(numbered).rules).get_slice(describe_tool(what), "acme")
    return [scopes[int(rule.id)] for rule in chosen.rules]


def test_a_slice_has_only_rules_that_can_match() -> None:
    matching = [
        "resource", "resource is Tool", 'resource == Tool::"crm.refund"', 'resource in Tool::"crm.refund"',
        'resource in Namespace::"crm"', 'resource in Server::"stripe"', 'resource in Tenant::"acme"',
        'resource is Tool in Namespace::"crm"',
    ]  # fmt: skip
    others = [
        "resource is Server", 'resource == Tool::"crm.other"', 'resource in Tool::"crm.other"',
        'resource == Namespace::"crm"', 'resource in Namespace::"mail"', 'resource is Tool in Tenant::"other"',
        'resource is Server in Tenant::"acme"', 'resource == Server::"stripe"',
    ]  # fmt: skip
    assert _slice_rules(*matching, *others) == matching


def test_a_rule_about_another_action_is_in_no_slice() -> None:
    other = '@id("a") permit (principal, action == Action::"x", resource);'
    none = '@id("b") permit (principal, action in [], resource);'
    assert compile_policies(other, none).get_request_slice(make_question()).rules == ()


def test_tools_with_the_same_rules_share_a_slice() -> None:
    whole = compile_policies(
        '@id("a") permit (principal, action, resource); @id("b") permit (principal, action, resource == Tool::"a.b");'
    )
    one, two, own = (whole.get_request_slice(make_question(what=make_tool(name))) for name in ("x.y", "y.z", "a.b"))
    assert one is two
    assert (len(one.rules), len(own.rules)) == (1, 2)


def test_a_slice_digest_ignores_layout() -> None:
    def name(text: str) -> str:
        return compile_policies(text).get_request_slice(make_question()).digest

    plain = '@id("a") permit (principal, action, resource);'
    assert name(plain) == name('// why\n@id("a")\npermit (principal,action,resource) ;')
    elsewhere = '@id("b") permit (principal, action, resource == Tool::"x.y");'
    assert name(plain) == name(plain + elsewhere)
    assert len({name(plain), name(plain.replace('"a"', '"b"')), name('@decision("ask")' + plain), name("")}) == 4


@pytest.mark.parametrize(
    ("condition", "names", "facts"),
    [
        ("true", (), set()),
        ("principal.human && resource.undoable", (), set()),
        ('context.trust == "a" && context["environment"] == "b"', ("environment", "trust"), set()),
        ("context.time.hour > 3", ("time",), set()),
        ("context.facts has a && context.facts.b > 3", ("facts",), {"a", "b"}),
        ("context has facts", ("facts",), set()),
        ("context has facts.a", ("facts",), {"a"}),
        ("context.facts == {a: 1}", ("facts",), None),
        ("[context.facts].contains({a: 1})", ("facts",), None),
        ("(if true then context else context).delegated", tuple(sorted(CONTEXT_ATTRIBUTES)), None),
        ("{Value: context}.Value.delegated", tuple(sorted(CONTEXT_ATTRIBUTES)), None),
        ("context.nothing", (), set()),
        ('"context.cost" == context.trust', ("trust",), set()),
    ],
)
def test_attribute_reads_are_found(condition: str, names: tuple[str, ...], facts: set[str] | None) -> None:
    rules = compile_policies(f'@id("a") permit (principal, action, resource) unless {{ {condition} }};').rules
    reads = collect_reads(rules)
    assert reads.context == names
    assert reads.facts == facts


def test_the_slice_cache_is_bounded() -> None:
    everywhere = [f'@id("all-{number}") permit (principal, action, resource);' for number in range(50)]
    one = '@id("one-{0}") permit (principal, action, resource == Tool::"a.t{0}");'
    single = [one.format(number) for number in range(60)]
    slices = SliceIndex(compile_policies(*everywhere, *single).rules)
    slices._slices = BoundedDict(1000)
    for _ in range(2):
        for number in range(60):
            found = slices.get_slice(describe_tool(make_tool(f"a.t{number}")), "acme")
            assert rule_ids(found.rules)[-1] == f"one-{number}"
    assert len(slices._slices) <= 1000 // 51
