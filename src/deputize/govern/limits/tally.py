"""What callers' sessions have cost, as far as this process has seen: for policies that ask, not for anybody's books."""

from typing import Final

from deputize.core.caller import Caller


class Tally:
    """Costs by caller and session; the one that was added to longest ago is forgotten first."""

    MOST: Final = 10_000

    def __init__(self) -> None:
        self._costs: dict[tuple[object, ...], int] = {}

    def of(self, caller: Caller, session: str | None) -> int:
        return self._costs.get((caller.tenant, session, *caller.lent_to), 0) if self._costs else 0

    def add(self, caller: Caller, session: str | None, cost: int) -> None:
        key = (caller.tenant, session, *caller.lent_to)
        # Beyond this a number is no longer exact, and no record could hold it.
        total = min(self._costs.pop(key, 0) + cost, 2**53 - 1)
        if len(self._costs) >= self.MOST:
            del self._costs[next(iter(self._costs))]
        self._costs[key] = total
