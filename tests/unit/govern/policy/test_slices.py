"""A tool's slice answers what the whole set would, knows what it reads, and is named by what it says."""

import cedarpy
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deputize.core.decision import Behavior, Question
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.kept import Kept
from deputize.govern.policy.reads import reads_of
from deputize.govern.policy.rules import PolicyRule
from deputize.govern.policy.slices import Slices, policy_set
from deputize.govern.policy.world import ACTION, CONTEXT, asked, context, describe_tool, entities, uid
from tests.unit.govern.policy.asking import ids, policies, question, tool
from tests.unit.govern.policy.worlds import some_policies, some_question

pytestmark = pytest.mark.requirement("GOV-2")


def _alone(rule: PolicyRule, wanted: Question) -> str:
    """What one rule says by itself, told everything there is: the plainest reading of Cedar there can be."""
    said = asked(wanted)
    request = {
        "principal": uid("User", said.caller["user"]),
        "action": ACTION,
        "resource": uid("Tool", said.tool["name"]),
        "context": orjson.dumps(context(said, CONTEXT, None)).decode(),
    }
    known = orjson.dumps(entities(said.caller, said.tool)).decode()
    answer = cedarpy.is_authorized(request, policy_set([rule]), known)
    if answer.diagnostics.errors:
        return "failed"
    return rule.effect + (" ask" if rule.asks else "") if answer.diagnostics.reasons else "silent"


def _by_the_book(whole: CompiledPolicies, wanted: Question) -> tuple[Behavior, list[str]]:
    said = {rule.id: _alone(rule, wanted) for rule in whole.rules}

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


@settings(max_examples=200, deadline=None)
@given(some_policies(), st.lists(some_question(), min_size=1, max_size=5))
def test_a_slice_answers_what_the_whole_set_would(whole: CompiledPolicies, wanted: list[Question]) -> None:
    for each in wanted:
        verdict = whole.decide(each)
        assert (verdict.behavior, ids(verdict.rules)) == _by_the_book(whole, each)
        assert bool(verdict.errors) == (ids(verdict.rules) == ["evaluation-error"])


def _slice(*scopes: str, name: str = "crm.refund") -> list[str]:
    numbered = "\n".join(f'@id("{n}") permit (principal, action, {scope});' for n, scope in enumerate(scopes))
    what = tool(name, external_service="stripe")
    chosen = Slices(policies(numbered).rules).of(describe_tool(what), "acme")
    return [scopes[int(rule.id)] for rule in chosen.rules]


def test_a_slice_holds_what_can_match_and_nothing_else() -> None:
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
    assert _slice(*matching, *others) == matching


def test_a_rule_about_another_action_is_in_no_slice() -> None:
    other = '@id("a") permit (principal, action == Action::"x", resource);'
    none = '@id("b") permit (principal, action in [], resource);'
    assert policies(other, none).slice_of(question()).rules == ()


def test_tools_with_the_same_rules_share_a_slice() -> None:
    whole = policies(
        '@id("a") permit (principal, action, resource); @id("b") permit (principal, action, resource == Tool::"a.b");'
    )
    one, two, own = (whole.slice_of(question(what=tool(name))) for name in ("x.y", "y.z", "a.b"))
    assert one is two
    assert (len(one.rules), len(own.rules)) == (1, 2)


def test_a_slice_is_named_by_what_its_rules_say_and_not_by_how_they_are_laid_out() -> None:
    def name(text: str) -> str:
        return policies(text).slice_of(question()).digest

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
        ("(if true then context else context).delegated", tuple(sorted(CONTEXT)), None),
        ("{Value: context}.Value.delegated", tuple(sorted(CONTEXT)), None),
        ("context.nothing", (), set()),
        ('"context.cost" == context.trust', ("trust",), set()),
    ],
)
def test_what_rules_read_is_known(condition: str, names: tuple[str, ...], facts: set[str] | None) -> None:
    rules = policies(f'@id("a") permit (principal, action, resource) unless {{ {condition} }};').rules
    reads = reads_of(rules)
    assert reads.context == names
    assert reads.facts == facts


def test_slices_of_many_tools_take_no_more_room_than_there_is() -> None:
    everywhere = [f'@id("all-{number}") permit (principal, action, resource);' for number in range(50)]
    one = '@id("one-{0}") permit (principal, action, resource == Tool::"a.t{0}");'
    single = [one.format(number) for number in range(60)]
    slices = Slices(policies(*everywhere, *single).rules)
    slices._cut = Kept(1000)
    for _ in range(2):
        for number in range(60):
            found = slices.of(describe_tool(tool(f"a.t{number}")), "acme")
            assert ids(found.rules)[-1] == f"one-{number}"
    assert len(slices._cut) <= 1000 // 51
