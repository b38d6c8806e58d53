"""Count in the memory of one process, for a gateway without replicas: no round trip and no await."""

from collections import deque
from collections.abc import Sequence
from math import ceil
from typing import Final

from deputize.core.clock import Clock
from deputize.store.counters.port import (
    WINDOW_PARTS,
    CounterRequest,
    CountersUnavailable,
    CounterUpdate,
    Slot,
    SlotRelease,
    TakeResult,
    Window,
)

_MICROS: Final = 1_000_000
_MAX_KEYS: Final = 1_000_000
_FIRST_SWEEP_SIZE: Final = 1024
# Sweeping a million windows blocks all calls, so while there is no room it is not repeated for each call.
_FULL_MICROS: Final = 30 * _MICROS
# How many entries of a full window are searched for the time at which enough weight has left it.
_MAX_ENTRIES_AHEAD: Final = 200
_FULL_MESSAGE: Final = "this process has too many counters; set limits.redis_url to count in Redis"


class _WindowLog:
    """One window: entries of part and weight, oldest first, and their sum."""

    __slots__ = ("entries", "part", "total")

    def __init__(self, part: float) -> None:
        self.part = part
        self.entries: deque[list[int]] = deque()
        self.total = 0

    def drop_old_entries(self, now: int) -> None:
        """Remove the entries that have left the window."""
        last = int(now / self.part) - WINDOW_PARTS - 1
        entries = self.entries
        while entries and entries[0][0] <= last:
            self.total -= entries.popleft()[1]

    def add(self, weight: int, now: int) -> None:
        """Add weight at this time."""
        number = int(now / self.part)
        if self.entries and self.entries[-1][0] >= number:
            self.entries[-1][1] += weight
        else:
            self.entries.append([number, weight])
        self.total += weight

    def subtract(self, weight: int, at: int) -> None:
        """Subtract weight from the entry of an earlier time, if it is still in the window."""
        number = int(at / self.part)
        for entry in reversed(self.entries):
            if entry[0] <= number:
                if entry[0] == number:
                    less = min(weight, entry[1])
                    entry[1] -= less
                    self.total -= less
                return

    def compute_wait_ms(self, need: int, now: int) -> int:
        """Compute the milliseconds until this much weight has left the window."""
        freed_weight = 0
        for number, weight in list(self.entries)[:_MAX_ENTRIES_AHEAD]:
            freed_weight += weight
            if freed_weight >= need:
                # One microsecond more, because times are truncated to microseconds.
                return max(ceil(((number + WINDOW_PARTS + 1) * self.part - now + 1) / 1000), 1)
        return ceil(self.part * WINDOW_PARTS / 1000)


class InProcessCounters:
    """Counters of this process."""

    is_shared = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[str, _WindowLog] = {}
        self._slots: dict[str, dict[str, int]] = {}
        self._sweep_at = _FIRST_SWEEP_SIZE
        self._full_until = 0

    def take(self, requests: Sequence[CounterRequest]) -> TakeResult:
        """Take all requests, or none."""
        now = self._now()
        for index, request in enumerate(requests):
            refusal = self._find_refusal(index, request, now)
            if refusal is not None:
                return refusal
        # Before anything is taken: if there is no room for one request, none is taken.
        self._make_room(sum(isinstance(ask, Window) and ask.key not in self._windows for ask in requests), now)
        for request in requests:
            if isinstance(request, Slot):
                self._slots.setdefault(request.key, {})[request.holder] = now + int(request.seconds * _MICROS)
            elif request.weight:
                self._get_log(request.key, request.seconds).add(request.weight, now)
        return TakeResult(refused_index=None, at=now)

    def apply_updates(self, updates: Sequence[CounterUpdate]) -> None:
        """Correct weights and release slots."""
        now = self._now()
        for update in updates:
            if isinstance(update, SlotRelease):
                holders = self._slots.get(update.key)
                if holders is not None and holders.pop(update.holder, None) is not None and not holders:
                    del self._slots[update.key]
            elif update.weight > 0:
                self._make_room(update.key not in self._windows, now)
                self._get_log(update.key, update.seconds).add(update.weight, now)
            elif update.key in self._windows:
                self._windows[update.key].subtract(-update.weight, update.at)

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    def _now(self) -> int:
        return int(self._clock.monotonic() * _MICROS)

    def _find_refusal(self, index: int, request: CounterRequest, now: int) -> TakeResult | None:
        if isinstance(request, Slot):
            usage = self._count_holders(request, now)
            return TakeResult(refused_index=index, at=now, usage=usage) if usage >= request.limit else None
        log = self._windows.get(request.key)
        if log is not None:
            log.drop_old_entries(now)
        usage = 0 if log is None else log.total
        need = usage + max(request.weight, 1) - request.limit
        if need <= 0:
            return None
        wait = _get_window_ms(request) if log is None else log.compute_wait_ms(need, now)
        return TakeResult(refused_index=index, at=now, usage=usage, retry_after_ms=wait)

    def _count_holders(self, slot: Slot, now: int) -> int:
        holders = self._slots.get(slot.key)
        if not holders:
            return 0
        for holder in [holder for holder, until in holders.items() if until <= now]:
            del holders[holder]
        return len(holders)

    def _get_log(self, key: str, seconds: float) -> _WindowLog:
        log = self._windows.get(key)
        if log is None:
            log = self._windows[key] = _WindowLog(seconds * _MICROS / WINDOW_PARTS)
        return log

    def _make_room(self, new_windows: int, now: int) -> None:
        if new_windows and len(self._windows) + new_windows > self._sweep_at:
            self._sweep(now)

    def _sweep(self, now: int) -> None:
        """Drop empty windows and expired slots, each time the number of windows has doubled."""
        if now < self._full_until:
            raise CountersUnavailable(_FULL_MESSAGE)
        for key, log in list(self._windows.items()):
            log.drop_old_entries(now)
            if not log.entries:
                del self._windows[key]
        for name, holders in list(self._slots.items()):
            if all(until <= now for until in holders.values()):
                del self._slots[name]
        if len(self._windows) >= _MAX_KEYS:
            self._full_until = now + _FULL_MICROS
            raise CountersUnavailable(_FULL_MESSAGE)
        self._sweep_at = min(max(2 * len(self._windows), _FIRST_SWEEP_SIZE), _MAX_KEYS)


def _get_window_ms(window: Window) -> int:
    return ceil(window.seconds * 1000)
