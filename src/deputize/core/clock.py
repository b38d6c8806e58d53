"""Provide time and randomness, injected wherever logic depends on them, and the ids made from both."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from deputize.core.errors import DeadlineExceeded
from deputize.core.value_types import frozen

# The first digit of a UUID's fourth group carries its variant in the upper two bits.
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """One source of time and randomness. `monotonic` measures, `epoch_ms` labels; neither decides durable facts."""

    monotonic: Callable[[], float] = time.monotonic
    epoch_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    random_bytes: Callable[[int], bytes] = os.urandom

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.epoch_ms() / 1000, UTC)

    def new_id(self) -> str:
        """Make a UUIDv7 as text. It starts with the time, so tables partitioned by id are partitioned by day."""
        time, noise = f"{self.epoch_ms():012x}", self.random_bytes(10).hex()
        return f"{time[:8]}-{time[8:]}-7{noise[:3]}-{_VARIANT[noise[3]]}{noise[4:7]}-{noise[7:19]}"


@frozen
class Deadline:
    """A moment on the monotonic clock after which the caller no longer waits."""

    at: float

    @classmethod
    def after(cls, seconds: float, now: float) -> "Deadline":
        return cls(at=now + seconds)

    def remaining_seconds(self, now: float) -> float:
        return self.at - now

    def require_time_left(self, now: float) -> None:
        if self.at <= now:
            raise DeadlineExceeded("the deadline passed before the tool started; nothing was changed")


def parse_id_time_ms(uuid7: str) -> int:
    """Read the millisecond in which a UUIDv7 was made."""
    return int(uuid7[:8] + uuid7[9:13], 16)


def make_first_id(ms: int) -> str:
    """Return the smallest UUIDv7 of a millisecond; no id is older than 1970."""
    time = f"{max(ms, 0):012x}"
    return f"{time[:8]}-{time[8:]}-0000-0000-000000000000"
