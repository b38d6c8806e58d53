"""The judge of the limits proof finds one planted fault of each category, in that category and in no other."""

from dataclasses import replace
from typing import Any

import pytest

from proofs.limits.experiment import BUDGET, REPEATS
from proofs.limits.judge import judge_rate, judge_redis_loss, judge_runaways
from proofs.limits.traffic import LimitCall
from tests.support.proof_bars import list_exact_bars, list_missed_bars

pytestmark = pytest.mark.nightly

# So many calls a second, evenly: their times are exact in binary, so that a window of a second ends where it should.
PER_SECOND = 256
ADMITTED = LimitCall(
    tool="look", sent_at=0.0, seconds=0.01, status=200, slug=None, rule=None, retry_after=None, warnings=(), cost=0.0
)
REFUSED = replace(ADMITTED, status=429, slug="rate-limited", rule="pace", retry_after="1")


def make_paced_calls(*, admitted_per_second: int = 100, count: int = 11 * PER_SECOND) -> list[LimitCall]:
    return [
        replace(ADMITTED if number % PER_SECOND < admitted_per_second else REFUSED, sent_at=number / PER_SECOND)
        for number in range(count)
    ]


def change_refusal(**changes: Any) -> list[LimitCall]:
    """Change one of the refusals."""
    calls = make_paced_calls()
    return [*calls[:-1], replace(calls[-1], **changes)]


@pytest.mark.parametrize(
    ("calls", "missed"),
    [
        (make_paced_calls(), set()),
        (make_paced_calls(admitted_per_second=103), {"admitted above allowed"}),
        (make_paced_calls(admitted_per_second=97), {"admitted of allowed"}),
        (make_paced_calls(count=8 * PER_SECOND), {"seconds"}),
        ([replace(ADMITTED, sent_at=number / 64) for number in range(11 * 64)], {"offered per second"}),
        (change_refusal(rule="strict"), {"refused unnamed"}),
        (change_refusal(retry_after=None), {"refused unnamed"}),
        (change_refusal(status=503, slug="unavailable"), {"refused unnamed"}),
    ],
)
def test_a_rate_is_judged_by_what_an_exact_counter_admits(calls: list[LimitCall], missed: set[str]) -> None:
    assert list_missed_bars("limits", judge_rate(calls)) == missed


COUNTED_AT, FROZEN_AT, KILLED_AT, COUNTED_AGAIN_AT = 0.5, 6.0, 10.0, 15.5
DENIED = replace(ADMITTED, tool="strict", status=503, slug="limits-unavailable", rule="strict", retry_after="1")
WARNED = replace(ADMITTED, tool="lenient", warnings=("limit lenient was not counted: Redis is unavailable",))
LOSS_CALLS = {
    "strict counted": replace(ADMITTED, tool="strict", sent_at=COUNTED_AT),
    "lenient counted": replace(ADMITTED, tool="lenient", sent_at=COUNTED_AGAIN_AT),
    "strict frozen": replace(DENIED, sent_at=FROZEN_AT),
    "lenient frozen": replace(WARNED, sent_at=FROZEN_AT),
    "strict killed": replace(DENIED, sent_at=KILLED_AT),
    "lenient killed": replace(WARNED, sent_at=KILLED_AT),
}
UNSETTLED = replace(ADMITTED, tool="strict", sent_at=4.0)


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({}, set()),
        ({"strict counted": {"status": 503}}, {"wrong while counted"}),
        ({"lenient counted": {"warnings": WARNED.warnings}}, {"wrong while counted"}),
        ({"strict frozen": {"slug": "unavailable"}}, {"wrong while frozen"}),
        ({"strict frozen": {"retry_after": None}}, {"wrong while frozen"}),
        ({"lenient frozen": {"warnings": ()}}, {"wrong while frozen"}),
        ({"lenient killed": {"status": 503}}, {"wrong while killed"}),
        ({"strict killed": {"rule": "lenient"}}, {"wrong while killed"}),
        ({"strict frozen": {"status": 200}}, {"wrong while frozen", "admitted against a rule that denies"}),
        ({"strict killed": {"seconds": 1.0}}, {"share that waited while lost"}),
    ],
)
def test_a_lost_redis_is_judged_by_what_each_rule_says(change: dict[str, dict[str, Any]], missed: set[str]) -> None:
    calls = [replace(call, **change.get(name, {})) for name, call in LOSS_CALLS.items()]
    assert list_missed_bars("limits", judge_redis_loss([*calls, UNSETTLED], 0.0)) == missed


LOOP = [ADMITTED] * REPEATS + [replace(REFUSED, slug="runaway", rule="loops")]
SPENT = [replace(ADMITTED, cost=BUDGET), replace(REFUSED, slug="budget-spent", rule="purse")]
SLOPE = [replace(ADMITTED, cost=5.0), replace(REFUSED, slug="runaway", rule="slope")]


@pytest.mark.parametrize(
    ("loop", "spent", "slope", "granted", "missed"),
    [
        (LOOP, SPENT, SLOPE, BUDGET, set()),
        ([*LOOP, ADMITTED], SPENT, SLOPE, BUDGET, {"loop admitted"}),
        (LOOP[1:], SPENT, SLOPE, BUDGET, {"loop admitted"}),
        (LOOP, [*SPENT, replace(ADMITTED, cost=0.01)], SLOPE, BUDGET, {"budget spent"}),
        (LOOP, SPENT, SLOPE, BUDGET + 1, {"budget leased"}),
        (LOOP, SPENT, [*SLOPE, replace(ADMITTED, cost=0.5)], BUDGET, {"cost when the slope was stopped"}),
        ([*LOOP, REFUSED], SPENT, SLOPE, BUDGET, {"refused in other words"}),
        (LOOP, [SPENT[0], LOOP[-1]], SLOPE, BUDGET, {"refused in other words"}),
        (LOOP, SPENT, [SLOPE[0], LOOP[-1]], BUDGET, {"refused in other words"}),
    ],
)
def test_runaways_are_judged_by_where_they_stop_and_what_they_are_told(
    loop: list[LimitCall], spent: list[LimitCall], slope: list[LimitCall], granted: float, missed: set[str]
) -> None:
    assert list_missed_bars("limits", judge_runaways(loop, spent, slope, granted)) == missed


def test_every_exact_bar_has_a_planted_fault() -> None:
    tests: list[Any] = [
        test_a_rate_is_judged_by_what_an_exact_counter_admits,
        test_a_lost_redis_is_judged_by_what_each_rule_says,
        test_runaways_are_judged_by_where_they_stop_and_what_they_are_told,
    ]
    planted = set().union(*(case[-1] for test in tests for case in test.pytestmark[0].args[1]))
    figures = judge_rate(make_paced_calls()) | judge_redis_loss([], 0.0) | judge_runaways(LOOP, SPENT, SLOPE, BUDGET)
    assert list_exact_bars("limits", among=figures) <= planted
