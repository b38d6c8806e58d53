"""A drafted permit matches only what was approved: checked by mutations, exhaustively, and by a backtest."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deputize.core.decision import PolicyRequest
from deputize.govern.approvals.permit_suggestions import PastDecision
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.cedar_schema import PolicyQuery
from deputize.govern.policy.checks.backtest import Backtest, BacktestCall
from deputize.govern.policy.checks.validate import validate_policies
from deputize.govern.policy.decision_cache import DecisionCache
from deputize.govern.policy.decision_records import parse_replay
from deputize.govern.policy.policy_parser import PolicyFile
from tests.support.policy_inputs import MOMENT, make_caller, make_question
from tests.unit.govern.approvals.past_decisions import (
    FACTS,
    NOW,
    PEOPLE,
    REFUND,
    UNTIL,
    compile_active,
    is_permitted,
    suggest_from,
)

pytestmark = pytest.mark.requirement("NEW-9")

NAMES = st.sampled_from(["ida", "eve", 'o"dd', "a\nb", "\u202eada", "a\\u{41}"])
CALLERS = st.builds(
    lambda user, agents, groups, scopes, trust, human, task: make_caller(
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
FACT_SETS = st.fixed_dictionaries({}, optional=VALUES)


@st.composite
def approvals(draw: st.DrawFn) -> list[PastDecision]:
    """Generate approved calls of several callers with varying facts, groups and scopes."""
    found: list[PastDecision] = []
    for who in draw(st.lists(CALLERS, min_size=1, max_size=2)):
        for fixed in draw(st.lists(FACT_SETS, min_size=1, max_size=2)):
            for _ in range(draw(st.integers(3, 7))):
                numbers: dict[str, Any] = {name: draw(VALUES[name]) for name in ("amount", "order") if name in fixed}
                more = draw(st.sampled_from([frozenset[str](), frozenset({"extra"})]))
                same = replace(who, scopes=who.scopes | draw(st.sampled_from([frozenset[str](), frozenset({"c"})])))
                grouped = replace(same, groups=same.groups | more, decision_cache_key="")
                facts = {name: numbers.get(name, value) for name, value in fixed.items()}
                asked = make_question(grouped, REFUND, facts=facts, environment="production")
                record = DecisionCache(compile_active(), key=b"k").decide_uncached(asked).record
                number = len(found)
                found.append(
                    PastDecision(
                        approval_id=str(number),
                        is_approved=True,
                        people=frozenset({PEOPLE[number % 2]}),
                        at_ms=MOMENT,
                        rules=frozenset({"asks"}),
                        replay=parse_replay(record, now_ms=MOMENT),
                    )
                )
    return found


def _mutate_request(request: PolicyQuery) -> Iterator[PolicyQuery]:
    """Yield queries that differ in one value that was never approved."""
    who, what = request.caller, request.tool
    other = {
        "user": "nobody", "issuer": "https://elsewhere", "scopes": ["zzz"], "task": "other",
        "trust": {"untrusted": "standard", "standard": "trusted", "trusted": "untrusted"}[who["trust"]],
        "human": not who["human"], "agents": ["stranger", *who["agents"]][:2],
    }  # fmt: skip
    for name, value in other.items():
        yield replace(request, caller={**who, name: value})
    yield replace(request, caller={**who, "agents": [*who["agents"], "stranger"]})
    yield replace(request, caller={**who, "scopes": [*who["scopes"], "zzz"]})
    if who["agents"]:
        yield replace(request, caller={**who, "agents": []})
    yield replace(request, tool={**what, "name": "crm.other"})
    yield replace(request, tool={**what, "version": "1.0.1"})
    for place in ("development", "staging"):
        yield replace(request, environment=place)
    for late in (UNTIL * 1000, UNTIL * 1000 + 86_400_000_000):
        yield replace(request, now_ms=late)
    for name in FACTS:
        if name in request.facts:
            yield replace(request, facts={key: value for key, value in request.facts.items() if key != name})
    unseen = {"amount": 99, "order": -1, "note": "never", "to": ("x",)}
    for name, value in unseen.items():
        yield replace(request, facts={**request.facts, name: value})
    if "fast" not in request.facts:
        yield replace(request, facts={**request.facts, "fast": True})


def _caller_key(request: PolicyQuery) -> tuple[Any, ...]:
    who = request.caller
    return (
        who["user"], who["issuer"], who["trust"], who["human"], tuple(who["agents"]), who["task"],
    )  # fmt: skip


@given(approvals(), st.data())
def test_a_draft_matches_only_what_was_approved(found: list[PastDecision], data: st.DataObject) -> None:
    suggested = suggest_from(found, facts=FACTS)
    for draft in suggested.drafts:
        rule = CompiledPolicies([PolicyFile(path="draft", text=draft.rule)], FACTS)
        seen = [replace(each.replay.query, now_ms=NOW) for each in draft.evidence]
        assert all(is_permitted(rule, each) for each in seen)
        for each in seen:
            assert not any(is_permitted(rule, mutated) for mutated in _mutate_request(each))
            for group in set.intersection(*(set(one.caller["groups"]) for one in seen)):
                left = [one for one in each.caller["groups"] if one != group]
                assert not is_permitted(rule, replace(each, caller={**each.caller, "groups": left}))
        # Of every question that could be asked in this small world, exactly those are permitted that were approved.
        facts = {repr(sorted(each.facts.items())) for each in seen}
        numbers = [name for name in ("amount", "order") if name in seen[0].facts]
        for values in product(range(-4, 6), repeat=len(numbers)):
            varied = {**seen[0].facts, **dict(zip(numbers, values, strict=True))}
            assert is_permitted(rule, replace(seen[0], facts=varied)) is (repr(sorted(varied.items())) in facts)
        scopes = {tuple(each.caller["scopes"]) for each in seen}
        asked = data.draw(st.sampled_from(found)).replay.query
        tried = replace(asked, now_ms=NOW, facts=data.draw(FACT_SETS))
        groups = set.intersection(*(set(each.caller["groups"]) for each in seen))
        approved = (
            _caller_key(tried) == _caller_key(seen[0])
            and repr(sorted(tried.facts.items())) in facts
            and tuple(tried.caller["scopes"]) in scopes
            and groups <= set(tried.caller["groups"])
        )
        assert is_permitted(rule, tried) is approved


@settings(max_examples=30, deadline=None)
@given(approvals())
def test_drafts_are_valid_and_a_backtest_changes_only_approved_calls(
    found: list[PastDecision],
) -> None:
    suggested = suggest_from(found, facts=FACTS)
    if suggested.file is None:
        return
    files = [*compile_active().files, suggested.file]
    assert not validate_policies(files, FACTS).errors
    backtest = Backtest(CompiledPolicies(files, FACTS))
    learned = {each.approval_id for draft in suggested.drafts for each in draft.evidence}
    for each in found:
        asked: PolicyRequest = _rebuild_question(each)
        decided = DecisionCache(compile_active(), key=b"k").decide_uncached(asked)
        backtest.learn_record(decided.record_id, decided.record)
        backtest.count_call(
            BacktestCall(call_id=each.approval_id, record_id=decided.record_id, at_ms=each.at_ms, session=None)
        )
    told = backtest.build_report().to_json()
    assert (told["looser"], told["stricter"], told["undetermined"]) == (len(learned), 0, 0)
    ids = {draft.name for draft in suggested.drafts}
    assert all({rule["id"] for rule in each["after"]["rules"]} <= ids for each in told["changes"])


def _rebuild_question(each: PastDecision) -> PolicyRequest:
    asked = each.replay.query
    who = make_caller(
        asked.caller["user"], agents=tuple(asked.caller["agents"]), groups=frozenset(asked.caller["groups"]),
        scopes=frozenset(asked.caller["scopes"]), trust=asked.caller["trust"], human=asked.caller["human"],
        task=asked.caller["task"],
    )  # fmt: skip
    return make_question(who, REFUND, facts=asked.facts, environment="production")
