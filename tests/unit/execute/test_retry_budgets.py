"""Retries of a service never exceed their share of its calls, and what is saved up is little."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.execute.retry_budgets import RetryBudget, RetryBudgets
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("INV-12")
SHARE = 0.2


def _take_all(budget: RetryBudget, now: float) -> int:
    count = 0
    while budget.take_retry(now):
        count += 1
    return count


def test_a_service_has_ten_retries_at_first_and_then_one_for_every_five_calls() -> None:
    budget = RetryBudget(SHARE, now=0.0)
    assert _take_all(budget, 0.0) == 10
    for _ in range(26):
        budget.count_call()
    assert _take_all(budget, 0.0) == 5


def test_time_gives_one_each_second_and_saves_no_more_than_ten() -> None:
    budget = RetryBudget(SHARE, now=0.0)
    _take_all(budget, 0.0)
    assert _take_all(budget, 3.0) == 3
    assert _take_all(budget, 1000.0) == 10
    for _ in range(1000):
        budget.count_call()
    assert _take_all(budget, 1000.0) == 10


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    budget = RetryBudget(SHARE, now=100.0)
    _take_all(budget, 100.0)
    assert (_take_all(budget, 100.0), _take_all(budget, 50.0), _take_all(budget, 101.0)) == (0, 0, 1)


@given(st.floats(0, 2), st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=200))
def test_in_any_time_retries_are_at_most_ten_and_one_a_second_and_their_share_of_calls(
    share: float, events: list[tuple[float, bool]]
) -> None:
    budget, now = RetryBudget(share, now=0.0), 0.0
    # The time, the calls and the retries so far, after each event.
    sums = [(0.0, 0, 0)]
    for pause, is_call in events:
        now += pause
        _, calls, retries = sums[-1]
        if is_call:
            budget.count_call()
            sums.append((now, calls + 1, retries))
        else:
            sums.append((now, calls, retries + budget.take_retry(now)))
    for number, (start, calls_before, retries_before) in enumerate(sums):
        for end, calls, retries in sums[number:]:
            assert retries - retries_before <= 10 + (end - start) + share * (calls - calls_before) + 1e-6


def test_tenants_and_services_have_budgets_of_their_own() -> None:
    budgets = RetryBudgets(lambda: 0.0, retry_share=SHARE)
    shop, mail = make_contract(external_service="shop"), make_contract(external_service="mail")
    budget = budgets.find_budget("acme", shop)
    assert budget is not None
    assert _take_all(budget, 0.0) == 10
    assert budgets.find_budget("acme", shop) is budget
    for other in (budgets.find_budget("globex", shop), budgets.find_budget("acme", mail)):
        assert other is not None
        assert _take_all(other, 0.0) == 10
    assert budgets.find_budget("acme", make_contract()) is None


def test_memory_is_bounded_whatever_services_a_tenant_names() -> None:
    budgets = RetryBudgets(lambda: 0.0, retry_share=SHARE)
    found = [budgets.find_budget("acme", make_contract(external_service=f"s{number}")) for number in range(1100)]
    assert len({id(each) for each in found}) == 1001
    other = budgets.find_budget("globex", make_contract(external_service="s0"))
    assert id(other) not in {id(each) for each in found}


def test_what_is_idle_is_dropped_and_what_was_spent_is_not() -> None:
    times = [0.0]
    budgets = RetryBudgets(lambda: times[0], retry_share=SHARE)
    busy, idle = make_contract(external_service="busy"), make_contract(external_service="idle")
    budget, idle_budget = budgets.find_budget("acme", busy), budgets.find_budget("acme", idle)
    assert budget is not None
    _take_all(budget, 0.0)
    budgets.drop_idle_budgets()
    assert budgets.find_budget("acme", busy) is budget
    assert budgets.find_budget("acme", idle) is not idle_budget
    times[0] = 10.0
    budgets.drop_idle_budgets()
    assert budgets.find_budget("acme", busy) is not budget
