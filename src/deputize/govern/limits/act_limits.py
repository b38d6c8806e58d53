"""Limit administrative acts: how many a tenant performs in a second, and one at a time in each process.

An act closes its tenant's barrier, writes, and makes every gateway load the tenant's authority again. A tenant that
performs them without pause would use up the processor and the connections of all.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from math import ceil
from typing import Final

from deputize.core.bounded_dict import BoundedDict
from deputize.core.clock import Clock
from deputize.core.errors import RateLimited
from deputize.core.settings.limits import LimitSettings

# Name of the limit in refusals and metrics; a rule of the settings cannot have it.
ADMIN_ACTS: Final = "default:admin-acts"
_MAX_TENANTS: Final = 10_000


class ActLimits:
    """A token bucket per tenant, and a lock for each tenant that is performing an act."""

    def __init__(self, settings: LimitSettings, clock: Clock, *, on_refusal: Callable[[str], None]) -> None:
        self._clock = clock
        self._on_refusal = on_refusal
        self._per_second = settings.admin_acts_per_second
        self._burst = settings.admin_acts_at_once
        # The acts left, and when that was computed.
        self._buckets: BoundedDict[str, tuple[float, float]] = BoundedDict(_MAX_TENANTS)
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def count_act(self, tenant: str) -> None:
        """Count an act; raise `RateLimited` if the tenant has used up its rate."""
        now = self._clock.monotonic()
        left, at = self._buckets.get(tenant) or (float(self._burst), now)
        left = min(left + (now - at) * self._per_second, float(self._burst))
        if left < 1:
            self._on_refusal(ADMIN_ACTS)
            raise RateLimited(
                f"this tenant performed too many administrative acts: at most {self._per_second:g} in a second, and "
                f"{self._burst} at once",
                details={"rule": ADMIN_ACTS, "limit": self._per_second, "burst": self._burst},
                retry_after_ms=max(ceil((1 - left) / self._per_second * 1000), 1),
                nothing_happened=True,
            )
        self._buckets.put(tenant, (left - 1, now))

    def take_turn(self, tenant: str) -> AbstractAsyncContextManager[None]:
        """Wait for the turn of this act among those of its tenant, before it takes a connection."""
        return _Turn(self._locks, tenant)


class _Turn:
    """A tenant's lock while acts hold it or wait for it."""

    def __init__(self, locks: dict[str, tuple[asyncio.Lock, int]], tenant: str) -> None:
        self._locks, self._tenant = locks, tenant

    async def __aenter__(self) -> None:
        lock, turn_count = self._locks.get(self._tenant) or (asyncio.Lock(), 0)
        self._locks[self._tenant] = lock, turn_count + 1
        try:
            await lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._locks[self._tenant][0].release()
        self._leave()

    def _leave(self) -> None:
        lock, turn_count = self._locks[self._tenant]
        if turn_count == 1:
            del self._locks[self._tenant]
        else:
            self._locks[self._tenant] = lock, turn_count - 1
