"""What people approve again and again becomes a draft that permits exactly that, ends, and is never put in force."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from deputize.govern.approvals.suggest import Past, Suggested, Tool, suggest
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.check import check
from deputize.govern.policy.rules import PolicyFile
from deputize.govern.policy.world import Asked
from tests.unit.govern.approvals.learning import (
    ASKS,
    FACTS,
    NOTHING,
    NOW,
    REFUND,
    UNTIL,
    in_force,
    learn,
    past,
    permits,
    several,
)
from tests.unit.govern.policy.asking import caller, tool

pytestmark = pytest.mark.requirement("NEW-9")


def why_not(suggested: Suggested) -> str:
    assert not suggested.drafts
    (withheld,) = suggested.withheld
    return withheld.why


def alone(suggested: Suggested) -> CompiledPolicies:
    file = suggested.file
    assert file is not None
    return CompiledPolicies([file], FACTS)


def test_five_equal_approvals_by_two_people_are_a_draft() -> None:
    suggested = learn(several())

    (draft,) = suggested.drafts
    assert suggested.withheld == ()
    told = draft.to_json()
    assert (told["tool"], told["user"], told["agents"], told["asked_by"]) == ("crm.refund", "ida", ["bot"], ["asks"])
    assert (told["calls"], told["people"], told["until"]) == (5, ["ana", "ben"], UNTIL)
    assert told["tickets"] == [f"ticket-{number}" for number in range(5)]
    assert suggested.file is not None
    assert suggested.file.text == (
        f"""// crm.refund 1.0.0 for "ida" through "bot", which asks asks about:
// 5 calls between 2023-11-14 and 2023-11-18 were approved by "ana", "ben", none denied.
@id("{draft.name}")
@reason("People approved 5 calls like this and denied none; ends 2023-12-24.")
permit (
  principal == User::"ida",
  action == Action::"call",
  resource == Tool::"crm.refund"
)
when {{ context.time.epoch < {UNTIL} }}
when {{ resource.version == "1.0.0" }}
when {{ context.environment == "production" }}
when {{ principal.issuer == "https://login.example" && principal.trust == "standard" }}
when {{ !principal.human }}
when {{ principal in Group::"support" }}
when {{ principal.scopes == ["crm:write"] }}
when {{ context has agent && context.agent == Agent::"bot" && context.agents == [Agent::"bot"] }}
when {{ !(context has task) }}
when {{ context.facts has amount && context.facts.amount == 20 }};
"""
    )


def test_a_draft_could_take_force_beside_what_is_in_force() -> None:
    facts = {"amount": 3, "note": 'a "quoted"\n\\ \u202e text', "fast": True, "to": ()}
    suggested = learn(several(facts=facts), facts=FACTS)
    assert suggested.file is not None
    found = check([*in_force().files, suggested.file], FACTS, known={"Tool": {"crm.refund"}})
    assert (found.errors, found.warnings) == ((), ())


@pytest.mark.parametrize("count", [0, 4])
def test_fewer_are_nothing_to_learn_from(count: int) -> None:
    assert learn(several(count)) == NOTHING


def test_one_person_is_nothing_to_learn_from() -> None:
    spelled = ("ana", "Ana", "\uff21na")
    alone = [replace(each, people=frozenset({spelled[place % 3]})) for place, each in enumerate(several(9))]
    assert learn(alone) == NOTHING


def test_what_was_denied_once_is_withheld() -> None:
    assert (
        why_not(learn([*several(6), past(9, approved=False, facts={"amount": 900})]))
        == "people denied 1 of these calls"
    )


def test_a_denial_of_somebody_elses_call_is_another_matter() -> None:
    assert len(learn([*several(), past(9, caller("bob"), approved=False)]).drafts) == 1


def test_every_caller_has_a_draft_of_their_own() -> None:
    eve = caller("eve", human=True)
    suggested = learn([*several(), *several(who=eve), *several(3, who=caller("bob"))])
    assert [(each.kind.user, each.kind.agents) for each in suggested.drafts] == [("eve", ()), ("ida", ("bot",))]
    assert len({each.name for each in suggested.drafts}) == 2
    assert not check([*in_force().files, suggested.file or PolicyFile(path="", text="")], FACTS).errors


@pytest.mark.parametrize(
    ("found", "known", "why"),
    [
        ({}, {"unseen": ("order",)}, "rules cannot read order"),
        ({}, {"digest": "another"}, "the tool is another one since"),
        ({"what": tool("crm.gone", effects="write")}, {}, "the tool is another one since"),
        ({"who": caller("ida", agents=("a", "b", "c"))}, {}, "in which order"),
        ({"rules": ("asks", "removed")}, {}, "removed asked, and is not among the rules in force"),
        ({"rules": ("asks", "hook:guard")}, {}, "no permit lifts that"),
        ({"facts": {"to": ("a", "b")}}, {"facts": FACTS}, "rules see a list without its order"),
    ],
)
def test_what_a_permit_could_not_be_as_narrow_as_is_withheld(
    found: dict[str, Any], known: dict[str, Any], why: str
) -> None:
    assert why in why_not(learn(several(**found), **known))


def test_texts_that_differ_are_withheld_until_one_of_them_is_approved_often_enough() -> None:
    different = [past(number, facts={"note": f"n{number % 2}"}) for number in range(8)]
    assert "differ from call to call" in why_not(learn(different, facts=FACTS))
    more = [past(number, facts={"note": f"n{number // 2 % 2}"}) for number in range(20)]
    assert len(learn(more, facts=FACTS).drafts) == 2


FORBID = '@id("never") @decision("ask") forbid (principal, action, resource);'
NIGHT = '@id("asks") @decision("ask") permit (principal, action, resource) when { context.time.hour > 20 };'


def test_a_forbid_that_asks_is_not_lifted_and_says_so() -> None:
    found = several(rules=("asks", "never"), policies=in_force(ASKS, FORBID))
    assert "no permit lifts what never (own.cedar:2) says" in why_not(learn(found, ASKS, FORBID))


def test_a_rule_that_looks_at_the_time_is_not_learned_from() -> None:
    assert "looks at the time" in why_not(learn(several(policies=in_force(NIGHT)), NIGHT))


def test_what_is_allowed_by_now_is_not_suggested_again() -> None:
    suggested = learn(several())
    assert suggested.file is not None
    assert learn(several(), ASKS, suggested.file.text) == NOTHING


def test_a_draft_that_ended_may_take_place_again_under_another_name() -> None:
    first = learn(several())
    assert first.file is not None
    ended = PolicyFile(path=first.file.path, text=first.file.text.replace(str(UNTIL), str(NOW // 1000)))
    again = learn(several(policies=in_force(ASKS, ended.text)), ASKS, ended.text)
    assert again.drafts[0].name == f"{first.drafts[0].name}-2"
    assert learn(several(), until=UNTIL + 86_400).drafts[0].name != first.drafts[0].name
    adopted = CompiledPolicies([*in_force().files, ended], FACTS)
    refund = Tool(digest=REFUND.digest, facts={"amount": "Long"}, unseen=())
    beside = suggest(several(), adopted, lambda *_: refund, now_ms=NOW, until=UNTIL)
    assert beside.file is not None
    assert (first.file.path, beside.file.path) == (
        "policies/learned-until-2023-12-24.cedar",
        "policies/learned-until-2023-12-24-2.cedar",
    )
    assert not check([*adopted.files, beside.file], FACTS).errors


@pytest.mark.parametrize(
    ("amounts", "said"),
    [
        ([3, 4, 5, 6, 7], "context.facts.amount >= 3 && context.facts.amount <= 7"),
        ([3, 4, 5, 6, 8], "[3, 4, 5, 6, 8].contains(context.facts.amount)"),
        ([3, 4, 3, 4, 3], "[3, 4].contains(context.facts.amount)"),
        ([-2, -1, 0, 1, 2], "context.facts.amount >= -2 && context.facts.amount <= 2"),
    ],
)
def test_numbers_become_a_range_only_where_every_one_of_them_was_seen(amounts: list[int], said: str) -> None:
    suggested = learn([past(number, facts={"amount": each}) for number, each in enumerate(amounts)])
    assert f"when {{ context.facts has amount && {said} }};" in suggested.drafts[0].rule


def test_numbers_that_vary_together_are_permitted_together_only() -> None:
    pairs = [(1, 7), (2, 8), (3, 9), (1, 8), (2, 9)]
    found = [past(number, facts={"amount": a, "order": b}) for number, (a, b) in enumerate(pairs)]
    suggested = learn(found, facts={"amount": "Long", "order": "Long"})
    rule = alone(suggested)
    permitted = [
        pair for pair in product(range(5), range(6, 11))
        if permits(rule, _with_facts(found[0], {"amount": pair[0], "order": pair[1]}))
    ]  # fmt: skip
    assert permitted == sorted(pairs)
    many = [past(number, facts={"amount": number, "order": number}) for number in range(21)]
    assert "21 different values" in why_not(learn(many, facts={"amount": "Long", "order": "Long"}))


def test_session_cost_and_labels_are_held_where_the_rule_looks_at_them() -> None:
    asks = (
        '@id("asks") @decision("ask") permit (principal, action, resource) '
        'when { context.cost > 5 || context.labels.contains("pii") || context has session };'
    )
    found = [
        past(number, policies=in_force(asks), session="s1", cost_micros=cost, labels=labels)
        for number, (cost, labels) in enumerate([(9, frozenset({"pii"})), (12, frozenset[str]())] * 3)
    ]
    suggested = learn(found, asks)
    rule, (draft,) = alone(suggested), suggested.drafts
    for clause in (
        'context.labels.isEmpty() || context.labels == ["pii"]',
        '(context has session && ["s1"].contains(context.session))',
        "context.cost <= 12",
    ):
        assert f"when {{ {clause} }}" in draft.rule
    seen = replace(found[0].replay.asked, now_ms=NOW)
    assert permits(rule, seen)
    for change in ({"session": "s2"}, {"session": None}, {"cost_micros": 13}, {"labels": frozenset({"x"})}):
        assert not permits(rule, replace(seen, **change))


def _with_facts(one: Past, facts: Mapping[str, Any]) -> Asked:
    return replace(one.replay.asked, now_ms=NOW, facts=facts)
