"""A draft covers what was approved and nothing beside it: held against mutations, a small world, and a backtest."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deputize.core.decision import Question
from deputize.govern.approvals.suggest import Past
from deputize.govern.policy.backtest import Backtest, Made
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.check import check
from deputize.govern.policy.decisions import Decisions
from deputize.govern.policy.records import question_from
from deputize.govern.policy.rules import PolicyFile
from deputize.govern.policy.world import Asked
from tests.unit.govern.approvals.learning import FACTS, NOW, PEOPLE, REFUND, UNTIL, in_force, learn, permits
from tests.unit.govern.policy.asking import MOMENT, caller, question

pytestmark = pytest.mark.requirement("NEW-9")

NAMES = st.sampled_from(["ida", "eve", 'o"dd', "a\nb", "\u202eada", "a\\u{41}"])
CALLERS = st.builds(
    lambda user, agents, groups, scopes, trust, human, task: caller(
        user, agents=agents, groups=groups, scopes=scopes, trust=trust, human=human, task=task
    ),
    NAMES,
    st.sampled_from([(), ("bot",), ("bot", 'b"oss'), ("\n",)]),
    st.sampled_from([frozenset[str](), frozenset({"support"}), frozenset({"support", 'o"ps'})]),
    st.sampled_from([frozenset[str](), frozenset({"a"}), frozenset({"a", "b"})]),
    st.sampled_from(["untrusted", "standard", "trusted"]),
    st.booleans(),
    st.sampled_from([None, "t", 't"x']),
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "amount": st.integers(-3, 4),
    "order": st.integers(0, 2),
    "note": st.sampled_from(["", "x", 'x"', "x\\", "ж", "\u200b"]),
    "fast": st.booleans(),
    "to": st.just(()),
}
GIVEN = st.fixed_dictionaries({}, optional=VALUES)


@st.composite
def approvals(draw: st.DrawFn) -> list[Past]:
    """Some callers, some kinds of facts, each approved a few times, with the caller's groups and scopes changing."""
    found: list[Past] = []
    for who in draw(st.lists(CALLERS, min_size=1, max_size=2)):
        for fixed in draw(st.lists(GIVEN, min_size=1, max_size=2)):
            for _ in range(draw(st.integers(3, 7))):
                numbers: dict[str, Any] = {name: draw(VALUES[name]) for name in ("amount", "order") if name in fixed}
                more = draw(st.sampled_from([frozenset[str](), frozenset({"extra"})]))
                same = replace(who, scopes=who.scopes | draw(st.sampled_from([frozenset[str](), frozenset({"c"})])))
                grouped = replace(same, groups=same.groups | more, standing="")
                facts = {name: numbers.get(name, value) for name, value in fixed.items()}
                asked = question(grouped, REFUND, facts=facts, environment="production")
                record = Decisions(in_force(), key=b"k").decide_anew(asked).record
                number = len(found)
                found.append(
                    Past(
                        ticket=str(number),
                        approved=True,
                        people=frozenset({PEOPLE[number % 2]}),
                        at_ms=MOMENT,
                        rules=frozenset({"asks"}),
                        replay=question_from(record, now_ms=MOMENT),
                    )
                )
    return found


def _mutations(asked: Asked) -> Iterator[Asked]:
    """One thing at a time that was never seen."""
    who, what = asked.caller, asked.tool
    other = {
        "user": "nobody", "issuer": "https://elsewhere", "scopes": ["zzz"], "task": "other",
        "trust": {"untrusted": "standard", "standard": "trusted", "trusted": "untrusted"}[who["trust"]],
        "human": not who["human"], "agents": ["stranger", *who["agents"]][:2],
    }  # fmt: skip
    for name, value in other.items():
        yield replace(asked, caller={**who, name: value})
    yield replace(asked, caller={**who, "agents": [*who["agents"], "stranger"]})
    yield replace(asked, caller={**who, "scopes": [*who["scopes"], "zzz"]})
    if who["agents"]:
        yield replace(asked, caller={**who, "agents": []})
    yield replace(asked, tool={**what, "name": "crm.other"})
    yield replace(asked, tool={**what, "version": "1.0.1"})
    for place in ("development", "staging"):
        yield replace(asked, environment=place)
    for late in (UNTIL * 1000, UNTIL * 1000 + 86_400_000_000):
        yield replace(asked, now_ms=late)
    for name in FACTS:
        if name in asked.facts:
            yield replace(asked, facts={key: value for key, value in asked.facts.items() if key != name})
    unseen = {"amount": 99, "order": -1, "note": "never", "to": ("x",)}
    for name, value in unseen.items():
        yield replace(asked, facts={**asked.facts, name: value})
    if "fast" not in asked.facts:
        yield replace(asked, facts={**asked.facts, "fast": True})


def _who(asked: Asked) -> tuple[Any, ...]:
    who = asked.caller
    return (
        who["user"], who["issuer"], who["trust"], who["human"], tuple(who["agents"]), who["task"],
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(approvals(), st.data())
def test_a_draft_covers_what_was_approved_and_nothing_beside_it(found: list[Past], data: st.DataObject) -> None:
    suggested = learn(found, facts=FACTS)
    for draft in suggested.drafts:
        rule = CompiledPolicies([PolicyFile(path="draft", text=draft.rule)], FACTS)
        seen = [replace(each.replay.asked, now_ms=NOW) for each in draft.learned_from]
        assert all(permits(rule, each) for each in seen)
        for each in seen:
            assert not any(permits(rule, mutated) for mutated in _mutations(each))
            for group in set.intersection(*(set(one.caller["groups"]) for one in seen)):
                left = [one for one in each.caller["groups"] if one != group]
                assert not permits(rule, replace(each, caller={**each.caller, "groups": left}))
        # Of every question that could be asked in this small world, exactly those are permitted that were approved.
        facts = {repr(sorted(each.facts.items())) for each in seen}
        numbers = [name for name in ("amount", "order") if name in seen[0].facts]
        for values in product(range(-4, 6), repeat=len(numbers)):
            varied = {**seen[0].facts, **dict(zip(numbers, values, strict=True))}
            assert permits(rule, replace(seen[0], facts=varied)) is (repr(sorted(varied.items())) in facts)
        scopes = {tuple(each.caller["scopes"]) for each in seen}
        asked = data.draw(st.sampled_from(found)).replay.asked
        tried = replace(asked, now_ms=NOW, facts=data.draw(GIVEN))
        groups = set.intersection(*(set(each.caller["groups"]) for each in seen))
        approved = (
            _who(tried) == _who(seen[0])
            and repr(sorted(tried.facts.items())) in facts
            and tuple(tried.caller["scopes"]) in scopes
            and groups <= set(tried.caller["groups"])
        )
        assert permits(rule, tried) is approved


@settings(max_examples=30, deadline=None)
@given(approvals())
def test_all_drafts_together_may_take_force_and_a_backtest_shows_only_what_was_approved(found: list[Past]) -> None:
    suggested = learn(found, facts=FACTS)
    if suggested.file is None:
        return
    files = [*in_force().files, suggested.file]
    assert not check(files, FACTS).errors
    backtest = Backtest(CompiledPolicies(files, FACTS))
    learned = {each.ticket for draft in suggested.drafts for each in draft.learned_from}
    for each in found:
        asked: Question = _question_again(each)
        decided = Decisions(in_force(), key=b"k").decide_anew(asked)
        backtest.learn(decided.record_id, decided.record)
        backtest.count(Made(call_id=each.ticket, record_id=decided.record_id, at_ms=each.at_ms, session=None))
    told = backtest.report().to_json()
    assert (told["looser"], told["stricter"], told["untold"]) == (len(learned), 0, 0)
    ids = {draft.name for draft in suggested.drafts}
    assert all({rule["id"] for rule in each["after"]["rules"]} <= ids for each in told["changes"])


def _question_again(each: Past) -> Question:
    asked = each.replay.asked
    who = caller(
        asked.caller["user"], agents=tuple(asked.caller["agents"]), groups=frozenset(asked.caller["groups"]),
        scopes=frozenset(asked.caller["scopes"]), trust=asked.caller["trust"], human=asked.caller["human"],
        task=asked.caller["task"],
    )  # fmt: skip
    return question(who, REFUND, facts=asked.facts, environment="production")
