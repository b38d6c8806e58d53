"""Repeated approvals become a draft that permits exactly those calls, expires, and is never activated by itself."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from deputize.core.decision import UndoneCall
from deputize.govern.approvals.permit_suggestions import (
    PastDecision,
    SuggestionResult,
    ToolFacts,
    is_evidence,
    suggest_permits,
)
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.cedar_schema import PolicyQuery
from deputize.govern.policy.checks.validate import validate_policies
from deputize.govern.policy.decision_cache import DecisionCache
from deputize.govern.policy.decision_records import parse_replay
from deputize.govern.policy.policy_parser import PolicyFile
from tests.support.policy_inputs import make_caller, make_question, make_tool
from tests.unit.govern.approvals.past_decisions import (
    ASKS,
    FACTS,
    IDA,
    NO_SUGGESTIONS,
    NOW,
    REFUND,
    UNTIL,
    compile_active,
    is_permitted,
    make_past_decision,
    make_past_decisions,
    suggest_from,
)

pytestmark = pytest.mark.requirement("NEW-9")


def withheld_reason(suggestions: SuggestionResult) -> str:
    assert not suggestions.drafts
    (withheld,) = suggestions.withheld
    return withheld.why


def compile_suggestion(suggestions: SuggestionResult) -> CompiledPolicies:
    file = suggestions.file
    assert file is not None
    return CompiledPolicies([file], FACTS)


def test_five_equal_approvals_by_two_people_are_a_draft() -> None:
    suggested = suggest_from(make_past_decisions())

    (draft,) = suggested.drafts
    assert suggested.withheld == ()
    told = draft.to_json()
    assert (told["tool"], told["user"], told["agents"], told["required_by"]) == ("crm.refund", "ida", ["bot"], ["asks"])
    assert (told["calls"], told["people"], told["until"]) == (5, ["ana", "ben"], UNTIL)
    assert told["approval_ids"] == [f"ticket-{number}" for number in range(5)]
    assert suggested.file is not None
    assert suggested.file.text == (
        f"""// crm.refund 1.0.0 for "ida" through "bot"; approval required by asks.
// "ana", "ben" approved 5 calls between 2023-11-14 and 2023-11-18, none denied.
@id("{draft.name}")
@reason("People approved 5 calls like this and denied none. Expires 2023-12-24.")
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
when {{ context has agent_label && context.agent_label == "bot" && context.agents == [Agent::"bot"] }}
when {{ !(context has agent) }}
when {{ !(context has task) }}
when {{ context.facts has amount && context.facts.amount == 20 }};
"""
    )


def test_a_draft_is_valid_beside_the_active_policies() -> None:
    facts = {"amount": 3, "note": 'a "quoted"\n\\ \u202e text', "fast": True, "to": ()}
    suggested = suggest_from(make_past_decisions(facts=facts), facts=FACTS)
    assert suggested.file is not None
    found = validate_policies(
        [*compile_active().files, suggested.file], FACTS, known_names={"Tool": {"crm.refund": FACTS}}
    )
    assert (found.errors, found.warnings) == ((), ())


@pytest.mark.parametrize("count", [0, 4])
def test_too_few_approvals_give_no_draft(count: int) -> None:
    assert suggest_from(make_past_decisions(count)) == NO_SUGGESTIONS


def test_approvals_by_one_person_give_no_draft() -> None:
    spelled = ("ana", "Ana", "\uff21na")
    alone = [replace(each, people=frozenset({spelled[place % 3]})) for place, each in enumerate(make_past_decisions(9))]
    assert suggest_from(alone) == NO_SUGGESTIONS


def test_a_denied_pattern_is_withheld() -> None:
    assert (
        withheld_reason(
            suggest_from([*make_past_decisions(6), make_past_decision(9, is_approved=False, facts={"amount": 900})])
        )
        == "people denied 1 of these calls"
    )


def test_a_denial_of_another_callers_call_does_not_withhold() -> None:
    assert (
        len(suggest_from([*make_past_decisions(), make_past_decision(9, make_caller("bob"), is_approved=False)]).drafts)
        == 1
    )


def test_every_caller_has_a_draft_of_their_own() -> None:
    eve = make_caller("eve", human=True)
    suggested = suggest_from(
        [*make_past_decisions(), *make_past_decisions(who=eve), *make_past_decisions(3, who=make_caller("bob"))]
    )
    assert [(each.pattern.user, each.pattern.agents) for each in suggested.drafts] == [("eve", ()), ("ida", ("bot",))]
    assert len({each.name for each in suggested.drafts}) == 2
    assert not validate_policies(
        [*compile_active().files, suggested.file or PolicyFile(path="", text="")], FACTS
    ).errors


@pytest.mark.parametrize(
    ("found", "known", "why"),
    [
        ({}, {"hidden_arguments": ("order",)}, "rules cannot read order"),
        ({}, {"digest": "another"}, "the tool has changed since"),
        ({"what": make_tool("crm.gone", effects="write")}, {}, "the tool has changed since"),
        ({"who": make_caller("ida", agents=("a", "b", "c"))}, {}, "cannot read their order"),
        ({"rules": ("asks", "removed")}, {}, "removed required approval, and is not in the active policies"),
        ({"rules": ("asks", "hook:guard")}, {}, "no permit overrides that"),
        ({"facts": {"to": ("a", "b")}}, {"facts": FACTS}, "rules cannot read the order of a list"),
    ],
)
def test_a_permit_that_would_be_too_broad_is_withheld(found: dict[str, Any], known: dict[str, Any], why: str) -> None:
    assert why in withheld_reason(suggest_from(make_past_decisions(**found), **known))


def test_different_texts_are_withheld_until_one_has_enough_approvals() -> None:
    different = [make_past_decision(number, facts={"note": f"n{number % 2}"}) for number in range(8)]
    assert "differ from call to call" in withheld_reason(suggest_from(different, facts=FACTS))
    more = [make_past_decision(number, facts={"note": f"n{number // 2 % 2}"}) for number in range(20)]
    assert len(suggest_from(more, facts=FACTS).drafts) == 2


FORBID = '@id("never") @decision("ask") forbid (principal, action, resource);'
NIGHT = '@id("asks") @decision("ask") permit (principal, action, resource) when { context.time.hour > 20 };'


def test_a_forbid_with_approval_is_never_overridden() -> None:
    found = make_past_decisions(rules=("asks", "never"), policies=compile_active(ASKS, FORBID))
    assert "no permit overrides never (own.cedar:2)" in withheld_reason(suggest_from(found, ASKS, FORBID))


def test_a_rule_that_reads_the_time_gives_no_draft() -> None:
    assert "reads the time" in withheld_reason(suggest_from(make_past_decisions(policies=compile_active(NIGHT)), NIGHT))


def test_calls_already_allowed_are_not_suggested() -> None:
    suggested = suggest_from(make_past_decisions())
    assert suggested.file is not None
    assert suggest_from(make_past_decisions(), ASKS, suggested.file.text) == NO_SUGGESTIONS


def test_an_expired_draft_is_suggested_again_under_a_new_name() -> None:
    first = suggest_from(make_past_decisions())
    assert first.file is not None
    ended = PolicyFile(path=first.file.path, text=first.file.text.replace(str(UNTIL), str(NOW // 1000)))
    again = suggest_from(make_past_decisions(policies=compile_active(ASKS, ended.text)), ASKS, ended.text)
    assert again.drafts[0].name == f"{first.drafts[0].name}-2"
    assert suggest_from(make_past_decisions(), until=UNTIL + 86_400).drafts[0].name != first.drafts[0].name
    adopted = CompiledPolicies([*compile_active().files, ended], FACTS)
    refund = ToolFacts(digest=REFUND.digest, facts={"amount": "Long"}, hidden_arguments=())
    beside = suggest_permits(make_past_decisions(), adopted, lambda *_: refund, now_ms=NOW, until=UNTIL)
    assert beside.file is not None
    assert (first.file.path, beside.file.path) == (
        "policies/learned-until-2023-12-24.cedar",
        "policies/learned-until-2023-12-24-2.cedar",
    )
    assert not validate_policies([*adopted.files, beside.file], FACTS).errors


@pytest.mark.parametrize(
    ("amounts", "said"),
    [
        ([3, 4, 5, 6, 7], "context.facts.amount >= 3 && context.facts.amount <= 7"),
        ([3, 4, 5, 6, 8], "[3, 4, 5, 6, 8].contains(context.facts.amount)"),
        ([3, 4, 3, 4, 3], "[3, 4].contains(context.facts.amount)"),
        ([-2, -1, 0, 1, 2], "context.facts.amount >= -2 && context.facts.amount <= 2"),
    ],
)
def test_numbers_become_a_range_only_if_all_were_approved(amounts: list[int], said: str) -> None:
    suggested = suggest_from(
        [make_past_decision(number, facts={"amount": each}) for number, each in enumerate(amounts)]
    )
    assert f"when {{ context.facts has amount && {said} }};" in suggested.drafts[0].rule


def test_numbers_that_vary_together_are_permitted_together_only() -> None:
    pairs = [(1, 7), (2, 8), (3, 9), (1, 8), (2, 9)]
    found = [make_past_decision(number, facts={"amount": a, "order": b}) for number, (a, b) in enumerate(pairs)]
    suggested = suggest_from(found, facts={"amount": "Long", "order": "Long"})
    rule = compile_suggestion(suggested)
    permitted = [
        pair for pair in product(range(5), range(6, 11))
        if is_permitted(rule, _change_facts(found[0], {"amount": pair[0], "order": pair[1]}))
    ]  # fmt: skip
    assert permitted == sorted(pairs)
    many = [make_past_decision(number, facts={"amount": number, "order": number}) for number in range(21)]
    assert "21 different values" in withheld_reason(suggest_from(many, facts={"amount": "Long", "order": "Long"}))


def test_session_cost_and_labels_are_fixed_if_the_rule_reads_them() -> None:
    asks = (
        '@id("asks") @decision("ask") permit (principal, action, resource) '
        'when { context.cost > 5 || context.labels.contains("pii") || context has session };'
    )
    found = [
        make_past_decision(number, policies=compile_active(asks), session="s1", cost_micros=cost, labels=labels)
        for number, (cost, labels) in enumerate([(9, frozenset({"pii"})), (12, frozenset[str]())] * 3)
    ]
    suggested = suggest_from(found, asks)
    rule, (draft,) = compile_suggestion(suggested), suggested.drafts
    for clause in (
        'context.labels.isEmpty() || context.labels == ["pii"]',
        '(context has session && ["s1"].contains(context.session))',
        "context.cost <= 12",
    ):
        assert f"when {{ {clause} }}" in draft.rule
    seen = replace(found[0].replay.query, now_ms=NOW)
    assert is_permitted(rule, seen)
    for change in ({"session": "s2"}, {"session": None}, {"cost_micros": 13}, {"labels": frozenset({"x"})}):
        assert not is_permitted(rule, replace(seen, **change))


def _change_facts(one: PastDecision, facts: Mapping[str, Any]) -> PolicyQuery:
    return replace(one.replay.query, now_ms=NOW, facts=facts)


def test_an_approved_undo_is_no_evidence_for_calls_that_take_nothing_back() -> None:
    undo = make_question(IDA, REFUND, facts={"amount": 20}, undone=UndoneCall(tool="crm.charge"))
    replay = parse_replay(DecisionCache(compile_active(), key=b"k").decide_uncached(undo).record, now_ms=undo.now_ms)
    assert replay.query.undone == undo.undone
    assert not is_evidence(replay, compile_active())
