"""Counters of one process, for a gateway without replicas: no round trip, no await, the injected clock."""

from collections import deque
from collections.abc import Sequence
from math import ceil
from typing import Final

from deputize.core.clock import Clock
from deputize.store.shared.counters import PARTS, Ask, Change, CountersLost, Release, Slot, Taken, Window

_MICROS: Final = 1_000_000
_MOST_KEYS: Final = 1_000_000
_SWEEP_FIRST: Final = 1024
# Looking through a million windows holds everybody up; while there is no room, that is not done for each call.
_FULL_MICROS: Final = 30 * _MICROS
# How far into a full window one looks for the moment at which enough of it will be over.
_LOOK_AHEAD: Final = 200
_FULL: Final = "this process counts more than it can hold"


class _Log:
    """One window: entries of (part, weight), oldest first, and their sum."""

    __slots__ = ("entries", "part", "total")

    def __init__(self, part: float) -> None:
        self.part = part
        self.entries: deque[list[int]] = deque()
        self.total = 0

    def forget(self, now: int) -> None:
        last = int(now / self.part) - PARTS - 1
        entries = self.entries
        while entries and entries[0][0] <= last:
            self.total -= entries.popleft()[1]

    def add(self, weight: int, now: int) -> None:
        number = int(now / self.part)
        if self.entries and self.entries[-1][0] >= number:
            self.entries[-1][1] += weight
        else:
            self.entries.append([number, weight])
        self.total += weight

    def take_off(self, weight: int, at: int) -> None:
        number = int(at / self.part)
        for entry in reversed(self.entries):
            if entry[0] <= number:
                if entry[0] == number:
                    less = min(weight, entry[1])
                    entry[1] -= less
                    self.total -= less
                return

    def wait_ms(self, need: int, now: int) -> int:
        """Until so much of it is over."""
        freed = 0
        for number, weight in list(self.entries)[:_LOOK_AHEAD]:
            freed += weight
            if freed >= need:
                return max(ceil(((number + PARTS + 1) * self.part - now) / 1000), 1)
        return ceil(self.part * PARTS / 1000)


class InProcessCounters:
    shared = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[str, _Log] = {}
        self._slots: dict[str, dict[str, int]] = {}
        self._sweep_at = _SWEEP_FIRST
        self._full_until = 0

    def take(self, asks: Sequence[Ask]) -> Taken:
        now = self._now()
        for place, ask in enumerate(asks):
            refused = self._refusal(place, ask, now)
            if refused is not None:
                return refused
        # Before anything is taken: where there is no room for one of them, none is.
        self._make_room(sum(isinstance(ask, Window) and ask.key not in self._windows for ask in asks), now)
        for ask in asks:
            if isinstance(ask, Slot):
                self._slots.setdefault(ask.key, {})[ask.holder] = now + int(ask.seconds * _MICROS)
            elif ask.weight:
                self._log(ask.key, ask.seconds).add(ask.weight, now)
        return Taken(refused=None, at=now)

    def settle(self, changes: Sequence[Change]) -> None:
        now = self._now()
        for change in changes:
            if isinstance(change, Release):
                held = self._slots.get(change.key)
                if held is not None and held.pop(change.holder, None) is not None and not held:
                    del self._slots[change.key]
            elif change.weight > 0:
                self._make_room(change.key not in self._windows, now)
                self._log(change.key, change.seconds).add(change.weight, now)
            elif change.key in self._windows:
                self._windows[change.key].take_off(-change.weight, change.at)

    async def close(self) -> None:
        pass

    def _now(self) -> int:
        return int(self._clock.monotonic() * _MICROS)

    def _refusal(self, place: int, ask: Ask, now: int) -> Taken | None:
        if isinstance(ask, Slot):
            used = self._held(ask, now)
            return Taken(refused=place, at=now, used=used) if used >= ask.limit else None
        log = self._windows.get(ask.key)
        if log is not None:
            log.forget(now)
        used = 0 if log is None else log.total
        need = used + max(ask.weight, 1) - ask.limit
        if need <= 0:
            return None
        wait = _longest(ask) if log is None else log.wait_ms(need, now)
        return Taken(refused=place, at=now, used=used, retry_after_ms=wait)

    def _held(self, ask: Slot, now: int) -> int:
        held = self._slots.get(ask.key)
        if not held:
            return 0
        for holder in [holder for holder, until in held.items() if until <= now]:
            del held[holder]
        return len(held)

    def _log(self, key: str, seconds: float) -> _Log:
        log = self._windows.get(key)
        if log is None:
            log = self._windows[key] = _Log(seconds * _MICROS / PARTS)
        return log

    def _make_room(self, more: int, now: int) -> None:
        if more and len(self._windows) + more > self._sweep_at:
            self._sweep(now)

    def _sweep(self, now: int) -> None:
        """Drops windows nobody was in for their whole length, each time the number of windows has doubled."""
        if now < self._full_until:
            raise CountersLost(_FULL)
        for key, log in list(self._windows.items()):
            log.forget(now)
            if not log.entries:
                del self._windows[key]
        for name, held in list(self._slots.items()):
            if all(until <= now for until in held.values()):
                del self._slots[name]
        if len(self._windows) >= _MOST_KEYS:
            self._full_until = now + _FULL_MICROS
            raise CountersLost(_FULL)
        self._sweep_at = min(max(2 * len(self._windows), _SWEEP_FIRST), _MOST_KEYS)


def _longest(ask: Window) -> int:
    return ceil(ask.seconds * 1000)
