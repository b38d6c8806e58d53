"""Estimate what calls of a tool cost whose contract declares no price, so that budgets also hold for calls at once.

The estimate is what calls of the tool reported last, in this process. A declared price is never replaced.
"""

from typing import Final

from deputize.core.bounded_dict import BoundedDict
from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract
from deputize.govern.limits.rules import to_micros

_MAX_TOOLS: Final = 10_000
# The first run of a tool is waited for this long; a longer one does not stop the others.
_FIRST_RUN_SECONDS: Final = 60.0

ToolKey = tuple[str, str]


class CostEstimates:
    """The last reported costs by tenant and tool, and which of these tools are being executed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_costs: BoundedDict[ToolKey, int] = BoundedDict(_MAX_TOOLS)
        self._active_counts: dict[ToolKey, int] = {}
        self._first_starts: dict[ToolKey, float] = {}

    def estimate(self, tenant: str, contract: Contract) -> int:
        """Return what a call probably costs, in millionths."""
        return get_declared_cost(contract) or self._last_costs.get((tenant, contract.full_name)) or 0

    def is_active(self, tenant: str, contract: Contract) -> bool:
        """Tell whether another call of the tool is being executed in this process."""
        return (tenant, contract.full_name) in self._active_counts

    def should_wait_for_first(self, tenant: str, contract: Contract) -> bool:
        """Tell whether the cost of a tool is unknown, and a call that is being executed will soon show it."""
        key = tenant, contract.full_name
        if get_declared_cost(contract) or self._last_costs.get(key) is not None or key not in self._active_counts:
            return False
        return self._clock.monotonic() - self._first_starts[key] < _FIRST_RUN_SECONDS

    def begin_call(self, tenant: str, contract: Contract) -> None:
        key = tenant, contract.full_name
        self._active_counts[key] = self._active_counts.get(key, 0) + 1
        self._first_starts.setdefault(key, self._clock.monotonic())

    def end_call(self, tenant: str, contract: Contract, reported_cost: int | None) -> None:
        """Count a call as ended, with the cost its result reported; None if it has no result to learn from.

        A cheaper call lowers the estimate only by a tenth, because the next one may be as dear as the last.
        """
        key = tenant, contract.full_name
        if self._active_counts[key] == 1:
            del self._active_counts[key], self._first_starts[key]
        else:
            self._active_counts[key] -= 1
        if reported_cost is not None:
            self._last_costs.put(key, max(reported_cost, (self._last_costs.get(key) or 0) * 9 // 10))


def get_declared_cost(contract: Contract) -> int:
    """Return the cost that the contract declares, in millionths."""
    return to_micros(contract.observability.cost_per_call)
