"""Cached verdicts equal fresh ones, and some verdicts are never cached."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.bounded_dict import BoundedDict
from deputize.core.decision import Behavior, PolicyRequest, UndoneCall
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.decision_cache import DecisionCache, DecisionEntries, build_cache_key
from tests.support.policy_inputs import compile_policies, make_caller, make_question, make_tool
from tests.unit.govern.policy.policy_strategies import draw_policies, draw_question

pytestmark = pytest.mark.requirement("GOV-2")


@given(draw_policies(), st.lists(draw_question(), min_size=1, max_size=12))
def test_cached_verdicts_equal_fresh_ones(whole: CompiledPolicies, wanted: list[PolicyRequest]) -> None:
    kept, anew = DecisionCache(whole, key=b"k", entries=BoundedDict(5)), DecisionCache(whole, key=b"k")
    for each in [*wanted, *reversed(wanted)]:
        assert kept.decide(each) == anew.decide_uncached(each)


def make_decisions(condition: str) -> DecisionCache:
    text = f'@id("a") permit (principal, action, resource) when {{ {condition} }};'
    return DecisionCache(compile_policies(text), key=b"k")


@pytest.mark.parametrize("condition", ["context.time.hour > 1", "context.cost > 1", 'context.labels.contains("x")'])
def test_verdicts_that_read_time_cost_or_labels_are_not_cached(condition: str) -> None:
    decisions = make_decisions(condition)
    assert decisions.decide(make_question()) is not decisions.decide(make_question())


def test_a_caller_without_a_cache_key_is_not_cached() -> None:
    decisions = make_decisions("true")
    nameless = replace(make_caller(), decision_cache_key="")
    assert decisions.decide(make_question(nameless)) is not decisions.decide(make_question(nameless))
    assert decisions.decide(make_question(make_caller())) is decisions.decide(make_question(make_caller()))


def test_a_call_that_takes_another_one_back_shares_no_decision_with_one_that_does_not() -> None:
    decisions = make_decisions("!(context has undoes)")
    undo = make_question(undone=UndoneCall(tool="crm.refund"))
    for _ in range(2):
        assert decisions.decide(make_question()).verdict.behavior is Behavior.ALLOW
        assert decisions.decide(undo).verdict.behavior is Behavior.DENY


def test_calls_equal_for_the_rules_share_a_cache_entry() -> None:
    decisions = make_decisions('context.trust == "standard"')
    first = decisions.decide(
        make_question(session="one", now_ms=1, cost_micros=5, side_effects=(("a", "update", "1"),))
    )
    assert decisions.decide(make_question(session="two", now_ms=2, labels=frozenset({"x"}))) is first
    assert decisions.decide(make_question(make_caller("ben"))) is not first
    assert decisions.decide(make_question(what=make_tool("a.b"))) is not first
    assert decisions.decide(make_question(environment="production")) is not first


@pytest.mark.parametrize(
    ("condition", "one", "two"),
    [
        ('context has session && context.session == "a"', {"session": "a"}, {"session": "b"}),
        (
            'context.scopes.contains("1")',
            {"side_effects": (("r", "update", "1"),)},
            {"side_effects": (("r", "update", "2"),)},
        ),
        ("context.facts has n", {"facts": {"n": 1}}, {"facts": {"n": 2}}),
        ("true", {"facts": {"n": 1}}, {"facts": {"n": 2}}),
    ],
)
def test_calls_that_differ_for_the_rules_have_their_own_entries(
    condition: str, one: dict[str, Any], two: dict[str, Any]
) -> None:
    decisions = make_decisions(condition)
    assert decisions.decide(make_question(**one)).record != decisions.decide(make_question(**two)).record
    assert decisions.decide(make_question(**one)) is decisions.decide(make_question(**one))
    assert decisions.decide(make_question(**one)) is not decisions.decide(make_question(**two))


def test_versions_never_share_cache_entries() -> None:
    kept: DecisionEntries = BoundedDict(10)
    one = DecisionCache(compile_policies('@id("a") permit (principal, action, resource);'), key=b"k", entries=kept)
    two = DecisionCache(compile_policies('@id("a") forbid (principal, action, resource);'), key=b"k", entries=kept)
    assert one.decide(make_question()).verdict.behavior is Behavior.ALLOW
    assert two.decide(make_question()).verdict.behavior is Behavior.DENY
    assert one.decide(make_question()) is one.decide(make_question())
    assert len(kept) == 2


def test_unhashable_facts_are_not_cached() -> None:
    asked = make_question(facts={"to": ["a"]})
    assert build_cache_key(asked, make_decisions("true").policies.get_request_slice(asked), "") is None


def test_long_facts_weigh_more_in_the_cache() -> None:
    kept: DecisionEntries = BoundedDict(100)
    decisions = DecisionCache(make_decisions("true").policies, key=b"k", entries=kept)
    for number in range(20):
        decisions.decide(make_question(facts={"note": f"{number}" + "x" * 40_000}))
    assert len(kept) <= 3
    secret = decisions.decide(make_question(facts={"note": "y" * 1_000_000}, unrecorded_facts=frozenset({"note"})))
    assert (
        decisions.decide(make_question(facts={"note": "y" * 1_000_000}, unrecorded_facts=frozenset({"note"})))
        is not secret
    )
