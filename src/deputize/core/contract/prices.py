"""Declare the prices of what calls use, and compute what a call costs, by component."""

from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from pydantic import Field, StringConstraints

from deputize.core.contract.parts import SparsePart

_GIGABYTE: Final = 1_000_000_000
_MILLION: Final = 1_000_000
# What one call can use or cost at most in a report, so that sums stay numbers whatever a tool reports.
_MAX_AMOUNT: Final = 1e15

Price = Annotated[float, Field(ge=0, le=1_000_000_000)]
Currency = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]


class CostComponent(StrEnum):
    """What the cost of a call consists of."""

    COMPUTE = "compute"
    EXTERNAL_API = "external_api"
    STORAGE_IO = "storage_io"
    NETWORK = "network"
    TOKEN = "token"
    HUMAN_REVIEW = "human_review"

    # Not that of members of an enumeration, which is a function of Python, called for each key of a dictionary.
    __hash__ = str.__hash__


# The component that the fixed cost of a call belongs to, by the category that its contract declares.
COMPONENT_BY_CATEGORY: Final = {
    "compute": CostComponent.COMPUTE,
    "api": CostComponent.EXTERNAL_API,
    "tokens": CostComponent.TOKEN,
}


class Prices(SparsePart):
    """The currency of a tool's costs, and what each unit costs that its calls use."""

    currency: Currency
    per_compute_second: Price | None = None
    per_storage_gigabyte: Price | None = None
    per_network_gigabyte: Price | None = None
    per_million_tokens: Price | None = None
    # Of each person's decision on an approval request.
    per_review: Price | None = None


class CallUsage(NamedTuple):
    """What was measured of one call, and its fixed cost: what its result reports, else what its contract declares."""

    fixed_cost: float
    seconds: float = 0.0
    storage_bytes: int = 0
    network_bytes: int = 0
    tokens: int = 0


def compute_costs(category: str, prices: Prices | None, usage: CallUsage) -> dict[CostComponent, float]:
    """Compute what a call costs by component; components that cost nothing are left out."""
    costs = {COMPONENT_BY_CATEGORY[category]: usage.fixed_cost} if usage.fixed_cost else {}
    if prices is None:
        return costs
    for component, price, quantity, unit in (
        (CostComponent.COMPUTE, prices.per_compute_second, usage.seconds, 1),
        (CostComponent.STORAGE_IO, prices.per_storage_gigabyte, usage.storage_bytes, _GIGABYTE),
        (CostComponent.NETWORK, prices.per_network_gigabyte, usage.network_bytes, _GIGABYTE),
        (CostComponent.TOKEN, prices.per_million_tokens, usage.tokens, _MILLION),
    ):
        if price and quantity:
            costs[component] = costs.get(component, 0.0) + price * quantity / unit
    return costs


def limit_amount(amount: float) -> float:
    """Limit an amount that a tool reports to what reports can add up."""
    return min(max(amount, 0.0), _MAX_AMOUNT)
