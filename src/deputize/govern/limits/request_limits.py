"""Limit what callers can request beside calls: approvals, exchanges, negotiations and backtests. On by default.

Counted with the counters of the limit rules, so that all gateways count together if they share Redis. While those are
unreachable, this process counts alone: a lost counter neither stops everybody nor opens the gate.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Final

import structlog

from deputize.core.bounded_dict import BoundedDict
from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.errors import ConcurrencyLimitReached, Problem, RateLimited
from deputize.core.settings.limits import LimitSettings
from deputize.store.counters.in_process import InProcessCounters
from deputize.store.counters.port import (
    CounterRequest,
    Counters,
    CountersUnavailable,
    Slot,
    SlotRelease,
    TakeResult,
    Window,
)

# Names of the limits in refusals and metrics; a rule of the settings cannot have them.
APPROVAL_REQUESTS: Final = "default:approval-requests"
TOKEN_EXCHANGES: Final = "default:token-exchanges"
NEGOTIATIONS: Final = "default:negotiations"
NEGOTIATIONS_PER_MINUTE: Final = 30
FAILED_EXCHANGES: Final = "default:failed-exchanges"
BACKTESTS: Final = "default:backtests"
# Backtests that this process runs at once for all tenants. A tenant's second one leaves half of them to others.
MAX_BACKTESTS: Final = 8
_HOUR_SECONDS: Final = 3600.0
_MINUTE_SECONDS: Final = 60.0
# A slot whose process died is free again after this time.
_BACKTEST_SECONDS: Final = 600.0
_SLOT_RETRY_MS: Final = 1000
# An attacker can use many addresses; the oldest are forgotten then.
_MAX_ADDRESSES: Final = 10_000
log = structlog.get_logger(__name__)


class RequestLimits:
    def __init__(
        self, settings: LimitSettings, counters: Counters, clock: Clock, *, on_refusal: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._clock = clock
        self._on_refusal = on_refusal
        self._own_counters = InProcessCounters(clock)
        self._backtests: Counter[str] = Counter()
        # When the window of an address began, and its failures since.
        self._failures: BoundedDict[str, tuple[float, int]] = BoundedDict(_MAX_ADDRESSES)

    async def count_approval_request(self, caller: Caller) -> None:
        """Count an approval request that a user or one of their agents opens; raise `RateLimited` beyond the limit."""
        limit = self._settings.approval_requests_per_hour
        await self._count(caller, APPROVAL_REQUESTS, "approval requests", limit, _HOUR_SECONDS)

    async def count_exchange(self, caller: Caller) -> None:
        """Count a token exchange of a user or one of their agents; raise `RateLimited` beyond the limit."""
        limit = self._settings.token_exchanges_per_minute
        await self._count(caller, TOKEN_EXCHANGES, "token exchanges", limit, _MINUTE_SECONDS)

    async def count_negotiation(self, caller: Caller) -> None:
        """Count a negotiation of a user or one of their agents; raise `RateLimited` beyond the limit."""
        await self._count(caller, NEGOTIATIONS, "negotiations", NEGOTIATIONS_PER_MINUTE, _MINUTE_SECONDS)

    @asynccontextmanager
    async def hold_backtest(self, caller: Caller) -> AsyncIterator[None]:
        """Hold one of the tenant's backtests while the block runs; raise `ConcurrencyLimitReached` if none is free."""
        limit, holder = self._settings.backtests_at_once, self._clock.new_id()
        running, own = self._backtests.total(), self._backtests[caller.tenant]
        if running >= (MAX_BACKTESTS // 2 if own else MAX_BACKTESTS):
            sentence = f"this gateway runs {running} backtests already, too many for one more of this tenant"
            raise self._refuse_backtest(sentence, MAX_BACKTESTS, running)
        slot = Slot(key=_build_key(caller.tenant, BACKTESTS), limit=limit, seconds=_BACKTEST_SECONDS, holder=holder)
        self._backtests[caller.tenant] += 1
        try:
            counters, result = await self._take(slot)
            if result.refused_index is not None:
                sentence = f"this tenant runs {limit} backtests already, as many as limits.backtests_at_once allows"
                raise self._refuse_backtest(sentence, limit, result.usage)
            try:
                yield
            finally:
                await _release(counters, SlotRelease(key=slot.key, holder=holder))
        finally:
            self._backtests -= Counter((caller.tenant,))

    def _refuse_backtest(self, sentence: str, limit: int, used: int) -> ConcurrencyLimitReached:
        self._on_refusal(BACKTESTS)
        return ConcurrencyLimitReached(
            f"{sentence}; try again once one has ended",
            details={"rule": BACKTESTS, "kind": "concurrency", "limit": limit, "used": used},
            retry_after_ms=_SLOT_RETRY_MS,
            nothing_happened=True,
        )

    def count_failure(self, address: str, problem: Problem) -> None:
        """Count an exchange whose token was not accepted; beyond the limit, refuse it without its reason.

        Only failures are refused. Many clients may have one address, and anybody can fail: a token that is accepted is
        exchanged whatever others at its address do.
        """
        now, limit = self._clock.monotonic(), self._settings.failed_exchanges_per_minute
        started_at, failures = self._failures.get(address) or (now, 0)
        if now - started_at >= _MINUTE_SECONDS:
            started_at, failures = now, 0
        if failures < limit:
            self._failures.put(address, (started_at, failures + 1))
            return
        self._on_refusal(FAILED_EXCHANGES)
        raise RateLimited(
            f"the token is not accepted, and {limit} token exchanges from this address failed within a minute",
            details={"rule": FAILED_EXCHANGES, "kind": "rate", "limit": limit, "seconds": _MINUTE_SECONDS},
            advice="Wait to learn why, or send another token: one that is accepted is exchanged at once.",
            retry_after_ms=max(int((started_at + _MINUTE_SECONDS - now) * 1000), 1),
            nothing_happened=True,
        ) from problem

    async def _count(self, caller: Caller, name: str, what: str, limit: int, seconds: float) -> None:
        # Per user, whichever agent acts: the holder of a token chooses the names of agents.
        window = Window(key=_build_key(caller.tenant, name, caller.issuer, caller.user), limit=limit, seconds=seconds)
        _, result = await self._take(window)
        if result.refused_index is None:
            return
        self._on_refusal(name)
        raise RateLimited(
            f"limit {name} allows at most {limit} {what} in {seconds:g} s, counted per user",
            details={"rule": name, "kind": "rate", "limit": limit, "used": result.usage, "seconds": seconds},
            retry_after_ms=result.retry_after_ms,
            nothing_happened=True,
        )

    async def _take(self, request: CounterRequest) -> tuple[Counters, TakeResult]:
        try:
            answer = self._counters.take([request])
            return self._counters, answer if isinstance(answer, TakeResult) else await answer
        except CountersUnavailable as error:
            log.warning("request_limit_counted_alone", reason=str(error))
            return self._own_counters, self._own_counters.take([request])


async def _release(counters: Counters, release: SlotRelease) -> None:
    try:
        answer = counters.apply_updates([release])
        if answer is not None:
            await answer
    except CountersUnavailable as error:
        # It expires by itself.
        log.warning("request_limit_not_released", reason=str(error))


def _build_key(tenant: str, name: str, *parts: str) -> str:
    """Build a counter's key, without readable names; the braces keep a tenant on one node of a Redis cluster."""
    digest = blake2b(repr(parts).encode(), digest_size=16).hexdigest()
    return f"deputize:{{{tenant}}}:{name}:{digest}"
