"""Decision records hold what a replay needs, and nothing that must not be stored."""

from dataclasses import replace

import orjson
import pytest
from hypothesis import given

from deputize.core.canonical import canonicalize
from deputize.core.decision import ApprovalRequirement, PolicyRequest
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.decision_cache import DecisionCache
from deputize.govern.policy.decision_records import DecisionRecorder, find_secret_facts, parse_replay
from tests.support.policy_inputs import compile_policies, make_caller, make_question, make_tool
from tests.unit.govern.policy.policy_strategies import draw_policies, draw_question

pytestmark = pytest.mark.requirement("GOV-2")

EVERYBODY = '@id("a") permit (principal, action, resource);'


@given(draw_policies(), draw_question())
def test_replaying_a_record_gives_the_same_verdict_and_record(whole: CompiledPolicies, wanted: PolicyRequest) -> None:
    decided = DecisionCache(whole, key=b"k").decide(wanted)
    replay = parse_replay(decided.record)
    slice_ = whole.get_query_slice(replay.query)
    assert replay.find_missing(slice_.reads) == ()
    assert replay.verdict == decided.verdict
    assert whole.evaluate_query(replay.query) == decided.verdict
    assert DecisionRecorder(whole.digest, b"k").record_decision(replay.query, slice_, decided.verdict) == decided


@given(draw_policies(), draw_policies(), draw_question())
def test_a_draft_decides_a_complete_record_as_it_would_the_call(
    whole: CompiledPolicies, draft: CompiledPolicies, wanted: PolicyRequest
) -> None:
    replay = parse_replay(DecisionCache(whole, key=b"k").decide(wanted).record)
    lacks = replay.find_missing(draft.get_query_slice(replay.query).reads)
    assert set(lacks) <= {"session", "scopes", "sweeping", "time", "cost", "labels"}
    if not lacks:
        assert draft.evaluate_query(replay.query) == draft.decide(wanted)


def test_a_record_is_canonical_and_names_rules_places_policies_and_facts() -> None:
    whole = compile_policies(
        '@id("a") @reason("Why.") permit (principal, action, resource) when { context.facts has n };'
    )
    who = make_caller(agents=("bot",), groups=frozenset({"ops"}), scopes=frozenset({"s"}), trust="trusted")
    wanted = make_question(who, make_tool("crm.refund", effects="destructive"), facts={"n": 3})
    decided = DecisionCache(whole, key=b"k").decide(wanted)
    record = orjson.loads(decided.record)
    assert canonicalize(record) == decided.record
    assert record["behavior"] == "allow"
    assert record["rule_refs"] == [{"id": "a", "where": "1.cedar:1", "reason": "Why."}]
    assert record["policy_refs"] == {"set": whole.digest, "slice": decided.verdict.digest}
    assert record["principal"]["groups"] == ["ops"]
    assert record["principal"]["agents"] == ["bot"]
    assert record["tool"]["digest"] == wanted.contract.digest
    assert record["tool"]["effects"] == "destructive"
    assert record["context"] == {"environment": "development", "facts": {"n": 3}}


@pytest.mark.requirement("GOV-3")
def test_a_record_holds_the_approval_requirements() -> None:
    wants = '@approvers("oncall, leads") @quorum("2") @deadline("30m") @step_up("hwk")'
    asks = f'@id("a") @reason("Why.") @decision("ask") {wants} permit (principal, action, resource);'
    decided = DecisionCache(compile_policies(asks), key=b"k").decide(make_question())
    record = orjson.loads(decided.record)
    assert record["demands"] == [
        {"rule": "a", "groups": ["oncall", "leads"], "quorum": 2, "deadline_seconds": 1800, "step_up": "hwk"}
    ]
    assert parse_replay(decided.record).verdict.requirements == decided.verdict.requirements
    del record["demands"]  # as it was written before rules could say so
    assert parse_replay(canonicalize(record)).verdict.requirements == (
        ApprovalRequirement(rule="a", where="1.cedar:1", reason="Why."),
    )
    assert "demands" not in orjson.loads(
        DecisionCache(compile_policies(EVERYBODY), key=b"k").decide(make_question()).record
    )


def test_time_is_recorded_only_if_rules_read_it() -> None:
    timeless = DecisionCache(compile_policies(EVERYBODY), key=b"k")
    assert timeless.decide_uncached(make_question(now_ms=1)) == timeless.decide_uncached(make_question(now_ms=2))
    timed = DecisionCache(
        compile_policies(EVERYBODY + '@id("b") forbid (principal, action, resource) when { context.time.hour > 24 };'),
        key=b"k",
    )
    first = timed.decide(make_question(now_ms=1))
    assert first.record != timed.decide(make_question(now_ms=2)).record
    assert parse_replay(first.record).query.now_ms == 1


def test_a_draft_can_use_the_time_of_the_call() -> None:
    record = DecisionCache(compile_policies(EVERYBODY), key=b"k").decide(make_question()).record
    draft = compile_policies('@id("a") permit (principal, action, resource) when { context.time.hour == 22 };')
    reads = draft.get_request_slice(make_question()).reads
    assert parse_replay(record).find_missing(reads) == ("time",)
    replay = parse_replay(record, now_ms=make_question().now_ms)
    assert replay.find_missing(reads) == ()
    assert draft.evaluate_query(replay.query).behavior == "allow"


def test_unrecorded_facts_are_evaluated_but_not_stored() -> None:
    whole = compile_policies(
        '@id("a") permit (principal, action, resource) when { context.facts has ssn && context.facts.ssn == "1234" };'
    )
    wanted = make_question(facts={"ssn": "1234", "n": 1}, unrecorded_facts=frozenset({"ssn", "other"}))
    decided = DecisionCache(whole, key=b"k").decide(wanted)
    assert decided.verdict.behavior == "allow"
    assert b"1234" not in decided.record
    record = orjson.loads(decided.record)
    assert record["redacted"] == ["facts.ssn"]
    assert record["context"]["facts"] == {"ssn": None, "n": 1}
    replay = parse_replay(decided.record)
    assert replay.find_missing(whole.get_request_slice(wanted).reads) == ("facts.ssn",)
    assert replay.find_missing(compile_policies(EVERYBODY).get_request_slice(wanted).reads) == ()


@pytest.mark.requirement("GOV-6")
def test_a_fact_with_the_shape_of_a_secret_is_evaluated_but_not_stored() -> None:
    secret = "gh" + "p_0123456789abcdefghijABCDEFGHIJ012345"
    whole = compile_policies(
        '@id("a") permit (principal, action, resource) when { context.facts has note && context.facts.note like "g*" };'
    )
    wanted = make_question(facts={"note": secret, "tags": ("blue", f"the {secret}"), "to": "ana@example.org", "n": 1})
    decided = DecisionCache(whole, key=b"k").decide(wanted)
    assert decided.verdict.behavior == "allow"
    record = orjson.loads(decided.record)
    assert record["redacted"] == ["facts.note", "facts.tags"]
    assert record["context"]["facts"] == {"note": None, "tags": None, "to": "ana@example.org", "n": 1}


@pytest.mark.requirement("GOV-6")
def test_a_long_fact_that_may_hold_a_secret_is_not_stored_and_one_that_cannot_is() -> None:
    facts = {"long": "the token " + "is here " * 200, "plain": "is here " * 200}
    assert find_secret_facts(facts) == {"long"}


@pytest.mark.requirement("GOV-6")
def test_a_replay_says_that_scopes_with_a_secret_are_missing() -> None:
    whole = compile_policies(
        EVERYBODY + '@id("b") forbid (principal, action, resource) when { context.scopes.contains("x") };'
    )
    secret = "gh" + "p_0123456789abcdefghijABCDEFGHIJ012345"
    tool = make_tool("crm.put", effects="write")
    encoded = "notes/ref%3D" + secret
    for scope, missing in ((f"notes/{secret}", ("scopes",)), (encoded, ("scopes",)), ("notes/7", ())):
        wanted = make_question(what=tool, side_effects=(("notes", "create", scope),))
        decided = DecisionCache(whole, key=b"k").decide(wanted)
        assert secret.encode() not in decided.record
        assert parse_replay(decided.record).find_missing(whole.get_request_slice(wanted).reads) == missing


def test_record_ids_reveal_nothing_without_the_key() -> None:
    one = DecisionCache(compile_policies(EVERYBODY), key=b"one").decide(make_question())
    two = DecisionCache(compile_policies(EVERYBODY), key=b"two").decide(make_question())
    assert one.record == two.record
    assert one.record_id != two.record_id
    assert len(bytes.fromhex(one.record_id)) == 16
    assert replace(one, record_id=two.record_id) == two
