"""Sum the cost of callers' sessions in this process: an input for policies, not a ledger.

Each tenant has a bounded memory of its own. When it is full, the oldest session moves to a sketch, which for a day at
least knows no less than what the session cost: a rule may then be too strict, never too lenient.
"""

from array import array
from collections.abc import Iterator
from typing import Final

from deputize.core.caller import Caller
from deputize.core.clock import Clock

# Of one tenant.
MAX_SESSIONS: Final = 10_000
# The largest integer that JSON numbers, and so decision records, represent exactly.
_MAX_COST: Final = 2**53 - 1
_SKETCH_SECONDS: Final = 86_400.0
_SKETCH_ROWS: Final = 3
_PLACE_BITS: Final = 16

_Session = tuple[str | None, ...]


class SessionCosts:
    """Costs by caller and session."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tenants: dict[str, _TenantCosts] = {}

    def get_cost(self, caller: Caller, session: str | None) -> int:
        costs = self._tenants.get(caller.tenant)
        return 0 if costs is None else costs.get_cost((session, *caller.delegation_origin))

    def add_cost(self, caller: Caller, session: str | None, cost: int) -> None:
        costs = self._tenants.setdefault(caller.tenant, _TenantCosts())
        costs.add_cost((session, *caller.delegation_origin), cost, self._clock.monotonic())


class _TenantCosts:
    """The costs of one tenant's sessions; the least recently updated come first."""

    def __init__(self) -> None:
        self._costs: dict[_Session, int] = {}
        # Today's and yesterday's, if there were so many sessions.
        self._sketches: list[_CostSketch] = []
        self._sketched_at = 0.0

    def get_cost(self, session: _Session) -> int:
        cost = self._costs.get(session)
        return max((each.get_cost(session) for each in self._sketches), default=0) if cost is None else cost

    def add_cost(self, session: _Session, cost: int, now: float) -> None:
        total = min(self.get_cost(session) + cost, _MAX_COST)
        self._costs.pop(session, None)
        if len(self._costs) >= MAX_SESSIONS:
            self._sketch_oldest(now)
        self._costs[session] = total

    def _sketch_oldest(self, now: float) -> None:
        if not self._sketches or now - self._sketched_at >= _SKETCH_SECONDS:
            self._sketches, self._sketched_at = [_CostSketch(), *self._sketches[:1]], now
        oldest = next(iter(self._costs))
        self._sketches[0].put_cost(oldest, self._costs.pop(oldest))


class _CostSketch:
    """Costs of any number of sessions in 1.5 MB: an upper bound of each (a count-min sketch).

    Each row has one place for a session, which others may share and only raise; the lowest place is the closest.
    """

    def __init__(self) -> None:
        self._rows = [array("q", bytes(8 << _PLACE_BITS)) for _ in range(_SKETCH_ROWS)]

    def get_cost(self, session: _Session) -> int:
        return min(row[place] for row, place in self._find_places(session))

    def put_cost(self, session: _Session, cost: int) -> None:
        for row, place in self._find_places(session):
            row[place] = max(row[place], cost)

    def _find_places(self, session: _Session) -> Iterator[tuple["array[int]", int]]:
        # Python's hashes of texts have a secret seed, so nobody can choose whom they share a place with.
        digest = hash(session)
        for number, row in enumerate(self._rows):
            yield row, digest >> (number * _PLACE_BITS) & (1 << _PLACE_BITS) - 1
