"""Keep a slow service from taking everything that this process executes calls with.

Each service of a tenant has so many slots, and a call holds one from its claim to its end. Two things are shared by all
services, and few: the threads of synchronous functions, and the runs of a worker. Of these, a service may hold as many
as are free for all others, at most: one slow service gets half, a second one half of the rest, and there is always room
for the next one. Of threads, the same holds for all services of a tenant together.

A call that finds no slot waits for one, in the order of arrival and not for long; a run waits in its queue instead.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from deputize.core.contract.contract import Contract
from deputize.core.contract.reliability import ServiceLimits
from deputize.core.errors import ServiceBusy
from deputize.core.value_types import frozen

# It is unknown when a slot becomes free.
_RETRY_AFTER_MS: Final = 1000
_UNLIMITED: Final = ServiceLimits()

# Tenant and service.
ServiceKey = tuple[str, str]
_Key = TypeVar("_Key", str, ServiceKey)


class SharedPool:
    """Something that calls to all services share, such as threads."""

    __slots__ = ("_by_service", "_by_tenant", "_capacity", "_is_per_tenant", "_total", "name")

    def __init__(self, name: str, capacity: int, *, is_per_tenant: bool) -> None:
        """Count up to `capacity`; with `is_per_tenant`, a tenant leaves as much to others as one service does."""
        self.name = name
        self._capacity = capacity
        self._is_per_tenant = is_per_tenant
        self._total = 0
        self._by_service: Counter[ServiceKey] = Counter()
        self._by_tenant: Counter[str] = Counter()

    def has_room(self, key: ServiceKey) -> bool:
        """Tell whether the service may take one more, and leaves as many to others."""
        free = self._capacity - self._total
        return self._by_service[key] < free and not (self._is_per_tenant and self._by_tenant[key[0]] >= free)

    def take(self, key: ServiceKey) -> None:
        self._total += 1
        self._by_service[key] += 1
        self._by_tenant[key[0]] += 1

    def release(self, key: ServiceKey) -> None:
        self._total -= 1
        _count_down(self._by_service, key)
        _count_down(self._by_tenant, key[0])


@frozen
class SlotRequest:
    """What a call needs: a slot of its service within what its contract allows, and a part of each shared pool."""

    key: ServiceKey
    max_concurrent: int
    max_waiting: int
    max_wait_seconds: float
    pools: tuple[SharedPool, ...] = ()


class ServiceSlot:
    """The slot of one call. It is released once; a thread that cannot be stopped keeps it until it ends."""

    __slots__ = ("_bulkheads", "_is_held", "_request", "_threads")

    def __init__(self, bulkheads: "Bulkheads", request: SlotRequest) -> None:
        self._bulkheads = bulkheads
        self._request = request
        self._threads = 0
        self._is_held = True

    def hold_for_thread(self, thread: "asyncio.Future[object]") -> None:
        """Keep the slot until this thread has ended, too."""
        self._threads += 1
        thread.add_done_callback(self._end_thread)

    def release(self) -> None:
        """Release the slot when no thread needs it any more."""
        if self._is_held:
            self._is_held = False
            self._release_unused()

    def _end_thread(self, _: "asyncio.Future[object]") -> None:
        self._threads -= 1
        self._release_unused()

    def _release_unused(self) -> None:
        if not self._is_held and not self._threads:
            self._bulkheads.release_slot(self._request)


@frozen
class _Waiter:
    request: SlotRequest
    future: "asyncio.Future[ServiceSlot]"


class Bulkheads:
    """The slots of this process. Services that no call uses or waits for take no memory."""

    def __init__(
        self, *, max_concurrent: int, threads: int, runs: int, on_refusal: Callable[[str], None] = lambda service: None
    ) -> None:
        """Give each service so many slots unless a contract says otherwise; `on_refusal` gets the name of a service."""
        self._max_concurrent = max_concurrent
        self._threads = SharedPool("threads", threads, is_per_tenant=True)
        # Workers share their places between tenants themselves.
        self._runs = SharedPool("runs", runs, is_per_tenant=False)
        self._on_refusal = on_refusal
        self._in_use: Counter[ServiceKey] = Counter()
        self._waiters: dict[ServiceKey, deque[_Waiter]] = {}

    def build_request(self, tenant: str, contract: Contract, *, uses_thread: bool, is_run: bool) -> SlotRequest:
        """Build the request of a call from what its contract declares."""
        limits = contract.service_limits or _UNLIMITED
        pools = (*((self._threads,) if uses_thread else ()), *((self._runs,) if is_run else ()))
        max_concurrent = limits.max_concurrent or self._max_concurrent
        return SlotRequest(
            key=(tenant, contract.external_service or ""),
            max_concurrent=max_concurrent,
            max_waiting=max_concurrent if limits.max_waiting is None else limits.max_waiting,
            max_wait_seconds=limits.effective_wait_seconds,
            pools=pools,
        )

    def take_now(self, request: SlotRequest) -> ServiceSlot | None:
        """Take a slot; None if there is none. No call that waits could use one that is free."""
        return self._take(request) if self._has_room(request) else None

    async def wait_for_slot(self, request: SlotRequest, seconds: float) -> ServiceSlot:
        """Wait for a slot, at most so many seconds and what the contract allows, or raise `ServiceBusy`."""
        waiters = self._waiters.get(request.key)
        if len(waiters or ()) >= request.max_waiting:
            raise self.build_refusal(request)
        if waiters is None:
            waiters = self._waiters[request.key] = deque()
        waiter = _Waiter(request=request, future=asyncio.get_running_loop().create_future())
        waiters.append(waiter)
        try:
            await asyncio.wait({waiter.future}, timeout=max(min(seconds, request.max_wait_seconds), 0.0))
        except asyncio.CancelledError:
            if waiter.future.done():
                waiter.future.result().release()
            else:
                self._forget_waiter(waiter)
            raise
        if waiter.future.done():
            return waiter.future.result()
        self._forget_waiter(waiter)
        raise self.build_refusal(request)

    def build_refusal(self, request: SlotRequest) -> ServiceBusy:
        """Build the refusal of a call that gets no slot, and count it."""
        service, in_use = request.key[1], self._in_use[request.key]
        waiting_count = len(self._waiters.get(request.key, ()))
        full_pool = next((each.name for each in request.pools if not each.has_room(request.key)), None)
        self._on_refusal(service)
        reason = (
            f"as many as are allowed at once ({request.max_concurrent})"
            if in_use >= request.max_concurrent or full_pool is None
            else f"and what is left of this gateway's {full_pool} is kept for others"
        )
        return ServiceBusy(
            f"{in_use} calls to {service} are in progress, {reason}, and {waiting_count} wait: this call was not sent",
            details={
                "service": service, "in_progress": in_use, "waiting": waiting_count,
                "max_concurrent": request.max_concurrent, "max_waiting": request.max_waiting,
            },
            retry_after_ms=_RETRY_AFTER_MS,
            nothing_happened=True,
        )  # fmt: skip

    def release_slot(self, request: SlotRequest) -> None:
        """Give a slot back, and let calls that wait have what is free now."""
        _count_down(self._in_use, request.key)
        for pool in request.pools:
            pool.release(request.key)
        if self._waiters:
            # What is free in a pool may be what calls of other services wait for.
            for key in [request.key, *self._waiters] if request.pools else [request.key]:
                self._admit_waiters(key)

    def iterate_loads(self) -> Iterator[tuple[str, int, int]]:
        """Iterate over the services of all tenants, each with the calls that are in progress and that wait."""
        for key in self._in_use.keys() | self._waiters.keys():
            yield key[1], self._in_use[key], len(self._waiters.get(key, ()))

    def _has_room(self, request: SlotRequest) -> bool:
        if self._in_use[request.key] >= request.max_concurrent:
            return False
        return all(each.has_room(request.key) for each in request.pools)

    def _take(self, request: SlotRequest) -> ServiceSlot:
        self._in_use[request.key] += 1
        for pool in request.pools:
            pool.take(request.key)
        return ServiceSlot(self, request)

    def _admit_waiters(self, key: ServiceKey) -> None:
        """Give the first call that may pass a slot; one that was given back is never enough for two."""
        # Contracts of one service may allow different numbers, so that a later call may pass where the first waits.
        waiter = next((each for each in self._waiters.get(key, ()) if self._has_room(each.request)), None)
        if waiter is None:
            return
        self._forget_waiter(waiter)
        waiter.future.set_result(self._take(waiter.request))
        # What is shared with other services is theirs first, the next time.
        if (rest := self._waiters.pop(key, None)) is not None:
            self._waiters[key] = rest

    def _forget_waiter(self, waiter: _Waiter) -> None:
        key = waiter.request.key
        waiters = self._waiters[key]
        waiters.remove(waiter)
        if not waiters:
            del self._waiters[key]


def _count_down(counts: Counter[_Key], key: _Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
