"""Costs are added up by what they are for, and callers make no more rows than there is room for."""

import pytest

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.contract.prices import CallUsage, CostComponent
from deputize.evidence import call_costs
from deputize.evidence.call_costs import CallCosts, CostKey
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("OBS-4")
_PRICED = make_contract(observability={"cost_per_call": 1.0, "prices": {"currency": "EUR", "per_review": 4.0}})


def _make_caller(user: str = "ana", tenant: str = "dev", task: str | None = None) -> Caller:
    return Caller(tenant=tenant, user=user, task=task, pseudonyms=(f"p-{user}",))


def test_calls_of_one_key_are_one_row() -> None:
    costs = CallCosts(Clock())
    for task in (None, "t-1", "t-1"):
        costs.record_call(_make_caller(task=task), _PRICED, CallUsage(1.0, 0.5, 10, 20, 30))
    assert costs.record_review(_make_caller(task="t-1"), _PRICED, 60.0) == 4.0
    costs._count_calls()
    key = CostKey("dev", "crm.get_user", "1.0.0", ("p-ana",), "t-1", "EUR")
    assert set(costs._totals_by_key) == {key, key._replace(task="")}
    totals = costs._totals_by_key[key]
    assert (totals.calls, totals.seconds, totals.storage_bytes, totals.network_bytes) == (2, 1.0, 20, 40)
    assert (totals.tokens, totals.reviews, totals.review_seconds) == (60, 1, 60.0)
    assert totals.costs[CostComponent.COMPUTE] == 2.0
    assert totals.costs[CostComponent.HUMAN_REVIEW] == 4.0


def test_callers_beyond_the_limit_are_counted_for_the_tool_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_costs, "_MAX_TENANT_ROWS", 2)
    costs = CallCosts(Clock())
    for number in range(5):
        costs.record_call(_make_caller(f"u{number}"), _PRICED, CallUsage(1.0))
    costs.record_call(_make_caller("u0", tenant="far"), _PRICED, CallUsage(1.0))
    costs._count_calls()
    calls = {(key.tenant, key.caller): totals.calls for key, totals in costs._totals_by_key.items()}
    assert calls == {
        ("dev", ("p-u0",)): 1, ("dev", ("p-u1",)): 1, ("dev", ()): 3, ("far", ("p-u0",)): 1,
    }  # fmt: skip


def test_rows_that_were_stored_count_until_the_day_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_costs, "_MAX_TENANT_ROWS", 1)
    costs = CallCosts(Clock())
    costs.record_call(_make_caller("u0"), _PRICED, CallUsage(1.0))
    costs._count_calls()
    costs._totals_by_key.clear()
    for user in ("u1", "u0"):
        costs.record_call(_make_caller(user), _PRICED, CallUsage(1.0))
    costs._count_calls()
    assert {key.caller for key in costs._totals_by_key} == {(), ("p-u0",)}
    costs._totals_by_key.clear()
    costs._start_day(costs._day.replace(year=costs._day.year + 1))
    costs.record_call(_make_caller("u1"), _PRICED, CallUsage(1.0))
    costs._count_calls()
    assert {key.caller for key in costs._totals_by_key} == {("p-u1",)}


def test_far_too_many_tools_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_costs, "_MAX_TENANT_ROWS", 1)
    costs = CallCosts(Clock())
    for number in range(5):
        costs.record_call(_make_caller(), make_contract(version=f"{number}.0.0"), CallUsage(1.0))
    costs._count_calls()
    assert len(costs._totals_by_key) == 2


def test_one_call_cannot_spoil_the_sums() -> None:
    costs = CallCosts(Clock())
    costs.record_call(_make_caller(), _PRICED, CallUsage(float("inf"), 1.0, 2**90, 2**90, 2**90))
    costs._count_calls()
    [totals] = costs._totals_by_key.values()
    assert all(number <= 1e15 for number in totals.list_columns())
