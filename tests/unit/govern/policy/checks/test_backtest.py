"""Backtests report exactly the recorded calls whose verdict a draft changes, without guessing."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.decision import (
    Behavior,
    MatchedRule,
    PolicyRequest,
    RecordedVerdict,
    Verdict,
    build_approval_requirements,
)
from deputize.govern.policy.checks import backtest as module
from deputize.govern.policy.checks.backtest import Backtest, BacktestCall
from deputize.govern.policy.decision_cache import DecisionCache
from deputize.govern.policy.engines import Engine, combine_verdicts
from tests.support.policy_inputs import MOMENT, compile_policies, make_caller, make_question, make_tool

pytestmark = pytest.mark.requirement("NEW-4", "GOV-2")

READS = '@id("reads") permit (principal, action, resource) when { resource.effects == "read" };'
ANY = '@id("any") permit (principal, action, resource);'
SMALL = (
    '@id("small") permit (principal, action, resource) when { context.facts has amount && context.facts.amount < 10 };'
)
NIGHT = '@id("night") forbid (principal, action, resource) when { context.time.hour >= 20 };'
NO_BOTS = '@id("no-bots") forbid (principal, action, resource) when { context.delegated };'
ASKS = '@id("asks") @decision("ask") permit (principal, action, resource);'
SESSION = '@id("s1") permit (principal, action, resource) when { context has session && context.session == "s1" };'


def record_decision(text: str, question: PolicyRequest) -> RecordedVerdict:
    return DecisionCache(compile_policies(text), key=b"k" * 32).decide_uncached(question)


def make_call(decision: RecordedVerdict, number: int = 1, **more: Any) -> BacktestCall:
    fields: dict[str, Any] = {"at_ms": MOMENT, "session": None} | more
    return BacktestCall(call_id=f"call-{number}", record_id=decision.record_id, **fields)


def run_backtest(
    draft: str, *calls: tuple[RecordedVerdict, Mapping[str, Any]], engine: Engine = "cedar"
) -> dict[str, Any]:
    backtest = Backtest(compile_policies(draft), engine=engine)
    for number, (decided, more) in enumerate(calls):
        if backtest.list_unknown_records([decided.record_id]):
            backtest.learn_record(decided.record_id, decided.record)
        backtest.count_call(make_call(decided, number, **more))
    return backtest.build_report().to_json()


def test_a_changed_decision_is_reported_with_the_rules_before_and_after() -> None:
    by_bot = record_decision(ANY, make_question(make_caller(agents=("bot",)), make_tool("crm.list")))

    told = run_backtest(ANY + NO_BOTS, (by_bot, {}), (by_bot, {}))

    assert (told["calls"], told["questions"], told["changed"], told["stricter"], told["looser"]) == (2, 1, 2, 2, 0)
    (change,) = told["changes"]
    assert (change["tool"], change["user"], change["agents"], change["calls"]) == ("crm.list", "ana", ["bot"], 2)
    assert change["before"] == {"behavior": "allow", "rules": [{"id": "any", "where": "1.cedar:1"}]}
    assert change["after"]["behavior"] == "deny"
    assert [rule["id"] for rule in change["after"]["rules"]] == ["no-bots"]
    assert change["example"] == "call-1"


def test_an_equal_verdict_by_other_rules_is_counted_as_unchanged() -> None:
    told = run_backtest(READS, (record_decision(ANY, make_question()), {}))

    assert (told["changed"], told["same"], told["same_by_other_rules"]) == (0, 1, 1)


def test_facts_that_records_hold_are_read_even_if_the_old_rules_did_not_read_them() -> None:
    small, large = (record_decision(ANY, make_question(facts={"amount": amount})) for amount in (5, 50))

    told = run_backtest(SMALL, (small, {}), (large, {}))

    assert (told["same"], told["changed"]) == (1, 1)
    assert told["changes"][0]["after"]["rules"][0]["id"] == "nothing-permits"


def test_a_redacted_fact_read_by_the_draft_leaves_the_decision_open() -> None:
    hidden = record_decision(ANY, make_question(facts={"amount": 5}, unrecorded_facts=frozenset({"amount"})))

    told = run_backtest(SMALL, (hidden, {}))

    assert (told["changed"], told["undetermined"], told["cannot_tell"][0]["missing"]) == (0, 1, ["facts.amount"])
    assert run_backtest(READS, (hidden, {}))["undetermined"] == 0


@pytest.mark.parametrize("read", ["cost > 5", 'labels.contains("x")', 'scopes.contains("a")'])
def test_a_decision_without_recorded_inputs_is_undecided(read: str) -> None:
    draft = f'@id("r") permit (principal, action, resource) when {{ context.{read} }};'

    assert run_backtest(draft, (record_decision(ANY, make_question()), {}))["undetermined"] == 1


def test_the_audit_entry_supplies_time_and_session() -> None:
    asked = record_decision(ANY, make_question())
    morning = MOMENT - 12 * 3_600_000

    told = run_backtest(ANY + NIGHT, (asked, {}), (asked, {"at_ms": morning}), (asked, {"at_ms": morning + 10}))
    assert (told["changed"], told["same"], told["questions"]) == (1, 2, 1)

    told = run_backtest(SESSION, (asked, {"session": "s1"}), (asked, {"session": "s2"}), (asked, {}))
    assert (told["changed"], told["same"]) == (2, 1)


def test_of_several_entries_of_one_call_the_last_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = (
        record_decision(ANY, make_question()),
        record_decision(READS, make_question(what=make_tool(effects="write"))),
    )
    backtest = Backtest(compile_policies(READS))
    for each in (first, last):
        backtest.learn_record(each.record_id, each.record)
        backtest.count_call(make_call(each))

    told = backtest.build_report().to_json()

    assert (told["calls"], told["changed"], told["same"]) == (1, 0, 1)


def test_pending_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 3)
    asked = record_decision(ANY, make_question())

    assert run_backtest(READS, *[(asked, {})] * 10)["calls"] == 10


def test_a_call_without_its_record_is_counted_separately() -> None:
    backtest = Backtest(compile_policies(ANY))
    backtest.count_call(make_call(record_decision(ANY, make_question())))

    assert backtest.build_report().to_json()["unrecorded"] == 1


def test_a_draft_that_fails_to_evaluate_denies_and_says_so() -> None:
    broken = '@id("broken") permit (principal, action, resource) when { context.facts.amount < 10 };'

    told = run_backtest(broken, (record_decision(ANY, make_question()), {}))

    assert told["changes"][0]["after"]["errors"] == ["broken (1.cedar:1) reads the attribute amount, which is missing"]


def _foreign_decision(behavior: Behavior, source: str) -> RecordedVerdict:
    asked = make_question()
    verdict = Verdict(behavior=behavior, rules=(MatchedRule(id=f"{source}:x"),), digest="", source=source)  # type: ignore[arg-type]  # one of the sources
    return DecisionCache(compile_policies(ANY), key=b"k" * 32).record_verdict(asked, verdict)


@pytest.mark.parametrize("source", ["hook", "authzen"])
def test_what_a_hook_or_decision_point_denied_stays_denied(source: str) -> None:
    assert run_backtest(ANY, (_foreign_decision(Behavior.DENY, source), {}))["changed"] == 0
    told = run_backtest(READS + NIGHT, (_foreign_decision(Behavior.ASK, source), {}))
    assert [change["after"]["behavior"] for change in told["changes"]] == ["deny"]


def test_a_milder_draft_is_undecided_without_the_decision_point() -> None:
    refused = record_decision(READS, make_question(what=make_tool(effects="write")))

    assert run_backtest(ANY, (refused, {}), engine="both")["undetermined"] == 1
    assert run_backtest(ANY, (refused, {}))["changed"] == 1


TWO = '@id("two") @decision("ask") @approvers("leads") @quorum("2") permit (principal, action, resource);'
RULES = (READS, ANY, SMALL, NIGHT, NO_BOTS, ASKS, SESSION, TWO)
SETS = st.lists(st.sampled_from(RULES), min_size=1, unique=True).map("\n".join)
QUESTIONS = st.builds(
    lambda agents, effects, amount, hour, session: make_question(
        make_caller(agents=agents),
        make_tool(effects=effects),
        facts={} if amount is None else {"amount": amount},
        now_ms=MOMENT + hour * 3_600_000,
        session=session,
    ),
    st.sampled_from([(), ("bot",), ("a", "b")]),
    st.sampled_from(["read", "write", "destructive"]),
    st.sampled_from([None, 5, 50]),
    st.integers(0, 23),
    st.sampled_from([None, "s1", "s2"]),
)


def _approver_sets(verdict: Verdict) -> set[tuple[tuple[str, ...], int]]:
    return {(each.groups, each.quorum) for each in verdict.requirements}


@given(SETS, SETS, st.lists(QUESTIONS, max_size=12))
def test_exactly_the_calls_with_changed_decisions_are_reported(
    before: str, draft: str, asked: list[PolicyRequest]
) -> None:
    decisions, drafted = DecisionCache(compile_policies(before), key=b"k" * 32), compile_policies(draft)
    backtest = Backtest(drafted)
    expected: Counter[tuple[str, str]] = Counter()
    for number, each in enumerate(asked):
        decided = decisions.decide(each)
        backtest.learn_record(decided.record_id, decided.record)
        backtest.count_call(make_call(decided, number, at_ms=each.now_ms, session=each.session))
        after = drafted.decide(each)
        if after.behavior is not decided.verdict.behavior or _approver_sets(after) != _approver_sets(decided.verdict):
            expected[decided.verdict.behavior, after.behavior] += 1

    found: Counter[tuple[str, str]] = Counter()
    told = backtest.build_report().to_json()
    for change in told["changes"]:
        found[change["before"]["behavior"], change["after"]["behavior"]] += change["calls"]
    assert found == expected
    assert told["calls"] == len(asked)
    assert told["undetermined"] == 0


ONCALL = '@id("asks") @decision("ask") @approvers("oncall") permit (principal, action, resource);'


@pytest.mark.requirement("GOV-3")
def test_a_change_of_approvers_is_reported() -> None:
    told = run_backtest(ONCALL, (record_decision(ASKS, make_question()), {}))

    counts = [told[name] for name in ("changed", "looser", "stricter", "asked_of_others", "same")]
    assert counts == [1, 0, 0, 1, 0]
    (change,) = told["changes"]
    usual = {"groups": [], "quorum": 1, "deadline_seconds": None, "step_up": ""}
    assert change["before"]["approval_terms"] == [usual]
    assert change["after"]["approval_terms"] == [usual | {"groups": ["oncall"]}]


@pytest.mark.requirement("GOV-3")
def test_equal_approval_terms_from_other_rules_are_no_change() -> None:
    renamed = ONCALL.replace('"asks"', '"again"')

    told = run_backtest(ONCALL + renamed, (record_decision(ONCALL, make_question()), {}))
    assert (told["changed"], told["same_by_other_rules"]) == (0, 1)
    assert run_backtest(ANY, (record_decision(ONCALL, make_question()), {}))["looser"] == 1
    assert run_backtest(ONCALL, (record_decision(ANY, make_question()), {}))["stricter"] == 1


@pytest.mark.requirement("GOV-3")
def test_an_external_approval_requirement_is_kept() -> None:
    asked = make_question()
    rules = (MatchedRule(id="authzen:risk", where="pdp"),)
    remote = Verdict(
        behavior=Behavior.ASK,
        rules=rules,
        digest="d",
        source="authzen",
        requirements=build_approval_requirements(rules),
    )
    for before in (ONCALL, ANY):
        decisions = DecisionCache(compile_policies(before), key=b"k" * 32)
        decided = decisions.record_verdict(asked, combine_verdicts(decisions.decide(asked).verdict, remote))
        told = run_backtest(before, (decided, {}), engine="both")
        assert (told["changed"], told["same"]) == (0, 1)


def test_equal_policies_change_no_verdict() -> None:
    asked = make_question(facts={"amount": 5})
    decided = record_decision(SMALL, asked)

    assert run_backtest(SMALL, (decided, {}))["same"] == 1
