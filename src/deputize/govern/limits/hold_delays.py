"""Compute when a run that a limit holds back is tried again: seldom, where many are held by the same limit."""

import random
from typing import Final

from deputize.core.bounded_dict import BoundedDict
from deputize.core.clock import Clock

_MIN_SECONDS, _MAX_SECONDS = 0.25, 30.0
# How much each run that was held in the last second adds to the delay.
_SECONDS_PER_HELD_RUN: Final = 0.2
_MAX_LIMITS: Final = 10_000


class HoldDelays:
    """How many runs each limit of each tenant held back in this second and the one before, in this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: BoundedDict[tuple[str, str], tuple[int, int, int]] = BoundedDict(_MAX_LIMITS)

    def compute_seconds(self, tenant: str, rule: str, retry_after_ms: int | None) -> float:
        """Count a held run and compute its delay, spread so that those held together do not come back together."""
        held_count = self._count_run(tenant, rule)
        seconds = max((retry_after_ms or 0) / 1000, _MIN_SECONDS, held_count * _SECONDS_PER_HELD_RUN)
        return min(seconds, _MAX_SECONDS) * random.uniform(1.0, 1.5)

    def _count_run(self, tenant: str, rule: str) -> int:
        now = int(self._clock.monotonic())
        second, current, previous = self._counts.get((tenant, rule)) or (now, 0, 0)
        if second != now:
            current, previous = 0, current if second == now - 1 else 0
        self._counts.put((tenant, rule), (now, current + 1, previous))
        return max(current + 1, previous)
