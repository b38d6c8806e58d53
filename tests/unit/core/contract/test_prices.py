"""What a call costs comes from what it used and what its contract declares."""

from typing import Any

import pytest
from pydantic import ValidationError

from deputize.core.contract.contract import Contract
from deputize.core.contract.prices import CallUsage, CostComponent, Prices, compute_costs, limit_amount
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("OBS-4")
_USAGE = CallUsage(0.5, 4.0, 3_000_000_000, 2_000_000_000, 5_000_000)


@pytest.mark.parametrize(
    ("price", "component", "cost"),
    [
        ({"per_compute_second": 0.25}, CostComponent.COMPUTE, 1.0),
        ({"per_storage_gigabyte": 2.0}, CostComponent.STORAGE_IO, 6.0),
        ({"per_network_gigabyte": 0.5}, CostComponent.NETWORK, 1.0),
        ({"per_million_tokens": 3.0}, CostComponent.TOKEN, 15.0),
        # A review is no part of the call: it is counted when a person decides.
        ({"per_review": 9.0}, CostComponent.HUMAN_REVIEW, None),
    ],
)
def test_each_price_adds_to_its_component(
    price: dict[str, float], component: CostComponent, cost: float | None
) -> None:
    expected = {CostComponent.EXTERNAL_API: 0.5} | ({} if cost is None else {component: cost})
    assert compute_costs("api", Prices(currency="EUR", **price), _USAGE) == expected


@pytest.mark.parametrize(
    ("category", "component"),
    [("compute", CostComponent.COMPUTE), ("api", CostComponent.EXTERNAL_API), ("tokens", CostComponent.TOKEN)],
)
def test_the_fixed_cost_belongs_to_the_declared_category(category: str, component: CostComponent) -> None:
    assert compute_costs(category, None, _USAGE) == {component: 0.5}
    assert compute_costs(category, None, CallUsage(0.0, 9.0)) == {}


def test_a_component_that_is_fixed_and_measured_is_the_sum() -> None:
    prices = Prices(currency="EUR", per_compute_second=0.25)
    assert compute_costs("compute", prices, _USAGE) == {CostComponent.COMPUTE: 1.5}


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"currency": "euro"}, {"currency": "eur"}, {"currency": "EUR", "per_review": -1},
        {"currency": "EUR", "per_review": float("inf")}, {"currency": "EUR", "per_hour": 1},
    ],
)  # fmt: skip
def test_prices_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Prices.model_validate(wrong)


def test_contracts_without_prices_keep_their_digest() -> None:
    contract = make_contract(observability={"cost_per_call": 1.0})
    assert "prices" not in contract.model_dump(mode="json")["observability"]
    assert contract.observability.currency == ""
    priced = make_contract(observability={"prices": {"currency": "EUR", "per_review": 2}})
    document = priced.model_dump(mode="json")
    assert document["observability"]["prices"] == {"currency": "EUR", "per_review": 2}
    assert Contract.model_validate(document) == priced


@pytest.mark.parametrize(("amount", "limited"), [(-1.0, 0.0), (3.5, 3.5), (float("inf"), 1e15), (2**80, 1e15)])
def test_what_a_tool_reports_can_be_added_up(amount: float, limited: float) -> None:
    assert limit_amount(amount) == limited
