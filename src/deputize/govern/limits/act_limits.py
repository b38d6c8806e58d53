"""Limit administrative acts: how many a tenant performs in a second, and one at a time in each process.

An act closes its tenant's barrier, writes, and makes every gateway load the tenant's authority again. A tenant that
performs them without pause would use up the processor and the connections of all.

One user takes at most half. Acts by which operators take authority away, such as revocations and kill switches, have a
rate and turns of their own: no one else's acts delay them.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from math import ceil
from typing import Final

from deputize.core.bounded_dict import BoundedDict
from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.errors import RateLimited
from deputize.core.settings.limits import LimitSettings

# Name of the limit in refusals and metrics; a rule of the settings cannot have it.
ADMIN_ACTS: Final = "default:admin-acts"
_MAX_BUCKETS: Final = 20_000
_Key = tuple[object, ...]


class ActLimits:
    """Token buckets of each tenant and of its users, and a lock for each tenant that is performing an act."""

    def __init__(self, settings: LimitSettings, clock: Clock, *, on_refusal: Callable[[str], None]) -> None:
        self._clock = clock
        self._on_refusal = on_refusal
        self._per_second = settings.admin_acts_per_second
        self._burst = settings.admin_acts_at_once
        # The acts left, and when that was computed.
        self._buckets: BoundedDict[_Key, tuple[float, float]] = BoundedDict(_MAX_BUCKETS)
        self._locks: dict[_Key, tuple[asyncio.Lock, int]] = {}

    def count_act(self, caller: Caller, *, is_tightening: bool) -> None:
        """Count an act that its caller may perform; raise `RateLimited` if they or their tenant used up the rate."""
        pool = _get_pool(caller, is_tightening)
        # All agents of a user count as one, whatever they are called, and apart from the user.
        user = (*pool, caller.issuer, caller.user, bool(caller.agents))
        limits = (
            ("this user", user, self._per_second / 2, max(self._burst // 2, 1)),
            ("this tenant", pool, self._per_second, self._burst),
        )
        now = self._clock.monotonic()
        rest = [(key, self._count_left(key, now, per_second, burst)) for _, key, per_second, burst in limits]
        for (whose, _, per_second, burst), (_, left) in zip(limits, rest, strict=True):
            if left < 1:
                self._on_refusal(ADMIN_ACTS)
                raise RateLimited(
                    f"{whose} performed too many administrative acts: at most {per_second:g} in a second, and "
                    f"{burst} at once",
                    details={"rule": ADMIN_ACTS, "limit": per_second, "burst": burst},
                    retry_after_ms=max(ceil((1 - left) / per_second * 1000), 1),
                    nothing_happened=True,
                )
        for key, left in rest:
            self._buckets.put(key, (left - 1, now))

    def _count_left(self, key: _Key, now: float, per_second: float, burst: int) -> float:
        left, at = self._buckets.get(key) or (float(burst), now)
        return min(left + (now - at) * per_second, float(burst))

    def take_turn(self, caller: Caller, *, is_tightening: bool) -> AbstractAsyncContextManager[None]:
        """Wait for the turn of this act among those of its tenant, before it takes a connection."""
        return _Turn(self._locks, _get_pool(caller, is_tightening))


def _get_pool(caller: Caller, is_tightening: bool) -> _Key:
    """Return what the act is counted in, and takes its turn in: operators that tighten have a pool of their own."""
    return caller.tenant, is_tightening and caller.can_operate and not caller.is_limited


class _Turn:
    """A pool's lock while acts hold it or wait for it."""

    def __init__(self, locks: dict[_Key, tuple[asyncio.Lock, int]], pool: _Key) -> None:
        self._locks, self._pool = locks, pool

    async def __aenter__(self) -> None:
        lock, turn_count = self._locks.get(self._pool) or (asyncio.Lock(), 0)
        self._locks[self._pool] = lock, turn_count + 1
        try:
            await lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._locks[self._pool][0].release()
        self._leave()

    def _leave(self) -> None:
        lock, turn_count = self._locks[self._pool]
        if turn_count == 1:
            del self._locks[self._pool]
        else:
            self._locks[self._pool] = lock, turn_count - 1
