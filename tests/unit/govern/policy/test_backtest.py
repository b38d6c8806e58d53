"""A draft tried on recorded questions: exactly what would change is told, and nothing is guessed."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.decision import Behavior, Decided, Question, Rule, Verdict, demanded
from deputize.govern.policy import backtest as module
from deputize.govern.policy.backtest import Backtest, Made
from deputize.govern.policy.decisions import Decisions
from deputize.govern.policy.engines import Engine, combined
from tests.unit.govern.policy.asking import MOMENT, caller, policies, question, tool

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


def recorded(text: str, asked: Question) -> Decided:
    return Decisions(policies(text), key=b"k" * 32).decide_anew(asked)


def made(decided: Decided, number: int = 1, **more: Any) -> Made:
    fields: dict[str, Any] = {"at_ms": MOMENT, "session": None} | more
    return Made(call_id=f"call-{number}", record_id=decided.record_id, **fields)


def tried(draft: str, *calls: tuple[Decided, Mapping[str, Any]], engine: Engine = "cedar") -> dict[str, Any]:
    backtest = Backtest(policies(draft), engine=engine)
    for number, (decided, more) in enumerate(calls):
        if backtest.unknown([decided.record_id]):
            backtest.learn(decided.record_id, decided.record)
        backtest.count(made(decided, number, **more))
    return backtest.report().to_json()


def test_a_call_whose_answer_changes_is_told_with_the_rules_before_and_after() -> None:
    by_bot = recorded(ANY, question(caller(agents=("bot",)), tool("crm.list")))

    told = tried(ANY + NO_BOTS, (by_bot, {}), (by_bot, {}))

    assert (told["calls"], told["questions"], told["changed"], told["stricter"], told["looser"]) == (2, 1, 2, 2, 0)
    (change,) = told["changes"]
    assert (change["tool"], change["user"], change["agents"], change["calls"]) == ("crm.list", "ana", ["bot"], 2)
    assert change["before"] == {"behavior": "allow", "rules": [{"id": "any", "where": "1.cedar:1"}]}
    assert change["after"]["behavior"] == "deny"
    assert [rule["id"] for rule in change["after"]["rules"]] == ["no-bots"]
    assert change["example"] == "call-1"


def test_the_same_answer_by_other_rules_is_no_change_and_is_counted() -> None:
    told = tried(READS, (recorded(ANY, question()), {}))

    assert (told["changed"], told["same"], told["same_by_other_rules"]) == (0, 1, 1)


def test_facts_that_records_hold_are_read_even_if_the_old_rules_did_not_read_them() -> None:
    small, large = (recorded(ANY, question(facts={"amount": amount})) for amount in (5, 50))

    told = tried(SMALL, (small, {}), (large, {}))

    assert (told["same"], told["changed"]) == (1, 1)
    assert told["changes"][0]["after"]["rules"][0]["id"] == "nothing-permits"


def test_a_redacted_fact_that_the_draft_reads_leaves_the_answer_untold() -> None:
    hidden = recorded(ANY, question(facts={"amount": 5}, withheld=frozenset({"amount"})))

    told = tried(SMALL, (hidden, {}))

    assert (told["changed"], told["untold"], told["cannot_tell"][0]["lacks"]) == (0, 1, ["facts.amount"])
    assert tried(READS, (hidden, {}))["untold"] == 0


@pytest.mark.parametrize("read", ["cost > 5", 'labels.contains("x")', 'scopes.contains("a")'])
def test_what_neither_record_nor_entry_holds_is_untold(read: str) -> None:
    draft = f'@id("r") permit (principal, action, resource) when {{ context.{read} }};'

    assert tried(draft, (recorded(ANY, question()), {}))["untold"] == 1


def test_time_and_session_come_from_the_entry_where_the_record_lacks_them() -> None:
    asked = recorded(ANY, question())
    morning = MOMENT - 12 * 3_600_000

    told = tried(ANY + NIGHT, (asked, {}), (asked, {"at_ms": morning}), (asked, {"at_ms": morning + 10}))
    assert (told["changed"], told["same"], told["questions"]) == (1, 2, 1)

    told = tried(SESSION, (asked, {"session": "s1"}), (asked, {"session": "s2"}), (asked, {}))
    assert (told["changed"], told["same"]) == (2, 1)


def test_of_several_entries_of_one_call_the_last_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = recorded(ANY, question()), recorded(READS, question(what=tool(effects="write")))
    backtest = Backtest(policies(READS))
    for each in (first, last):
        backtest.learn(each.record_id, each.record)
        backtest.count(made(each))

    told = backtest.report().to_json()

    assert (told["calls"], told["changed"], told["same"]) == (1, 0, 1)


def test_waiting_for_later_entries_ends_after_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PENDING", 3)
    asked = recorded(ANY, question())

    assert tried(READS, *[(asked, {})] * 10)["calls"] == 10


def test_a_call_whose_record_is_gone_is_counted_apart() -> None:
    backtest = Backtest(policies(ANY))
    backtest.count(made(recorded(ANY, question())))

    assert backtest.report().to_json()["unrecorded"] == 1


def test_a_draft_that_fails_to_evaluate_denies_and_says_so() -> None:
    broken = '@id("broken") permit (principal, action, resource) when { context.facts.amount < 10 };'

    told = tried(broken, (recorded(ANY, question()), {}))

    assert told["changes"][0]["after"]["errors"] == ["broken (1.cedar:1) reads the attribute amount, which is absent"]


def _of_another(behavior: Behavior, source: str) -> Decided:
    asked = question()
    verdict = Verdict(behavior=behavior, rules=(Rule(id=f"{source}:x"),), digest="", source=source)  # type: ignore[arg-type]  # one of the sources
    return Decisions(policies(ANY), key=b"k" * 32).recorded(asked, verdict)


@pytest.mark.parametrize("source", ["hook", "authzen"])
def test_what_a_hook_or_decision_point_denied_stays_denied(source: str) -> None:
    assert tried(ANY, (_of_another(Behavior.DENY, source), {}))["changed"] == 0
    told = tried(READS + NIGHT, (_of_another(Behavior.ASK, source), {}))
    assert [change["after"]["behavior"] for change in told["changes"]] == ["deny"]


def test_a_milder_draft_is_untold_where_a_decision_point_was_not_asked() -> None:
    refused = recorded(READS, question(what=tool(effects="write")))

    assert tried(ANY, (refused, {}), engine="both")["untold"] == 1
    assert tried(ANY, (refused, {}))["changed"] == 1


TWO = '@id("two") @decision("ask") @approvers("leads") @quorum("2") permit (principal, action, resource);'
RULES = (READS, ANY, SMALL, NIGHT, NO_BOTS, ASKS, SESSION, TWO)
SETS = st.lists(st.sampled_from(RULES), min_size=1, unique=True).map("\n".join)
QUESTIONS = st.builds(
    lambda agents, effects, amount, hour, session: question(
        caller(agents=agents),
        tool(effects=effects),
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


def _people(verdict: Verdict) -> set[tuple[tuple[str, ...], int]]:
    return {(each.groups, each.quorum) for each in verdict.demands}


@given(SETS, SETS, st.lists(QUESTIONS, max_size=12))
def test_exactly_the_calls_that_the_draft_answers_otherwise_are_told(
    before: str, draft: str, asked: list[Question]
) -> None:
    decisions, drafted = Decisions(policies(before), key=b"k" * 32), policies(draft)
    backtest = Backtest(drafted)
    expected: Counter[tuple[str, str]] = Counter()
    for number, each in enumerate(asked):
        decided = decisions.decide(each)
        backtest.learn(decided.record_id, decided.record)
        backtest.count(made(decided, number, at_ms=each.now_ms, session=each.session))
        after = drafted.decide(each)
        if after.behavior is not decided.verdict.behavior or _people(after) != _people(decided.verdict):
            expected[decided.verdict.behavior, after.behavior] += 1

    found: Counter[tuple[str, str]] = Counter()
    told = backtest.report().to_json()
    for change in told["changes"]:
        found[change["before"]["behavior"], change["after"]["behavior"]] += change["calls"]
    assert found == expected
    assert told["calls"] == len(asked)
    assert told["untold"] == 0


ONCALL = '@id("asks") @decision("ask") @approvers("oncall") permit (principal, action, resource);'


@pytest.mark.requirement("GOV-3")
def test_a_call_that_would_be_asked_of_others_is_told() -> None:
    told = tried(ONCALL, (recorded(ASKS, question()), {}))

    counts = [told[name] for name in ("changed", "looser", "stricter", "asked_of_others", "same")]
    assert counts == [1, 0, 0, 1, 0]
    (change,) = told["changes"]
    usual = {"groups": [], "quorum": 1, "deadline_seconds": None, "step_up": ""}
    assert change["before"]["wants"] == [usual]
    assert change["after"]["wants"] == [usual | {"groups": ["oncall"]}]


@pytest.mark.requirement("GOV-3")
def test_which_rule_asks_and_how_often_is_no_change_of_who_is_asked() -> None:
    renamed = ONCALL.replace('"asks"', '"again"')

    told = tried(ONCALL + renamed, (recorded(ONCALL, question()), {}))
    assert (told["changed"], told["same_by_other_rules"]) == (0, 1)
    assert tried(ANY, (recorded(ONCALL, question()), {}))["looser"] == 1
    assert tried(ONCALL, (recorded(ANY, question()), {}))["stricter"] == 1


@pytest.mark.requirement("GOV-3")
def test_a_decision_point_that_asked_would_ask_again() -> None:
    asked = question()
    rules = (Rule(id="authzen:risk", where="pdp"),)
    remote = Verdict(behavior=Behavior.ASK, rules=rules, digest="d", source="authzen", demands=demanded(rules))
    for before in (ONCALL, ANY):
        decisions = Decisions(policies(before), key=b"k" * 32)
        decided = decisions.recorded(asked, combined(decisions.decide(asked).verdict, remote))
        told = tried(before, (decided, {}), engine="both")
        assert (told["changed"], told["same"]) == (0, 1)


def test_an_answer_does_not_change_when_nothing_does() -> None:
    asked = question(facts={"amount": 5})
    decided = recorded(SMALL, asked)

    assert tried(SMALL, (decided, {}))["same"] == 1
