"""Records hold what a decision was made from, so that it can be made again, and nothing that must not be kept."""

from dataclasses import replace

import orjson
import pytest
from hypothesis import given, settings

from deputize.core.canonical import canonical
from deputize.core.decision import Demand, Question
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.decisions import Decisions
from deputize.govern.policy.records import Records, question_from
from tests.unit.govern.policy.asking import caller, policies, question, tool
from tests.unit.govern.policy.worlds import some_policies, some_question

pytestmark = pytest.mark.requirement("GOV-2")

EVERYBODY = '@id("a") permit (principal, action, resource);'


@settings(max_examples=200, deadline=None)
@given(some_policies(), some_question())
def test_replaying_a_record_gives_the_same_answer_and_the_same_record(
    whole: CompiledPolicies, wanted: Question
) -> None:
    decided = Decisions(whole, key=b"k").decide(wanted)
    replay = question_from(decided.record)
    slice_ = whole.slice_for(replay.asked)
    assert replay.lacks(slice_.reads) == ()
    assert replay.verdict == decided.verdict
    assert whole.replay(replay.asked) == decided.verdict
    assert Records(whole.digest, b"k").made(replay.asked, slice_, decided.verdict) == decided


@settings(max_examples=300, deadline=None)
@given(some_policies(), some_policies(), some_question())
def test_a_draft_answers_a_record_as_it_would_the_call_unless_the_record_lacks_something(
    whole: CompiledPolicies, draft: CompiledPolicies, wanted: Question
) -> None:
    replay = question_from(Decisions(whole, key=b"k").decide(wanted).record)
    lacks = replay.lacks(draft.slice_for(replay.asked).reads)
    assert set(lacks) <= {"session", "scopes", "sweeping", "time", "cost", "labels"}
    if not lacks:
        assert draft.replay(replay.asked) == draft.decide(wanted)


def test_a_record_is_canonical_and_names_rules_places_policies_and_facts() -> None:
    whole = policies('@id("a") @reason("Why.") permit (principal, action, resource) when { context.facts has n };')
    who = caller(agents=("bot",), groups=frozenset({"ops"}), scopes=frozenset({"s"}), trust="trusted")
    wanted = question(who, tool("crm.refund", effects="destructive"), facts={"n": 3})
    decided = Decisions(whole, key=b"k").decide(wanted)
    record = orjson.loads(decided.record)
    assert canonical(record) == decided.record
    assert record["behavior"] == "allow"
    assert record["rule_refs"] == [{"id": "a", "where": "1.cedar:1", "reason": "Why."}]
    assert record["policy_refs"] == {"set": whole.digest, "slice": decided.verdict.digest}
    assert record["principal"]["groups"] == ["ops"]
    assert record["principal"]["agents"] == ["bot"]
    assert record["tool"]["digest"] == wanted.contract.digest
    assert record["tool"]["effects"] == "destructive"
    assert record["context"] == {"environment": "development", "facts": {"n": 3}}


@pytest.mark.requirement("GOV-3")
def test_a_record_says_whom_its_rules_asked() -> None:
    wants = '@approvers("oncall, leads") @quorum("2") @deadline("30m") @step_up("hwk")'
    asks = f'@id("a") @reason("Why.") @decision("ask") {wants} permit (principal, action, resource);'
    decided = Decisions(policies(asks), key=b"k").decide(question())
    record = orjson.loads(decided.record)
    assert record["demands"] == [
        {"rule": "a", "groups": ["oncall", "leads"], "quorum": 2, "deadline_seconds": 1800, "step_up": "hwk"}
    ]
    assert question_from(decided.record).verdict.demands == decided.verdict.demands
    del record["demands"]  # as it was written before rules could say so
    assert question_from(canonical(record)).verdict.demands == (Demand(rule="a", where="1.cedar:1", reason="Why."),)
    assert "demands" not in orjson.loads(Decisions(policies(EVERYBODY), key=b"k").decide(question()).record)


def test_time_is_recorded_only_where_rules_read_it() -> None:
    timeless = Decisions(policies(EVERYBODY), key=b"k")
    assert timeless.decide_anew(question(now_ms=1)) == timeless.decide_anew(question(now_ms=2))
    timed = Decisions(
        policies(EVERYBODY + '@id("b") forbid (principal, action, resource) when { context.time.hour > 24 };'), key=b"k"
    )
    first = timed.decide(question(now_ms=1))
    assert first.record != timed.decide(question(now_ms=2)).record
    assert question_from(first.record).asked.now_ms == 1


def test_a_draft_may_be_told_when_the_call_was_made() -> None:
    record = Decisions(policies(EVERYBODY), key=b"k").decide(question()).record
    draft = policies('@id("a") permit (principal, action, resource) when { context.time.hour == 22 };')
    reads = draft.slice_of(question()).reads
    assert question_from(record).lacks(reads) == ("time",)
    replay = question_from(record, now_ms=question().now_ms)
    assert replay.lacks(reads) == ()
    assert draft.replay(replay.asked).behavior == "allow"


def test_what_is_withheld_is_judged_by_and_not_written_down() -> None:
    whole = policies(
        '@id("a") permit (principal, action, resource) when { context.facts has ssn && context.facts.ssn == "1234" };'
    )
    wanted = question(facts={"ssn": "1234", "n": 1}, withheld=frozenset({"ssn", "other"}))
    decided = Decisions(whole, key=b"k").decide(wanted)
    assert decided.verdict.behavior == "allow"
    assert b"1234" not in decided.record
    record = orjson.loads(decided.record)
    assert record["redacted"] == ["facts.ssn"]
    assert record["context"]["facts"] == {"ssn": None, "n": 1}
    replay = question_from(decided.record)
    assert replay.lacks(whole.slice_of(wanted).reads) == ("facts.ssn",)
    assert replay.lacks(policies(EVERYBODY).slice_of(wanted).reads) == ()


def test_an_id_says_nothing_without_the_key() -> None:
    one = Decisions(policies(EVERYBODY), key=b"one").decide(question())
    two = Decisions(policies(EVERYBODY), key=b"two").decide(question())
    assert one.record == two.record
    assert one.record_id != two.record_id
    assert len(bytes.fromhex(one.record_id)) == 16
    assert replace(one, record_id=two.record_id) == two
