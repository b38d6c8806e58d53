"""The judges of the approval backlog and of policies at size find one planted fault of each category."""

import random
from dataclasses import replace
from typing import Any

import pytest

from deputize.govern.policy.slices import SliceIndex
from deputize.operations.approvals.escalation import BATCH_SIZE
from proofs.approval_backlog.backlog import Backlog
from proofs.approval_backlog.console_pages import PageLatency
from proofs.approval_backlog.experiment import judge_facts, summarize_batches
from proofs.approval_backlog.timed_escalation import Batch
from proofs.kit.http_client import HttpResponse
from proofs.policy import large_rule_set
from proofs.policy.backtest import MadeCall, is_let_through, judge_backtest
from tests.support.proof_bars import list_missed_bars

pytestmark = pytest.mark.nightly

# The backlog: ten are over, five are escalated, three are brought to mind, and a hundred wait.

BACKLOGS = [Backlog(over=6, escalate=5, remind=3, idle=100), Backlog(over=4, escalate=0, remind=0, idle=0)]
STATES = {"open": 108, "expired": 10, "otherwise": 0, "risen": 5}
ENTRIES = {"calls": 10, "entries": 10, "most": 1}
NOTICES = {"escalated": (5, 5), "reminder": (6, 6)}


@pytest.mark.parametrize(
    ("due", "states", "entries", "notices", "missed"),
    [
        (0, {}, {}, {}, set()),
        (1, {}, {}, {}, {"left_due"}),
        (0, {"open": 107}, {}, {}, {"ended_otherwise"}),
        (0, {"expired": 11}, {}, {}, {"ended_otherwise"}),
        (0, {"otherwise": 1}, {}, {}, {"ended_otherwise"}),
        (0, {"risen": 6}, {}, {}, {"ended_otherwise"}),
        (0, {}, {"calls": 9}, {}, {"ended_twice_or_unproven"}),
        (0, {}, {"entries": 11}, {}, {"ended_twice_or_unproven"}),
        (0, {}, {"most": 2}, {}, {"ended_twice_or_unproven"}),
        (0, {}, {}, {"escalated": (6, 5)}, {"told_twice_or_not"}),
        (0, {}, {}, {"reminder": (6, 5)}, {"told_twice_or_not"}),
        (0, {}, {}, {"reminder": (5, 5)}, {"told_twice_or_not"}),
    ],
)
def test_a_backlog_is_judged_by_states_entries_and_notices(
    due: int, states: dict[str, int], entries: dict[str, int], notices: dict[str, Any], missed: set[str]
) -> None:
    figures = judge_facts(BACKLOGS, due, {**STATES, **states}, {**ENTRIES, **entries}, {**NOTICES, **notices})
    assert list_missed_bars("approval_backlog", figures) == missed


def test_no_notice_at_all_is_found() -> None:
    assert list_missed_bars("approval_backlog", judge_facts(BACKLOGS, 0, STATES, ENTRIES, {})) == {"told_twice_or_not"}


BATCHES = [Batch(count=BATCH_SIZE, over=number % 2, ms=100.0) for number in range(200)]
SLOW = replace(BATCHES[0], ms=500.0)


@pytest.mark.parametrize(
    ("batches", "missed"),
    [
        (BATCHES, set()),
        ([SLOW, *BATCHES], set()),
        ([*BATCHES, replace(SLOW, count=1)], set()),
        ([*BATCHES, SLOW, SLOW, SLOW], {"batch_p99_ms"}),
        ([*BATCHES[:50], *[SLOW] * 60], {"batch_p99_ms", "batch_p50_ms"}),
    ],
)
def test_slow_batches_are_found_but_for_the_first_one(batches: list[Batch], missed: set[str]) -> None:
    figures, expiry_ms = summarize_batches(batches)
    assert list_missed_bars("approval_backlog", figures) == missed
    assert expiry_ms == 100.0


def test_a_page_is_timed_by_its_slowest_hundredth() -> None:
    latency = PageLatency(latencies_ms=[10.0] * 98 + [900.0] * 2, failure_count=0)
    assert (latency.compute_quantile(0.5), latency.compute_quantile(0.99)) == (10.0, 900.0)


# A backtest: what a draft would change, as the gateway reports it, against plain Python.

LOOK = MadeCall(tool="policy.look", user="ana", agent="bot-2", amount=0, decision="allow")
PAY = MadeCall(tool="policy.pay", user="ana", agent="", amount=400, decision="allow")
DENIED = MadeCall(tool="policy.pay", user="ana", agent="", amount=1000, decision="deny")
SEND = MadeCall(tool="policy.send", user="bo", agent="", amount=1, decision="allow")
CALLS = [LOOK, PAY, DENIED, SEND]


def make_change(call: MadeCall, before: str, after: str, calls: int = 1) -> dict[str, Any]:
    return {
        "tool": call.tool,
        "user": call.user,
        "agents": [call.agent] if call.agent else [],
        "before": {"behavior": before},
        "after": {"behavior": after},
        "calls": calls,
    }


LOOK_CHANGE, PAY_CHANGE = make_change(LOOK, "allow", "deny"), make_change(PAY, "allow", "ask")
CANNOT_TELL = make_change(SEND, "", "")
REPORT = {
    "calls": 4,
    "changed": 2,
    "undetermined": 1,
    "unrecorded": 0,
    "changes": [LOOK_CHANGE, PAY_CHANGE],
    "cannot_tell": [CANNOT_TELL],
}


@pytest.mark.parametrize(
    ("calls", "report", "wrong_count"),
    [
        (CALLS, {}, 0),
        (CALLS, {"changes": [LOOK_CHANGE]}, 1),
        (CALLS, {"changes": [LOOK_CHANGE, make_change(PAY, "allow", "deny")]}, 2),
        (CALLS, {"changes": [LOOK_CHANGE, make_change(PAY, "allow", "ask", calls=2)]}, 1),
        (CALLS, {"changes": [LOOK_CHANGE, PAY_CHANGE, make_change(DENIED, "deny", "allow")]}, 1),
        (CALLS, {"cannot_tell": []}, 1),
        (CALLS, {"calls": 3}, 1),
        (CALLS, {"unrecorded": 1}, 1),
        ([LOOK, PAY, replace(DENIED, decision="allow"), SEND], {}, 1),
    ],
)
def test_a_backtest_is_judged_by_plain_python(calls: list[MadeCall], report: dict[str, Any], wrong_count: int) -> None:
    assert judge_backtest(calls, {**REPORT, **report}, 1.0).wrong_count == wrong_count


@pytest.mark.parametrize(
    ("status", "slug", "is_wrong"),
    [(403, "policy-failed", False), (403, "permission-denied", True), (200, "policy-failed", True)],
)
def test_a_rule_that_fails_denies_and_says_so(status: int, slug: str, is_wrong: bool) -> None:
    body = f'{{"error": {{"slug": "{slug}"}}}}'.encode()
    assert is_let_through(HttpResponse(status=status, headers={}, body=body)) is is_wrong


def test_a_slice_without_some_rules_differs_from_the_whole_set() -> None:
    policies = large_rule_set.compile_rules(26)
    contracts = [large_rule_set.build_contract(number) for number in range(26)]
    questions = large_rule_set.build_questions(60, contracts, random.Random(5))
    assert large_rule_set.count_differences(policies, SliceIndex(policies.rules), questions) == 0
    assert large_rule_set.count_differences(policies, large_rule_set.IncompleteSlices(policies.rules), questions) > 0
