"""Answers that are kept are the answers there would be, and some are never kept."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deputize.core.decision import Behavior, Question
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.decisions import Answers, Decisions, key_of
from deputize.govern.policy.kept import Kept
from tests.unit.govern.policy.asking import caller, policies, question, tool
from tests.unit.govern.policy.worlds import some_policies, some_question

pytestmark = pytest.mark.requirement("GOV-2")


@settings(max_examples=200, deadline=None)
@given(some_policies(), st.lists(some_question(), min_size=1, max_size=12))
def test_what_is_kept_answers_like_what_is_asked_anew(whole: CompiledPolicies, wanted: list[Question]) -> None:
    kept, anew = Decisions(whole, key=b"k", kept=Kept(5)), Decisions(whole, key=b"k")
    for each in [*wanted, *reversed(wanted)]:
        assert kept.decide(each) == anew.decide_anew(each)


def when(condition: str) -> Decisions:
    text = f'@id("a") permit (principal, action, resource) when {{ {condition} }};'
    return Decisions(policies(text), key=b"k")


@pytest.mark.parametrize("condition", ["context.time.hour > 1", "context.cost > 1", 'context.labels.contains("x")'])
def test_time_cost_and_labels_are_never_kept(condition: str) -> None:
    decisions = when(condition)
    assert decisions.decide(question()) is not decisions.decide(question())


def test_a_caller_without_a_standing_is_asked_about_anew() -> None:
    decisions = when("true")
    nameless = replace(caller(), standing="")
    assert decisions.decide(question(nameless)) is not decisions.decide(question(nameless))
    assert decisions.decide(question(caller())) is decisions.decide(question(caller()))


def test_calls_that_differ_in_nothing_the_rules_read_share_an_answer() -> None:
    decisions = when('context.trust == "standard"')
    first = decisions.decide(question(session="one", now_ms=1, cost_micros=5, touches=(("a", "update", "1"),)))
    assert decisions.decide(question(session="two", now_ms=2, labels=frozenset({"x"}))) is first
    assert decisions.decide(question(caller("ben"))) is not first
    assert decisions.decide(question(what=tool("a.b"))) is not first
    assert decisions.decide(question(environment="production")) is not first


@pytest.mark.parametrize(
    ("condition", "one", "two"),
    [
        ('context has session && context.session == "a"', {"session": "a"}, {"session": "b"}),
        ('context.scopes.contains("1")', {"touches": (("r", "update", "1"),)}, {"touches": (("r", "update", "2"),)}),
        ("context.facts has n", {"facts": {"n": 1}}, {"facts": {"n": 2}}),
        ("true", {"facts": {"n": 1}}, {"facts": {"n": 2}}),
    ],
)
def test_calls_that_differ_in_what_is_read_or_recorded_do_not(
    condition: str, one: dict[str, Any], two: dict[str, Any]
) -> None:
    decisions = when(condition)
    assert decisions.decide(question(**one)).record != decisions.decide(question(**two)).record
    assert decisions.decide(question(**one)) is decisions.decide(question(**one))
    assert decisions.decide(question(**one)) is not decisions.decide(question(**two))


def test_a_version_never_hears_the_answers_of_another() -> None:
    kept: Answers = Kept(10)
    one = Decisions(policies('@id("a") permit (principal, action, resource);'), key=b"k", kept=kept)
    two = Decisions(policies('@id("a") forbid (principal, action, resource);'), key=b"k", kept=kept)
    assert one.decide(question()).verdict.behavior is Behavior.ALLOW
    assert two.decide(question()).verdict.behavior is Behavior.DENY
    assert one.decide(question()) is one.decide(question())
    assert len(kept) == 2


def test_facts_that_cannot_be_compared_are_asked_about_anew() -> None:
    asked = question(facts={"to": ["a"]})
    assert key_of(asked, when("true").policies.slice_of(asked), "") is None


def test_long_facts_take_the_room_of_many() -> None:
    kept: Answers = Kept(100)
    decisions = Decisions(when("true").policies, key=b"k", kept=kept)
    for number in range(20):
        decisions.decide(question(facts={"note": f"{number}" + "x" * 40_000}))
    assert len(kept) <= 3
    secret = decisions.decide(question(facts={"note": "y" * 1_000_000}, withheld=frozenset({"note"})))
    assert decisions.decide(question(facts={"note": "y" * 1_000_000}, withheld=frozenset({"note"}))) is not secret
