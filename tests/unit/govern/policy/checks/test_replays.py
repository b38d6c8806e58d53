"""A decision is evaluated again where it cannot hold the event loop, and costly rules are never taken for a denial."""

from collections.abc import Callable

import pytest

from deputize.core.decision import Behavior, Verdict
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.cedar_schema import PolicyQuery, build_query
from deputize.govern.policy.checks.backtest import Backtest, BacktestCall
from deputize.govern.policy.checks.replays import confirm_replay, replay_query
from deputize.govern.policy.decision_cache import DecisionCache
from deputize.govern.policy.explain import find_smallest_changes
from deputize.govern.policy.slices import PolicySlice
from tests.support.policy_inputs import compile_policies, make_question

pytestmark = pytest.mark.requirement("GOV-2")
NOW_MS = 1_000_000
QUESTION = make_question(facts={"n": "a" * 8_000 + "b"})
# Enough patterns that the event loop does not evaluate them, and few enough to be quick in a test.
COSTLY = (
    "".join(
        f'@id("r{number}") permit (principal, action, resource) when {{ context.facts.n like "*{"a" * 900}{number}" }};'
        for number in range(3)
    )
    + '@id("yes") permit (principal, action, resource) when { context.facts.n like "*b" };'
)


async def run_here(job: Callable[[bytes], bytes], payload: bytes) -> bytes:
    return job(payload)


async def run_out_of_time(job: Callable[[bytes], bytes], payload: bytes) -> None:
    return None


async def refuse_job(job: Callable[[bytes], bytes], payload: bytes) -> None:
    raise AssertionError("these rules need no other process")


def _record_decision(policies: CompiledPolicies) -> bytes:
    verdict = policies.evaluate_query(build_query(QUESTION), may_take_long=True)
    return DecisionCache(policies, key=b"k" * 32).record_verdict(QUESTION, verdict).record


async def test_costly_rules_are_evaluated_again_in_another_process() -> None:
    policies = compile_policies(COSTLY)
    record = _record_decision(policies)
    replay = await replay_query(policies, record, NOW_MS, run_here)
    assert replay["behavior"] == Behavior.ALLOW
    assert [rule["id"] for rule in replay["rules"]] == ["yes"]
    assert await confirm_replay(policies, record, NOW_MS, run_here) is True


async def test_rules_that_overrun_leave_the_answer_open_instead_of_denying() -> None:
    policies = compile_policies(COSTLY)
    record = _record_decision(policies)
    replay = await replay_query(policies, record, NOW_MS, run_out_of_time)
    assert replay["behavior"] is None
    assert "too long" in replay["missing"][0]
    assert await confirm_replay(policies, record, NOW_MS, run_out_of_time) is None


async def test_other_rules_need_no_process() -> None:
    policies = compile_policies('@id("yes") permit (principal, action, resource);')
    record = _record_decision(policies)
    assert (await replay_query(policies, record, NOW_MS, refuse_job))["behavior"] == Behavior.ALLOW


def test_a_search_for_changes_evaluates_costly_rules_where_no_event_loop_waits() -> None:
    policies, other_question = compile_policies(COSTLY), make_question(facts={"n": "a" * 8_000})
    assert find_smallest_changes(policies, other_question) == []
    assert find_smallest_changes(policies, QUESTION, may_take_long=True) == []


def test_a_backtest_repeats_the_step_that_waits_for_the_verdict_of_another_process() -> None:
    draft = compile_policies(COSTLY)
    verdicts: list[Verdict] = []

    def take_verdict(slice_: PolicySlice, query: PolicyQuery) -> Verdict:
        if not verdicts:
            verdicts.append(draft.evaluate_query(query, may_take_long=True))
            raise LookupError
        return verdicts.pop()

    backtest = Backtest(draft, evaluate_off_loop=take_verdict)
    record = _record_decision(draft)
    with pytest.raises(LookupError):
        backtest.learn_record("r", record)
    assert backtest.list_unknown_records(["r"]) == ["r"]
    backtest.learn_record("r", record)
    backtest.count_call(BacktestCall(call_id="c", record_id="r", at_ms=NOW_MS, session=None))
    assert backtest.build_report().to_json()["same"] == 1
