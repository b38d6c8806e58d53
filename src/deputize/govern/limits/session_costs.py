"""Sum the cost of callers' sessions in this process: an input for policies, not a ledger."""

from typing import Final

from deputize.core.caller import Caller


class SessionCosts:
    """Costs by caller and session; the least recently updated is evicted first."""

    MAX_SESSIONS: Final = 10_000

    def __init__(self) -> None:
        self._costs: dict[tuple[object, ...], int] = {}

    def get_cost(self, caller: Caller, session: str | None) -> int:
        return self._costs.get((caller.tenant, session, *caller.delegation_origin), 0) if self._costs else 0

    def add_cost(self, caller: Caller, session: str | None, cost: int) -> None:
        key = (caller.tenant, session, *caller.delegation_origin)
        # The largest integer that JSON numbers, and so decision records, represent exactly.
        total = min(self._costs.pop(key, 0) + cost, 2**53 - 1)
        if len(self._costs) >= self.MAX_SESSIONS:
            del self._costs[next(iter(self._costs))]
        self._costs[key] = total
