"""Keep calls to a service within the rate that its contract declares, and do not call one that asked for a pause.

Rates are counted where limits are: in Redis for all gateways together, or in each process. Pauses are kept in memory;
the background task that shares circuits shares them with all gateways (`operations/background/circuit_sync.py`).
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from deputize.core.contract.contract import Contract
from deputize.core.contract.reliability import ServiceLimits
from deputize.core.errors import LimitsUnavailable, Problem, UpstreamRateLimited
from deputize.execute.bulkheads import ServiceKey
from deputize.store.counters.port import Counters, CountersUnavailable, TakeResult, WeightCorrection, Window

MAX_PAUSE_SECONDS: Final = 3600.0
# Of all tenants; a pause that finds no place is not kept.
_MAX_PAUSES: Final = 10_000
_MIN_WAIT_SECONDS: Final = 0.01
_UNAVAILABLE_RETRY_MS: Final = 1000
# Who calls with a credential of their own may be limited alone, which must not stop the calls of others.
_SHARED_CREDENTIALS: Final = ("none", "vault", "client")


@dataclass(kw_only=True, slots=True)
class Turn:
    """A counted call to a service."""

    rates: "ServiceRates"
    window: Window
    at: int

    def give_back(self) -> None:
        """Subtract the call again: it did not reach the service."""
        window = self.window
        self.rates.correct_count(
            WeightCorrection(key=window.key, seconds=window.seconds, weight=-window.weight, at=self.at)
        )


class ServiceRates:
    """The rates and pauses of this process, by tenant and service."""

    def __init__(
        self,
        counters: Counters,
        monotonic: Callable[[], float],
        on_refusal: Callable[[str], None] = lambda service: None,
    ) -> None:
        """Count with these counters; `on_refusal` gets the name of each service whose call was refused."""
        self._counters = counters
        self._monotonic = monotonic
        self._on_refusal = on_refusal
        # When each pause ends; empty nearly always.
        self._pauses: dict[ServiceKey, float] = {}
        self._unshared_pauses: dict[ServiceKey, float] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        # Called when there is a pause to be shared.
        self.wake: Callable[[], None] = lambda: None

    def is_limited(self, contract: Contract) -> bool:
        """Tell whether a call may have to wait for its turn; nearly none has to."""
        limits = contract.service_limits
        return bool(self._pauses) or (limits is not None and limits.max_calls is not None)

    async def wait_for_turn(self, tenant: str, contract: Contract, seconds: float) -> Turn | None:
        """Wait until the service may be called, at most so long and what the contract allows, and count the call.

        Returns None if there is nothing to count. Raises `UpstreamRateLimited` at once if it would be too late.
        """
        limits = contract.service_limits or ServiceLimits()
        ends_at = self._monotonic() + min(seconds, limits.effective_wait_seconds)
        while True:
            turn = await self.request_turn(tenant, contract)
            if not isinstance(turn, Problem):
                return turn
            pause = max((turn.retry_after_ms or 0) / 1000, _MIN_WAIT_SECONDS)
            if isinstance(turn, LimitsUnavailable) or self._monotonic() + pause > ends_at:
                self._on_refusal(contract.external_service or "")
                raise turn
            await asyncio.sleep(pause)

    async def take_turn_now(self, tenant: str, contract: Contract) -> Turn | None:
        """Count a call that does not wait, or raise what it has to wait for."""
        turn = await self.request_turn(tenant, contract)
        if isinstance(turn, Problem):
            self._on_refusal(contract.external_service or "")
            raise turn
        return turn

    def correct_count(self, correction: WeightCorrection) -> None:
        """Correct a count in the background; one that cannot be reached counts too much until its window is over."""
        try:
            answer = self._counters.apply_updates([correction])
        except CountersUnavailable:
            return
        if answer is not None:
            task = asyncio.ensure_future(answer)
            self._tasks.add(task)
            task.add_done_callback(self._discard_task)

    def note_pause(self, tenant: str, contract: Contract, retry_after_ms: int) -> None:
        """Note that the service asked not to be called for so long."""
        if contract.external_service is None or contract.auth.credential not in _SHARED_CREDENTIALS:
            return
        key = tenant, contract.external_service
        ends_at = self._monotonic() + min(retry_after_ms / 1000, MAX_PAUSE_SECONDS)
        if self._keep_pause(key, ends_at):
            self._unshared_pauses[key] = self._pauses[key]
            self.wake()

    # For the background task that shares pauses.

    def take_pauses(self) -> dict[ServiceKey, float]:
        """Take the pauses that are not shared yet, each with the seconds that are left."""
        now = self._monotonic()
        pauses, self._unshared_pauses = self._unshared_pauses, {}
        return {key: ends_at - now for key, ends_at in pauses.items() if ends_at > now}

    def update_pauses(self, pauses: Iterable[tuple[ServiceKey, float]]) -> None:
        """Take over what other gateways were asked, and drop what is over."""
        now = self._monotonic()
        for key, seconds in pauses:
            self._keep_pause(key, now + min(seconds, MAX_PAUSE_SECONDS))
        self._pauses = {key: ends_at for key, ends_at in self._pauses.items() if ends_at > now}

    def _keep_pause(self, key: ServiceKey, ends_at: float) -> bool:
        """Keep a pause if it ends later than what is known; tell whether it does."""
        if ends_at <= self._pauses.get(key, self._monotonic()):
            return False
        if key not in self._pauses and len(self._pauses) >= _MAX_PAUSES:
            return False
        self._pauses[key] = ends_at
        return True

    def _discard_task(self, task: "asyncio.Future[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, CountersUnavailable):
            raise error

    async def request_turn(self, tenant: str, contract: Contract) -> Turn | Problem | None:
        """Count a call to the service, or return what refuses it; None if there is nothing to count."""
        service, limits = contract.external_service or "", contract.service_limits
        pause = self._pauses.get((tenant, service), 0.0) - self._monotonic()
        if pause > 0:
            return UpstreamRateLimited(
                f"{service} asked not to be called for another {pause:.1f} s: this call was not sent",
                details={"service": service},
                retry_after_ms=int(pause * 1000) + 1,
            )
        if limits is None or limits.max_calls is None:
            return None
        seconds = limits.effective_window_seconds
        window = Window(
            # The braces keep a tenant's counters on one node of a Redis cluster; a rule cannot have this name.
            key=f"deputize:{{{tenant}}}:default:service-rate:{service}:{seconds * 1000:.0f}",
            limit=limits.max_calls,
            seconds=seconds,
        )
        try:
            result = self._counters.take([window])
            if not isinstance(result, TakeResult):
                result = await result
        except CountersUnavailable as error:
            return LimitsUnavailable(
                f"calls to {service} cannot be counted: {error}", retry_after_ms=_UNAVAILABLE_RETRY_MS
            )
        if result.refused_index is None:
            return Turn(rates=self, window=window, at=result.at)
        return UpstreamRateLimited(
            f"{service} is called at most {limits.max_calls} times in {seconds:g} s: this call was not sent",
            details={"service": service, "max_calls": limits.max_calls, "window_seconds": seconds},
            retry_after_ms=result.retry_after_ms,
        )
